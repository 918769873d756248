"""Elimination: the cost of plans, refusals, and answers."""

from __future__ import annotations

import math
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, read_model, solve
from fgnn.infer.exact.plan import ExactPlan
from fgnn.infer.exact.shapes import DenseShape, ListedShape
from fgnn.infer.exact.solver import exact_plan
from tests.infer.oracle import best_score, chain


def plan_of(*models: GraphicalModel, **options: int) -> ExactPlan:
    return exact_plan(ModelBatch.stack(models), **options)


def grid(side: int, seed: int = 0) -> GraphicalModel:
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * side**2)
    model.add_unaries(rng.normal(size=2 * side**2))
    at = np.arange(side**2).reshape(side, side)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], 1)
    model.add_tables(np.concatenate([across, down]), rng.normal(size=(2 * side * (side - 1), 2, 2)))
    return model


def complete(n: int) -> GraphicalModel:
    model = GraphicalModel([2] * n)
    scopes = np.array([(i, j) for i in range(n) for j in range(i)])
    model.add_tables(scopes, np.random.default_rng(n).normal(size=(len(scopes), 2, 2)))
    return model


# ---- cost of a plan -------------------------------------------------------------------------------------------------


def test_windows_of_20_with_at_most_5_ones_cost_their_feasible_states() -> None:
    plan = plan_of(chain(0, length=60, window=20, at_most=5))
    assert plan.steps is not None
    assert plan.width == 19
    feasible = sum(math.comb(19, k) for k in range(6))
    assert feasible == 16_664
    assert max(step.shape.rows for step in plan.steps) == feasible
    assert plan.states == sum(math.comb(20, k) for k in range(6))  # with the variable that a step eliminates


def test_a_longer_chain_costs_more_in_proportion_and_shares_its_steps() -> None:
    short, long = plan_of(chain(0, length=100)), plan_of(chain(0, length=1000))
    assert short.steps is not None
    assert long.steps is not None
    inner = math.comb(8, 0) + sum(math.comb(8, k) for k in range(1, 6))
    assert long.total_states - short.total_states == 900 * inner
    assert len({id(step.shape) for step in long.steps}) == len({id(step.shape) for step in short.steps}) < 20


def test_one_budget_over_thousands_of_variables_is_counted_not_listed() -> None:
    rng = np.random.default_rng(1)
    n, k = 2000, 3
    model = GraphicalModel([2] * n)
    values = rng.normal(size=(n, 2))
    model.add_unaries(values)
    model.add_budget(range(n), at_most=k)
    plan = plan_of(model)
    assert plan.total_states < 30 * n
    gain = np.sort(values[:, 1] - values[:, 0])[::-1][:k]
    assert solve(model, "exact").score == pytest.approx(values[:, 0].sum() + gain.clip(0).sum(), abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (150, 160), (197, 200), (3, 200), (90, 110)])
def test_counting_takes_the_cheaper_side(low: int, high: int) -> None:
    """At least 197 of 200 is at most 3 zeros; a one-sided bound needs no exact count beyond it."""
    rng = np.random.default_rng(low)
    model = GraphicalModel([2] * 200)
    values = rng.normal(size=(200, 2))
    model.add_unaries(values)
    model.add_budget(range(200), high, at_least=low)
    gain = np.sort(values[:, 1] - values[:, 0])[::-1]
    ones = min(max(int((gain > 0).sum()), low), high)
    assert solve(model, "exact").score == pytest.approx(values[:, 0].sum() + gain[:ones].sum(), abs=1e-9)
    if (low, high) in ((0, 4), (197, 200), (3, 200)):
        assert plan_of(model).states <= 2 * 5 * 5


def test_a_forest_with_a_budget_over_all_of_it() -> None:
    rng = np.random.default_rng(2)
    model = GraphicalModel([2] * 18)
    model.add_unaries(rng.normal(size=36))
    for i in range(1, 18):
        if i % 6:
            model.add_table(((i - 1) // 2 if i < 6 else i - 1, i), rng.normal(size=(2, 2)))
    model.add_budget(range(18), at_most=6, at_least=4)
    assert solve(model, "exact").score == pytest.approx(best_score(model), abs=1e-9)


def test_a_grid_is_eliminated_along_its_short_side() -> None:
    plan = plan_of(grid(14))
    assert plan.width <= 15
    assert plan.steps is not None
    assert all(isinstance(step.shape, DenseShape) for step in plan.steps)


def test_evidence_and_forbidden_states_shrink_the_work() -> None:
    model = grid(12)
    middle = {6 * 12 + j: j % 2 for j in range(12)}
    assert plan_of(model.condition(middle)).total_states < plan_of(model).total_states / 50


def test_states_that_every_model_forbids_are_skipped() -> None:
    """A clique of equalities between binary variables has two states, whatever its size."""
    n = 24
    equal = np.where(np.eye(2, dtype=bool), 0.0, -np.inf)
    model = GraphicalModel([2] * n)
    for i in range(n):
        for j in range(i):
            model.add_table((i, j), equal)
    model.add_unary(5, [0.0, 1.0])
    plan = plan_of(model)
    assert plan.steps is not None
    assert plan.width == n - 1
    assert all(isinstance(step.shape, ListedShape) for step in plan.steps)
    assert plan.states == 2
    assert solve(model, "exact").assignment.tolist() == [1] * n


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_too_large_names_width_states_and_memory() -> None:
    fits = plan_of(grid(12))
    message = (
        f"at most 1,024 joint states a step within 4.0 GiB (got induced width {fits.width}, {fits.states:,} states"
    )
    with pytest.raises(ValueError, match=re.escape(message) + r" in the largest step, about [\d.,]+ [KM]iB\)"):
        solve(grid(12), "exact", max_states=1024, memory=4 << 30)


def test_a_hopeless_width_is_refused_by_counting() -> None:
    """Refused before anything of the size of a step is allocated: this one would have 2^90 states."""
    with pytest.raises(ValueError, match=r"induced width \d+, 1,\d{3}(,\d{3}){8} states"):
        solve(complete(90), "exact")


def test_too_large_by_memory() -> None:
    with pytest.raises(ValueError, match=re.escape("within 64.0 KiB")):
        solve(grid(12), "exact", memory=1 << 16)


def test_a_list_that_grows_too_long_is_refused_too() -> None:
    model = complete(24)
    for seed in range(4):
        model.add_budget(np.random.default_rng(seed).permutation(24)[:16], at_most=4)
    assert plan_of(model).states > 2000
    with pytest.raises(ValueError, match="induced width 23"):
        solve(model, "exact", max_states=2000)


# ---- answers --------------------------------------------------------------------------------------------------------


def test_models_of_a_batch_are_proved_infeasible_separately() -> None:
    def model(forbidden: bool) -> GraphicalModel:
        m = GraphicalModel([2, 2, 2])
        m.add_table((0, 1), [[0.0, 1.0], [2.0, -np.inf]])
        m.add_unary(0, [-np.inf if forbidden else 0.0, 1.0])
        m.add_unary(1, [-np.inf if forbidden else 0.0, 1.0])
        return m

    both = solve(ModelBatch.stack([model(False), model(True)]), "exact")
    assert both.status == ["optimal", "infeasible"]
    assert both.bound.tolist() == [both.score[0].item(), -np.inf]
    alone = solve(model(True), "exact")
    assert (alone.status, alone.bound) == ("infeasible", -np.inf)


def test_budgets_that_contradict_are_infeasible() -> None:
    model = GraphicalModel([2] * 6)
    model.add_budget((0, 1, 2, 3), at_most=1)
    model.add_budget((2, 3, 4, 5), at_most=1)
    model.add_budget(range(6), at_least=3)
    assert solve(model, "exact").status == "infeasible"


def test_ties_go_to_the_lowest_state() -> None:
    model = GraphicalModel([3, 2, 4])
    assert solve(model, "exact").assignment.tolist() == [0, 0, 0]
    model.add_table((0, 2), np.zeros((3, 4)))
    model.add_unary(2, [0.0, 1.0, 1.0, 0.0])
    assert solve(model, "exact").assignment.tolist() == [0, 0, 1]


def test_a_hub_with_thousands_of_neighbours() -> None:
    """All leaves share one neighbour: thousands of lists and tables are added up at once, not pair by pair."""
    rng = np.random.default_rng(5)
    leaves = 3000
    model = GraphicalModel([2] * (leaves + 1))
    values = rng.normal(size=(leaves, 2, 2))
    values[rng.random(values.shape) < 0.1] = -np.inf
    values[:, 0, 0] = 0.0
    values[:, 1, 1] = rng.random(leaves)
    model.add_tables(np.stack([np.zeros(leaves, dtype=np.int64), np.arange(1, leaves + 1)], 1), values)
    assert solve(model, "exact").score == pytest.approx(values.max(2).sum(0).max(), abs=1e-9)


def test_the_same_answer_every_time() -> None:
    batch = ModelBatch.stack([chain(seed, length=24) for seed in range(40)])
    first, second = (solve(batch, "exact") for _ in range(2))
    assert torch.equal(first.assignment, second.assignment)
    assert torch.equal(first.score, second.score)


def test_slices_of_a_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ModelBatch.stack([chain(seed, length=16) for seed in range(30)])
    whole = solve(batch, "exact")
    monkeypatch.setattr("fgnn.infer.exact.solver._CPU_SLICE", 360)  # three models at a time
    assert torch.equal(solve(batch, "exact").assignment, whole.assignment)
    assert torch.equal(solve(batch, "exact", memory=20_000).assignment, whole.assignment)


def test_float32_models_are_added_up_in_float64() -> None:
    batch = ModelBatch.stack([chain(seed, length=14) for seed in range(8)], dtype=torch.float32)
    exact, brute = solve(batch, "exact"), solve(batch, "brute-force")
    torch.testing.assert_close(exact.score, brute.score, rtol=0, atol=1e-12)
    rough = solve(batch, "exact", dtype=torch.float32)
    torch.testing.assert_close(rough.score, brute.score, rtol=0, atol=1e-5)


def test_bounds_of_budgets_may_differ_between_models() -> None:
    rng = np.random.default_rng(3)
    models = []
    for _ in range(12):
        model = GraphicalModel([2] * 12)
        model.add_unaries(rng.normal(size=24) + 0.5)
        for i in range(8):
            model.add_budget(range(i, i + 5), at_most=int(rng.integers(1, 6)))
        models.append(model)
    solutions = solve(ModelBatch.stack(models), "exact")
    for b, model in enumerate(models):
        assert solutions.score[b].item() == pytest.approx(best_score(model), abs=1e-9)


def test_large_cardinalities_and_empty_models() -> None:
    rng = np.random.default_rng(4)
    model = GraphicalModel([300, 2, 300])
    values = rng.normal(size=(300, 2, 300))
    model.add_table((0, 1, 2), values)
    assert solve(model, "exact").score == values.max()
    assert solve(GraphicalModel([]), "exact").status == "optimal"
    assert solve(GraphicalModel([1, 1]), "exact").assignment.tolist() == [0, 0]
    empty = ModelBatch.stack([model]).select(slice(0, 0))
    assert len(solve(empty, "exact")) == 0


def test_the_time_limit_is_respected_and_reported() -> None:
    solution = solve(grid(18), "exact", time_limit=0.01)
    assert solution.status == "time-limit"
    assert solution.bound > solution.score + 1


@pytest.mark.data
def test_a_pedigree_is_solved_through_its_few_feasible_states(data_dir: Path, tmp_path: Path) -> None:
    name = "uai2012_pe/Pedigree/Family2Recessive.15.5loci.uai"
    with tarfile.open(data_dir / "map_benchmarks" / "uai2012_pe.tar.xz") as archive:
        for member in (name, name + ".evid"):
            archive.extract(member, tmp_path, filter="data")
    model = read_model(tmp_path / name, evidence=tmp_path / (name + ".evid"))
    assert plan_of(model).states < 1 << 16
    solution = solve(model, "exact")
    assert solution.status == "optimal"
    assert solution.score / math.log(10) == pytest.approx(-25.672052, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_gives_the_cpu_answer() -> None:
    batch = ModelBatch.stack([chain(seed) for seed in range(50)])
    cpu, gpu = solve(batch, "exact"), solve(batch, "exact", device="cuda")
    assert torch.equal(cpu.assignment, gpu.assignment.cpu())
    torch.testing.assert_close(cpu.score, gpu.score.cpu(), rtol=1e-12, atol=0)  # sums in another order
    one = grid(12)
    assert solve(one, "exact").assignment.tolist() == solve(one, "exact", device="cuda").assignment.tolist()
