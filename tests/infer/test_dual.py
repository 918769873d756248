"""The dual: bounds against brute force and the LP, monotone descent, clusters, infeasibility."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.bench.anytime.families import glass, grid_pairs, potts, protein_like
from fgnn.infer.dual.clusters import cycles, gains
from fgnn.infer.dual.descent import Descent
from fgnn.infer.dual.layout import build_layout
from fgnn.testing import check_solver
from tests.infer.descending import value_after

pytest.importorskip("numba")


def standard(model: GraphicalModel) -> ModelBatch:
    from fgnn.infer.certificate import StandardForm

    return StandardForm.of(ModelBatch.stack([model])).batch


def cycle_of(signs: list[float]) -> GraphicalModel:
    """Spins around a cycle: neighbours with sign 1 want to agree, with -1 to differ."""
    n = len(signs)
    model = GraphicalModel([2] * n)
    for i, sign in enumerate(signs):
        model.add_table((i, (i + 1) % n), sign * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    return model


@pytest.mark.parametrize("options", [{}, {"tighten": False}, {"iterations": 3}], ids=str)
def test_what_it_says_is_true_on_small_models(options: dict[str, object]) -> None:
    check_solver("dual", **options)


@pytest.mark.parametrize("seed", range(4))
def test_on_trees_the_bound_is_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 5, 12)
    model = GraphicalModel(cards)
    model.add_unaries(rng.normal(size=int(cards.sum())))
    for i in range(1, 12):
        j = int(rng.integers(0, i))
        model.add_table((j, i), rng.normal(size=(cards[j], cards[i])))
    solution = solve(model, "dual")
    assert solution.status == "optimal"
    assert solution.score == pytest.approx(solve(model, "exact").score)


@pytest.mark.parametrize("budgets", [False, True], ids=["tables", "with budgets"])
@pytest.mark.parametrize("seed", range(4))
def test_without_clusters_it_reaches_the_value_of_the_lp_and_no_less(seed: int, budgets: bool) -> None:
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * 16)
    model.add_unaries(rng.normal(size=32))
    model.add_tables(grid_pairs(4), rng.normal(size=(24, 2, 2)))
    model.add_table((0, 5, 10), rng.normal(size=(2, 2, 2)))
    if budgets:
        model.add_budget(range(8), at_most=3)
        model.add_budget(range(5, 16), at_most=6, at_least=2)
    value, bound = solve(model, "lp").bound, solve(model, "dual", tighten=False).bound
    assert bound >= value - 1e-6
    assert bound <= value + 0.02 * abs(value)
    assert solve(model, "dual").bound <= bound + 1e-9


@pytest.mark.parametrize("tighten", [False, True])
@pytest.mark.parametrize("make", [lambda: glass(6, 0), lambda: potts(5, 0), lambda: protein_like(12, 0)])
def test_no_sweep_raises_the_dual(make, tighten: bool) -> None:  # type: ignore[no-untyped-def]
    batch = standard(make())

    def add_clusters(descent: Descent, n: int) -> None:
        if tighten and n in (10, 20):
            descent._add_clusters(1e-9)

    assert value_after(batch, 40, add_clusters) >= solve(batch, "exact").score[0]


@pytest.mark.parametrize("signs", [[1.0, 1.0, -1.0], [1.0, 1.0, 1.0, -1.0]], ids=["triangle", "square"])
def test_a_cluster_closes_a_frustrated_cycle(signs: list[float]) -> None:
    model = cycle_of(signs)
    best = len(signs) - 2.0  # one pair must give way
    assert solve(model, "dual", tighten=False).bound == pytest.approx(len(signs))
    solution = solve(model, "dual")
    assert solution.bound == pytest.approx(best)
    assert (solution.score, solution.status) == (pytest.approx(best), "optimal")
    assert solution.info["clusters"].tolist() == [1]


def test_clusters_prove_a_planar_glass_that_the_relaxation_does_not() -> None:
    model = glass(6, 0)
    optimum = solve(model, "exact").score
    assert solve(model, "dual", tighten=False).bound > optimum + 1.0
    assert solve(model, "dual").bound == pytest.approx(optimum, abs=1e-3)


def test_every_triangle_and_chordless_square_is_a_candidate_once() -> None:
    def found(pairs: list[tuple[int, int]], n: int) -> set[frozenset[int]]:
        model = GraphicalModel([2] * n)
        for pair in pairs:
            model.add_table(pair, np.zeros((2, 2)))
        scopes = [frozenset(scope) for scope, _ in cycles(build_layout(ModelBatch.stack([model])))]
        assert len(scopes) == len(set(scopes))
        return set(scopes)

    assert len(found([tuple(p) for p in grid_pairs(4).tolist()], 16)) == 9
    complete = [(j, i) for i in range(5) for j in range(i)]
    assert len(found(complete, 5)) == 10  # triangles alone: every square has a chord
    assert found([(0, 1), (2, 1), (2, 3), (3, 0)], 4) == {frozenset(range(4))}


def test_the_gain_of_a_cluster_is_what_joining_its_pairs_loses() -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2, 3, 4, 2])
    tables = {}
    for scope in ((1, 0), (1, 2), (3, 2), (0, 3)):
        tables[scope] = rng.normal(size=[int(model.cardinalities[i]) for i in scope])
        model.add_table(scope, tables[scope])
    layout = build_layout(ModelBatch.stack([model]))
    groups = [t.values[0].reshape(-1).numpy() for t in ModelBatch.stack([model]).tables]
    theta = np.concatenate([np.zeros(11), *groups])
    joint = max(
        sum(v[x[i], x[j]] for (i, j), v in tables.items())
        for x in np.ndindex(*model.cardinalities.tolist())
    )  # fmt: skip
    expected = sum(v.max() for v in tables.values()) - joint
    assert gains(layout, theta, cycles(layout)).tolist() == pytest.approx([expected])


def test_states_without_completion_are_removed_until_nothing_is_left() -> None:
    model = GraphicalModel([2] * 6)
    forbid_equal = np.where(np.eye(2) > 0, -np.inf, 0.0)
    for i in range(5):
        model.add_table((i, i + 1), forbid_equal)
    model.add_unary(0, [0.0, -np.inf])
    model.add_unary(5, [0.0, -np.inf])  # an odd distance from variable 0, so it must differ
    solution = solve(model, "dual")
    assert (solution.status, solution.bound) == ("infeasible", -math.inf)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_bounds_hold_at_any_scale(scale: float) -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([3] * 9)
    model.add_unaries(scale * rng.normal(size=27))
    model.add_tables(grid_pairs(3), scale * rng.normal(size=(12, 3, 3)))
    solution, best = solve(model, "dual"), solve(model, "exact")
    assert solution.bound >= best.score
    assert solution.bound <= best.score + 0.2 * abs(best.score)


def test_structured_factors_are_read() -> None:
    model = GraphicalModel([2] * 5)
    model.add_unaries(np.random.default_rng(0).normal(size=10))
    model.add_parity(range(5), 1)
    solution = solve(model, "dual")
    assert solution.bound >= solve(model, "brute-force").score - 1e-9
    assert len(solution.assignment) == 5


def test_the_bound_is_reported_as_it_falls_and_the_limit_is_kept() -> None:
    updates: list[fgnn.infer.Progress] = []
    model = glass(40, 0)
    solve(model, "dual", time_limit=30.0, iterations=1)  # compiles where nothing is stored yet
    begin = time.perf_counter()
    solution = solve(model, "dual", time_limit=1.5, progress=updates.append)
    assert time.perf_counter() - begin < 4  # a busy machine
    bounds = [update.bound for update in updates]
    assert len(bounds) > 3
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] >= solution.bound - 1e-11 * abs(solution.bound)


def test_a_start_is_kept_and_can_be_proved_optimal() -> None:
    model = glass(6, 0)
    best = solve(model, "exact")
    solution = solve(model, "dual", start=torch.from_numpy(best.assignment)[None])
    assert solution.score == best.score
    assert solution.bound == pytest.approx(best.score, abs=1e-3)
    with pytest.raises(ValueError, match=r"\(1, 36\) \(got \(1, 4\)\)"):
        solve(model, "dual", start=torch.zeros(1, 4))


@pytest.mark.parametrize("options", [{"iterations": 0}, {"tolerance": 0.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        solve(cycle_of([1.0, 1.0, 1.0]), "dual", **options)
