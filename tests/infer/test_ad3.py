"""ad3 solves the relaxation that lp solves, bounds the optimum at any time, and its search is exact."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.infer.ad3 import solver
from fgnn.infer.ad3.layout import TableLayout
from fgnn.infer.ad3.projections import (
    PairTerms,
    cell_weight,
    project_consistent,
    project_counts,
    project_pairs,
    project_simplex,
)
from tests.infer.oracle import best_score, chain
from tests.strategies import models, tree_models


@given(models())
def test_its_value_is_that_of_the_linear_program(model: GraphicalModel) -> None:
    solution, exact = fgnn.solve(model, "ad3"), fgnn.solve(model, "lp")
    best = best_score(model)
    assert solution.bound >= best - 1e-9 * max(1.0, abs(best))
    assert solution.converged
    assert solution.bound == pytest.approx(exact.bound, rel=1e-4, abs=1e-6)
    if solution.status == "optimal":
        assert solution.score == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(models(max_variables=6, max_cardinality=3))
@settings(max_examples=30)
def test_branch_and_bound_is_exact(model: GraphicalModel) -> None:
    best = best_score(model)
    solution = fgnn.solve(model, "ad3", branch_and_bound=True)
    assert solution.status == ("optimal" if best > -np.inf else "infeasible")
    assert solution.score == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert solution.bound == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert solution.gap <= 1e-9


@given(tree_models())
@settings(max_examples=20)
def test_trees_are_solved_by_the_relaxation(model: GraphicalModel) -> None:
    solution = fgnn.solve(model, "ad3")
    assert solution.bound == pytest.approx(best_score(model), rel=1e-4, abs=1e-6)


def test_branch_and_bound_closes_the_gap_of_a_frustrated_triangle() -> None:
    model = GraphicalModel([3, 3, 3])
    for scope in ((0, 1), (1, 2), (0, 2)):
        model.add_table(scope, -np.eye(3))
    for i in range(3):
        model.add_unary(i, [0.0, 0.0, -5.0])
    relaxed = fgnn.solve(model, "ad3")
    searched = fgnn.solve(model, "ad3", branch_and_bound=True)
    assert relaxed.bound == pytest.approx(fgnn.solve(model, "lp").bound, rel=1e-4, abs=1e-4)
    assert relaxed.bound > best_score(model) + 0.5
    assert (searched.status, searched.score) == ("optimal", best_score(model))


def test_infeasible_models_are_proved_infeasible() -> None:
    forced = GraphicalModel([2] * 6)
    forced.add_budget((0, 1, 2), at_most=3, at_least=2)
    forced.add_budget((3, 4, 5), at_most=3, at_least=2)
    forced.add_budget(range(6), at_most=3)  # four ones needed, three allowed: no factor alone shows it
    odd = GraphicalModel([2, 2, 2])
    for scope in ((0, 1), (1, 2), (0, 2)):
        odd.add_table(scope, [[-np.inf, 0.0], [0.0, -np.inf]])  # all three differ: only the search shows it
    empty = GraphicalModel([3, 2])
    empty.add_table((0, 1), np.full((3, 2), -np.inf))
    for model, search in ((forced, False), (forced, True), (odd, True), (empty, False), (empty, True)):
        solution = fgnn.solve(model, "ad3", branch_and_bound=search)
        assert (solution.status, solution.bound) == ("infeasible", -np.inf)


def test_models_without_factors_or_choices() -> None:
    lone = GraphicalModel([2, 4, 1])
    lone.add_unary(0, [0.0, -1.0])
    lone.add_unary(1, [0.0, 3.0, 2.0, -np.inf])
    lone.add_unary(2, [0.5])
    for search in (False, True):
        solution = fgnn.solve(lone, "ad3", branch_and_bound=search)
        assert (solution.status, solution.score, solution.assignment.tolist()) == ("optimal", 3.5, [0, 1, 0])
        assert fgnn.solve(GraphicalModel([]), "ad3", branch_and_bound=search).status == "optimal"
        assert fgnn.solve(GraphicalModel([1, 1]), "ad3", branch_and_bound=search).status == "optimal"


@pytest.fixture(scope="module")
def chains() -> ModelBatch:
    return ModelBatch.stack([chain(seed) for seed in range(60)])


def test_chains_converge_to_the_linear_program(chains: ModelBatch) -> None:
    exact = fgnn.solve(chains, "lp")
    result = fgnn.solve(chains, "ad3")
    assert bool(result.converged.all())
    gap = (result.bound - exact.bound) / exact.bound
    assert float(gap.min()) > -1e-9
    assert float(gap.max()) < 1e-4
    rounded = fgnn.solve(chains, "ad3", rounding="argmax")
    assert float((rounded.assignment == exact.assignment).double().mean()) > 0.97


def test_rounding_best_is_feasible_where_any_rounding_was(chains: ModelBatch) -> None:
    best, last = (fgnn.solve(chains, "ad3", rounding=r) for r in ("best", "argmax"))
    assert bool((best.score >= last.score).all())
    assert int(best.feasible.sum()) > int(last.feasible.sum())


def test_relaxation_rounds_four_of_five_variables_right_and_the_search_all(chains: ModelBatch) -> None:
    some = chains.select(slice(0, 30))
    exact = fgnn.solve(some, "ad3", branch_and_bound=True)
    assert exact.status == ["optimal"] * 30
    for method, options in (("lp", {}), ("ad3", {"rounding": "argmax"})):
        rounded = fgnn.solve(some, method, **options)
        assert 0.72 < float((rounded.assignment == exact.assignment).double().mean()) < 0.88


def test_the_search_agrees_with_toulbar2(chains: ModelBatch) -> None:
    pytest.importorskip("pytoulbar2")
    some = chains.select(slice(0, 12))
    ours, theirs = fgnn.solve(some, "ad3", branch_and_bound=True), fgnn.solve(some, "toulbar2")
    assert ours.score.tolist() == pytest.approx(theirs.score.tolist(), rel=1e-9)


def test_a_batch_answers_as_its_models_do_whatever_its_chunks(
    chains: ModelBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = chains.select(slice(0, 20))
    whole = fgnn.solve(some, "ad3")
    monkeypatch.setattr(solver, "_FIRST_WAVE", 100)
    monkeypatch.setattr(solver, "_chunk", lambda batch, layout: 6)
    chunked = fgnn.solve(some, "ad3")
    assert bool(chunked.converged.all())
    assert chunked.bound.tolist() == pytest.approx(whole.bound.tolist(), rel=1e-4)
    alone = [fgnn.solve(some.model(b), "ad3").bound for b in range(4)]
    assert alone == pytest.approx(whole.bound[:4].tolist(), rel=1e-4)
    searched = fgnn.solve(some.select(slice(0, 8)), "ad3", branch_and_bound=True)
    assert searched.status == ["optimal"] * 8


def test_models_of_a_batch_may_forbid_different_entries() -> None:
    rng = np.random.default_rng(0)
    each = []
    for _ in range(5):
        model = GraphicalModel([2, 2, 3, 2])
        for scope in ((0, 1), (1, 2), (2, 3), (0, 3)):
            shape = [int(model.cardinalities[i]) for i in scope]
            model.add_table(scope, np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(size=shape)))
        model.add_unary(int(rng.integers(2)), [-np.inf, 0.0])
        model.add_budget((0, 1, 3), at_most=2, at_least=1)
        each.append(model)
    result = fgnn.solve(ModelBatch.stack(each), "ad3")
    exact = [fgnn.solve(m, "lp").bound for m in each]
    assert result.bound.tolist() == pytest.approx(exact, rel=1e-4, abs=1e-6)


def test_the_bound_holds_however_early_it_stops(chains: ModelBatch) -> None:
    exact = fgnn.solve(chains, "lp")
    for iterations in (1, 10, 60):
        result = fgnn.solve(chains, "ad3", iterations=iterations)
        assert bool((result.bound >= exact.bound - 1e-9).all())
        assert not bool(result.converged.all())
        assert int(result.iterations.max()) <= iterations


def test_the_time_limit_returns_the_best_so_far_with_a_bound() -> None:
    long = ModelBatch.stack([chain(0, length=400), chain(1, length=400)])
    for search in (False, True):
        begin = time.monotonic()
        reports: list[fgnn.infer.Progress] = []
        result = fgnn.solve(
            long, "ad3", time_limit=0.3, tolerance=1e-12, branch_and_bound=search, progress=reports.append
        )
        assert time.monotonic() - begin < 5.0
        assert result.status == ["time-limit"] * 2
        assert bool((result.bound < np.inf).all())


def test_more_nodes_than_allowed_leave_an_honest_bound(chains: ModelBatch) -> None:
    some = chains.select(slice(0, 10))
    exact = fgnn.solve(some, "ad3", branch_and_bound=True)
    cut = fgnn.solve(some, "ad3", branch_and_bound=True, max_nodes=1)
    assert bool((cut.bound >= exact.score - 1e-9).all())
    assert "feasible" in cut.status or "infeasible" in cut.status


@pytest.mark.gpu
def test_a_gpu_answers_as_the_cpu_does(chains: ModelBatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    here, there = fgnn.solve(chains, "ad3"), fgnn.solve(chains, "ad3", device="cuda")
    assert bool(there.converged.all())
    assert there.bound.tolist() == pytest.approx(here.bound.tolist(), rel=1e-4)
    some = chains.select(slice(0, 10))
    here, there = (fgnn.solve(some, "ad3", device=d, branch_and_bound=True) for d in ("cpu", "cuda"))
    assert there.score.tolist() == pytest.approx(here.score.tolist(), rel=1e-9)


def test_options_are_checked() -> None:
    model = GraphicalModel([2])
    with pytest.raises(ValueError, match="Expected the rounding best or argmax"):
        fgnn.solve(model, "ad3", rounding="up")
    with pytest.raises(ValueError, match="Expected a positive tolerance"):
        fgnn.solve(model, "ad3", tolerance=0.0)
    with pytest.raises(ValueError, match="Expected at least one iteration"):
        fgnn.solve(model, "ad3", iterations=0)


# ---- projections --------------------------------------------------------------------------------------------


def _nearest_in_count(a: np.ndarray, low: int, high: int) -> np.ndarray:
    inside = a.clip(0, 1)
    if low <= inside.sum() <= high:
        return inside
    target = high if inside.sum() > high else low
    left, right = a.min() - 1.0, a.max()
    for _ in range(100):
        middle = (left + right) / 2
        left, right = (middle, right) if (a - middle).clip(0, 1).sum() > target else (left, middle)
    return (a - right).clip(0, 1)


@pytest.mark.parametrize("size", [1, 2, 8, 40])
def test_counts_are_projected_within_a_few_calls(size: int) -> None:
    rng = np.random.default_rng(size)
    count = 60
    a = rng.normal(size=(count, size)) * rng.choice([0.3, 1.0, 6.0], size=(count, 1))
    a[:10] = np.round(a[:10, :1])  # ties, also far from the box, where Newton alone runs in circles
    low = rng.integers(0, size + 1, count)
    high = np.array([rng.integers(x, size + 1) for x in low])
    target = torch.from_numpy(a)[:, :, None]
    bounds = [torch.from_numpy(x.astype(np.float64))[:, None, None] for x in (low, high)]
    tau, out = torch.zeros(count, 1, 1, dtype=torch.float64), torch.empty_like(target)
    for _ in range(25):
        tau = project_counts(target, bounds[0], bounds[1], tau, out)
    expected = np.stack([_nearest_in_count(a[c], int(low[c]), int(high[c])) for c in range(count)])
    assert np.abs(out[:, :, 0].numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_pairs_are_projected_in_closed_form(sign: float) -> None:
    rng = np.random.default_rng(1)
    a, b, alpha, beta, gamma = (torch.from_numpy(rng.normal(size=(30, 1))) for _ in range(5))
    if sign:
        gamma = sign * gamma.abs()
    u, v = torch.empty_like(a), torch.empty_like(b)
    project_pairs(a, b, PairTerms.of(alpha, beta, gamma), u, v)

    def value(u: Tensor, v: Tensor) -> Tensor:
        both = torch.where(gamma >= 0, torch.minimum(u, v), (u + v - 1).clamp(min=0))
        return alpha * u + beta * v + gamma * both - ((u - a) ** 2 + (v - b) ** 2) / 2

    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    others = value(grid.repeat(101)[None], grid.repeat_interleave(101)[None])
    assert bool((value(u, v) >= others.amax(1, keepdim=True) - 1e-12).all())


def test_simplices_are_projected_and_forbidden_entries_stay_empty() -> None:
    rng = np.random.default_rng(2)
    v = torch.from_numpy(rng.normal(size=(50, 9, 1)) * 3)
    v[::3, 4] = -torch.inf
    tau = torch.full((50, 1, 1), 1e3, dtype=torch.float64)
    for _ in range(3):
        x, tau = project_simplex(v, tau)
    ordered = v.sort(1, descending=True).values
    excess = (ordered.nan_to_num(neginf=-1e9).cumsum(1) - 1) / torch.arange(1, 10)[None, :, None]
    threshold = excess.gather(1, ((ordered > excess).sum(1, keepdim=True) - 1))
    assert torch.allclose(x, (v - threshold).clamp(min=0), atol=1e-9)


def test_consistent_tables_are_the_nearest() -> None:
    rng = np.random.default_rng(3)
    shape = (2, 3, 4)
    table = TableLayout(
        0, torch.zeros(1, dtype=torch.int64), shape, (slice(0, 1), slice(1, 4), slice(4, 8)), slice(0, 24)
    )
    cells = rng.random(shape)
    cells /= cells.sum()
    edges = [rng.random(1), *(x / x.sum() for x in (rng.random(3), rng.random(4)))]
    mu, q = project_consistent(
        table, torch.from_numpy(cells)[None, ..., None], [torch.from_numpy(e)[None, :, None] for e in edges]
    )
    marginal = [mu[0, ..., 0].sum([x for x in range(3) if x != a]) for a in range(3)]
    assert torch.allclose(q[0][0, 0, 0], marginal[0][1])
    assert torch.allclose(q[1][0, :, 0], marginal[1])
    assert torch.allclose(q[2][0, :, 0], marginal[2])

    # the same by least squares over all tables that sum to 1
    weight = cell_weight(table) ** 0.5
    one_hot = np.eye(24).reshape(24, *shape)
    rows = [weight * np.eye(24), one_hot.sum((2, 3))[:, 1:].T, one_hot.sum((1, 3)).T, one_hot.sum((1, 2)).T]
    right = [weight * cells.ravel(), *edges]
    lagrangian = np.block(
        [
            [np.concatenate(rows).T @ np.concatenate(rows), np.ones((24, 1))],
            [np.ones((1, 24)), np.zeros((1, 1))],
        ]
    )
    best = np.linalg.solve(lagrangian, np.append(np.concatenate(rows).T @ np.concatenate(right), 1.0))[:24]
    assert np.abs(mu[0, ..., 0].numpy().ravel() - best).max() < 1e-9
