"""`auto` eliminates what it can, searches the rest, and keeps the best answer."""

from __future__ import annotations

import csv
import math
import tarfile
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fgnn import GraphicalModel, ModelBatch, read_model, solve
from fgnn.data import GridMAP
from fgnn.infer import api
from fgnn.infer.auto import solver as auto
from fgnn.infer.auto.portfolio import Best
from fgnn.infer.certificate import StandardForm
from fgnn.infer.exact.order import OutOfTime
from fgnn.infer.solution import Answer, Progress
from tests.infer.oracle import best_score, chain
from tests.infer.test_exact import grid
from tests.strategies import models

# Too few states for any elimination of two variables at once, so that the other methods must answer.
NARROW = {"max_states": 2}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> object:
    """Make methods unavailable, as if their packages were not installed."""

    def take(*methods: str) -> None:
        for method in methods:
            monkeypatch.setitem(api.SOLVERS, method, "fgnn.infer.not_installed:solve")

    return take


@given(models())
def test_it_eliminates_where_the_width_allows(model: GraphicalModel) -> None:
    solution = solve(model, "auto")
    assert solution.method == "auto:exact"
    assert solution.score == pytest.approx(best_score(model), abs=1e-9)
    assert solution.status == ("optimal" if solution.feasible else "infeasible")


@settings(max_examples=12)
@given(models())
def test_it_is_optimal_where_the_width_does_not_allow_elimination(model: GraphicalModel) -> None:
    pytest.importorskip("pytoulbar2")
    best = best_score(model)
    solution = solve(model, "auto", time_limit=20, **NARROW)
    assert solution.score == pytest.approx(best, abs=1e-9)
    assert solution.status == ("optimal" if best > -np.inf else "infeasible")


@settings(max_examples=15)
@given(models())
def test_scores_and_bounds_are_right_without_toulbar2(model: GraphicalModel) -> None:
    best = best_score(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(api.SOLVERS, "toulbar2", "fgnn.infer.not_installed:solve")
        solution = solve(model, "auto", **NARROW)
    assert solution.bound >= best - 1e-6
    if solution.status == "optimal":
        assert solution.score == pytest.approx(best, abs=1e-9)
    for _, score, bound, _ in solution.info["stages"]:
        assert solution.score >= score - 1e-9
        assert solution.bound <= max(bound, solution.score) + 1e-9


def test_it_names_the_methods_used_and_why_others_were_skipped(without: Callable[..., None]) -> None:
    without("toulbar2", "ad3", "search")
    solution = solve(grid(6), "auto", **NARROW)
    assert [stage[0] for stage in solution.info["stages"]] == ["max-product", "local-search"]
    assert solution.method in ("auto:max-product", "auto:local-search")
    assert solution.status == "feasible"
    assert solution.bound >= solve(grid(6), "exact").score
    assert "induced width" in solution.info["skipped"]["exact"]
    assert "not_installed" in solution.info["skipped"]["toulbar2"]
    assert "not_installed" in solution.info["skipped"]["search"]


def test_search_gets_the_rest_of_the_time_on_wide_models() -> None:
    pytest.importorskip("numba")
    model = complete(0, variables=60)
    solve(grid(3), "search", rounds=1)  # loads the compiled loops
    began = time.perf_counter()
    solution = solve(model, "auto", time_limit=3, **NARROW)
    assert time.perf_counter() - began < 6  # a busy machine
    stages = [name for name, *_ in solution.info["stages"]]
    assert stages[-1] == "search"
    seconds = {name: spent for name, _, _, spent in solution.info["stages"]}
    assert seconds["search"] > 2  # from the start, beside the others
    assert solution.status == "time-limit"
    assert solution.score >= max(score for _, score, *_ in solution.info["stages"]) - 1e-9


def test_a_model_is_searched_while_an_order_is_searched_for() -> None:
    """A wide grid with budgets, which planning does not recognise in time."""
    pytest.importorskip("numba")
    model = GridMAP(18, 18).sample(1, seed=0).model(0)
    solve(grid(3), "search", rounds=1)  # loads the compiled loops
    updates: list[Progress] = []
    solution = solve(model, "auto", time_limit=2, progress=updates.append)
    assert solution.method == "auto:search"
    assert solution.score >= solve(model, "search", rounds=5, workers=1).score - 1e-9
    seconds = {name: spent for name, _, _, spent in solution.info["stages"]}
    assert seconds["search"] > 1.8
    assert any(update.note == "while planning" and update.score > -math.inf for update in updates)


def test_the_search_counts_where_planning_took_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    solve(grid(3), "search", rounds=1)

    def plan_for_ever(*arguments: object, **options: object) -> None:
        time.sleep(0.8)
        raise OutOfTime

    monkeypatch.setattr("fgnn.infer.auto.solver.exact_plan", plan_for_ever)
    model = GridMAP(10, 10).sample(1, seed=0).model(0)
    solution = solve(model, "auto", time_limit=0.7)
    assert solution.method == "auto:search"
    assert solution.feasible


def test_a_time_limit_ends_the_search_in_the_background() -> None:
    pytest.importorskip("numba")
    before = threading.active_count()
    solve(grid(3), "search", rounds=1)
    solve(complete(1, variables=40), "auto", time_limit=0.5, **NARROW)
    solve(grid(8), "auto", time_limit=5)
    assert threading.active_count() <= before + 2  # those that loaded compiled loops


def test_components_are_solved_separately() -> None:
    """A chain that elimination solves, a grid too wide for it, and an observed variable that touches both."""
    pytest.importorskip("pytoulbar2")
    side, rng = 5, np.random.default_rng(0)
    square, count = grid(side), side**2 + 40
    model = GraphicalModel([2] * count)
    model.add_unaries(np.concatenate([square.unaries, rng.normal(size=80)]))
    for table in square.tables():
        model.add_table(table.scope, table.values)
    for i in range(side**2, count - 2):
        model.add_table((i, i + 1), rng.normal(size=(2, 2)))
    for i in (0, side**2):
        model.add_table((count - 1, i), rng.normal(size=(2, 2)))
    model.constant = 3.0
    model = model.condition({count - 1: 1})
    solution = solve(model, "auto", max_states=16)
    assert solution.method.startswith("auto:exact+")
    assert solution.status == "optimal"
    assert solution.score == pytest.approx(solve(model, "exact").score, abs=1e-9)
    assert solution.assignment[count - 1] == 1


def test_an_infeasible_component_makes_the_whole_infeasible() -> None:
    pytest.importorskip("pytoulbar2")
    model = grid(4)
    whole = GraphicalModel([2] * 20)
    for table in model.tables():
        whole.add_table(table.scope, table.values)
    whole.add_table((16, 17), [[0.0, -np.inf], [-np.inf, 0.0]])
    whole.add_table((17, 18), [[0.0, -np.inf], [-np.inf, 0.0]])
    whole.add_table((16, 18), [[-np.inf, 0.0], [0.0, -np.inf]])
    solution = solve(whole, "auto", max_states=8, time_limit=20)
    assert (solution.status, solution.bound) == ("infeasible", -np.inf)


def test_a_batch_is_answered_model_by_model() -> None:
    pytest.importorskip("pytoulbar2")
    models = [chain(seed, length=12) for seed in range(4)]
    solutions = solve(ModelBatch.stack(models), "auto", time_limit=30, **NARROW)
    assert solutions.status == ["optimal"] * 4
    for b, model in enumerate(models):
        assert solutions.score[b].item() == pytest.approx(best_score(model), abs=1e-9)


def complete(seed: int, variables: int = 11) -> GraphicalModel:
    """A table on every pair of variables: no relaxation is tight, so only toulbar2 proves the optimum."""
    model = GraphicalModel([2] * variables)
    scopes = np.array([(i, j) for i in range(variables) for j in range(i)])
    model.add_tables(scopes, np.random.default_rng(seed).normal(size=(len(scopes), 2, 2)))
    return model


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
@pytest.mark.parametrize("stage", ["search", "max-product", "ad3", "local-search", "toulbar2"])
def test_a_stage_that_runs_out_of_memory_is_retried_by_halves(
    stage: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting points must be halved with the batch, or the stage fails on their shape."""
    pytest.importorskip("pytoulbar2")
    sizes: list[int] = []

    def limited(solver: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(solver)
        def run(batch: ModelBatch, **options: Any) -> Any:
            sizes.append(len(batch))
            if len(batch) > 2:
                raise error
            return solver(batch, **options)

        return run

    pytest.importorskip("numba")
    skipped = {"exact"}
    if stage == "local-search":
        monkeypatch.setitem(api.SOLVERS, "search", "fgnn.infer.not_installed:solve")
        skipped.add("search")
        monkeypatch.setattr(auto, "decode", limited(auto.decode))
    else:
        monkeypatch.setitem(api.SOLVERS, stage, limited(api.solver_named(stage)))
    models = [complete(seed) for seed in range(5)]
    solutions = solve(ModelBatch.stack(models), "auto", time_limit=30, **NARROW)
    assert set(solutions.info["skipped"]) == skipped
    assert stage in [name for name, *_ in solutions.info["stages"]]
    assert max(sizes) > 2 >= min(sizes)
    assert solutions.status == ["optimal"] * 5
    for b, model in enumerate(models):
        assert solutions.score[b].item() == pytest.approx(best_score(model), abs=1e-9)


def test_progress_includes_the_best_assignment_so_far() -> None:
    updates: list[Progress] = []
    model = grid(6)
    solve(model, "auto", progress=updates.append, **NARROW)
    updates = [u for u in updates if u.assignment is not None]
    assert updates
    for u in updates:
        assert u.assignment is not None
        assert model.score(u.assignment[0].numpy()) == pytest.approx(u.score, abs=1e-9)
    scores = [u.score for u in updates]
    assert scores == sorted(scores)


def test_a_model_far_too_wide_is_recognised_without_planning() -> None:
    pytest.importorskip("numba")
    from fgnn.infer.search.width import far_too_wide

    solve(grid(3), "search", rounds=1)  # loads the compiled loops
    assert far_too_wide(ModelBatch.stack([complete(0, variables=60)]), 1 << 20)
    assert not far_too_wide(ModelBatch.stack([grid(6)]), 1 << 20)
    observed = complete(0, variables=60).condition(dict.fromkeys(range(45), 0))
    assert not far_too_wide(ModelBatch.stack([observed]), 1 << 20)
    loose = GridMAP(50, 50).sample(1, seed=0)  # at most two ones among six
    assert far_too_wide(loose, 1 << 26)
    strict = complete(0, variables=60)
    strict.add_exactly_one(range(60))  # leaves 60 joint states
    assert not far_too_wide(ModelBatch.stack([strict]), 1 << 20)
    knapsack = complete(0, variables=60)
    knapsack.add_linear(range(60), np.arange(60) + 1, at_most=1200)
    assert far_too_wide(ModelBatch.stack([knapsack]), 1 << 20)
    assert not far_too_wide(ModelBatch.stack([knapsack]), 1 << 20, deadline=-np.inf)  # no time to tell
    solution = solve(grid(48), "auto", time_limit=2)
    assert solution.info["skipped"]["exact"] == "the model is far too wide for elimination"
    assert solution.feasible


class TestBest:
    """How answers are merged."""

    def best(self) -> Best:
        """Of a model whose standard scores are -3, -2, 0 and -inf."""
        m = GraphicalModel([2, 2])
        m.add_table((0, 1), [[0.0, 1.0], [3.0, -np.inf]])
        return Best(StandardForm.of(ModelBatch.stack([m])), None, 0.0)

    def take(self, best: Best, states: list[int], bound: float = np.inf) -> None:
        best.take("some", Answer.of(torch.tensor([states]), bound=bound))

    def test_a_worse_or_infeasible_answer_is_not_taken(self) -> None:
        best = self.best()
        self.take(best, [0, 1])
        self.take(best, [0, 0])
        self.take(best, [1, 1])
        assert best.assignment.tolist() == [[0, 1]]
        assert best.score.item() == -2.0

    def test_the_lowest_bound_is_kept_and_proves_the_score_it_meets(self) -> None:
        best = self.best()
        self.take(best, [0, 1], bound=-1.0)
        assert (best.bound.item(), best.proved.item()) == (-1.0, False)
        self.take(best, [0, 0], bound=-2.0)
        assert (best.bound.item(), best.proved.item()) == (-2.0, True)

    def test_a_bound_contradicted_by_a_better_assignment_is_discarded(self) -> None:
        best = self.best()
        self.take(best, [0, 1], bound=-1.0)
        self.take(best, [1, 0], bound=-0.5)
        assert (best.score.item(), best.bound.item(), best.proved.item()) == (0.0, 0.0, True)
        self.take(best, [1, 0], bound=-np.inf)
        assert (best.bound.item(), best.proved.item()) == (0.0, True)


# ---- the UAI 2012 competition ---------------------------------------------------------------------------------------


def _benchmarks(data_dir: Path) -> list[tuple[str, float, bool]]:
    with (data_dir / "map_benchmarks" / "uai2012_pe_scores.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    return [(row["instance"], float(row["best_log10"]), row["proved_optimal"] == "yes") for row in rows]


def _check(data_dir: Path, folder: Path, wanted: set[str] | None) -> int:
    with tarfile.open(data_dir / "map_benchmarks" / "uai2012_pe.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    checked = 0
    for name, best, proved in _benchmarks(data_dir):
        if wanted is not None and name not in wanted:
            continue
        path = folder / "uai2012_pe" / f"{name}.uai"
        solution = solve(read_model(path, evidence=path.with_name(path.name + ".evid")), "auto", time_limit=20)
        score = solution.score / math.log(10)
        assert score >= best - 1e-4 or not (proved or solution.status == "optimal"), name
        if proved:
            assert score == pytest.approx(best, abs=1e-4), name
        checked += 1
    return checked


@pytest.mark.data
def test_some_competition_models_are_solved_to_the_best_known_score(data_dir: Path, tmp_path: Path) -> None:
    some = {
        "Alchemy/smokers_10",
        "Grids/grid10x10.f10",
        "Pedigree/Family2Dominant.1.5loci",
        "Promedas/or_chain_168.fg",
        "Promedas/or_chain_218.fg",
        "Segmentation/2_28_s.binary",
    }
    assert _check(data_dir, tmp_path, some) == len(some)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_all_competition_models_are_solved_to_the_best_known_score(data_dir: Path, tmp_path: Path) -> None:
    assert _check(data_dir, tmp_path, None) == 61
