"""Factors that depend on a sum, of whatever kind, by elimination: in both semirings and on every path of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.infer import best_assignments, log_partition, marginals, sample
from fgnn.infer.exact import ways
from fgnn.infer.exact.allowed_states import allowed_states
from fgnn.infer.exact.counters import choose_counters, problem_graph
from fgnn.infer.exact.domains import propagate
from fgnn.infer.exact.log_sum import LogSum
from fgnn.infer.exact.max_marginals import max_marginals
from fgnn.infer.exact.order import Order, min_fill
from fgnn.infer.exact.parts import take_apart
from fgnn.infer.exact.plan import build_plan
from fgnn.infer.exact.problem import Problem, Sums, free_problem, sum_up
from fgnn.infer.exact.run import run_plan
from fgnn.infer.exact.solver import OutOfTime, TooLarge, exact_plan, in_slices
from fgnn.infer.exact.states import TooManyStates
from fgnn.infer.exact.ways import log2_completions, log2_within
from fgnn.pgm import Kind
from fgnn.pgm.factors import Counter
from tests.infer.test_agreement import OPTIONS, PATHS, taking


@dataclass(frozen=True)
class Scored(Kind):
    """A log-potential for every weighted sum, modulo a number or not: a counter that does more than forbid."""

    weights: tuple[tuple[int, ...], ...]
    modulus: int
    name: ClassVar[str] = "scored"
    numbers: ClassVar[Mapping[str, type]] = {"scores": float}

    def check(self, shape: tuple[int, ...], numbers: Mapping[str, Any]) -> None:
        pass

    def potentials(self, shape: tuple[int, ...], numbers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return numbers["scores"]

    def score(self, shape: tuple[int, ...], x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        total = sum(torch.tensor(w)[x[..., a]] for a, w in enumerate(self.weights))
        assert isinstance(total, torch.Tensor)
        total = total % self.modulus if self.modulus else total
        theta = theta.expand(*total.shape, theta.shape[-1])
        return theta.gather(-1, total[..., None]).squeeze(-1)

    def counter(self, shape: tuple[int, ...]) -> Counter:
        return Counter(self.weights, np.arange(self.num_sums), self.modulus)

    @property
    def num_sums(self) -> int:
        return self.modulus or 1 + sum(map(max, self.weights))


@st.composite
def batches(draw: st.DrawFn, max_variables: int = 7) -> ModelBatch:
    """Models of one structure with counters of all sorts, which differ in all numbers that a kind lets differ."""
    n = draw(st.integers(1, max_variables))
    cards = draw(st.lists(st.sampled_from((2, 2, 2, 3, 1)), min_size=n, max_size=n))
    binary = [i for i, k in enumerate(cards) if k == 2]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stacked = [GraphicalModel(cards) for _ in range(draw(st.integers(1, 3)))]
    alike = draw(st.booleans())  # whether the models agree on what their constraints allow
    for model in stacked:
        unary = rng.normal(size=sum(cards))
        model.add_unaries(np.where(rng.random(len(unary)) < 0.1, -np.inf, unary))
    for _ in range(draw(st.integers(0, 3))):
        pair = rng.permutation(n)[:2].tolist()
        for model in stacked:
            model.add_table(pair, rng.normal(size=[cards[i] for i in pair]))
    for sort in draw(st.lists(st.sampled_from(("linear", "parity", "scored", "residues", "budget")), max_size=4)):
        among = binary if sort in ("parity", "budget") else list(range(n))
        if not among:
            continue
        scope = rng.permutation(among)[: draw(st.integers(1, len(among)))].tolist()
        weights = [np.append(0, rng.integers(0, 4, size=cards[i] - 1))[rng.permutation(cards[i])] for i in scope]
        reach = sum(int(w.max()) for w in weights)
        low, high = sorted(rng.integers(0, reach + 1, size=2).tolist())
        kind = Scored(tuple(tuple(w.tolist()) for w in weights), 3 if sort == "residues" else 0)
        padded = np.zeros((len(scope), max(cards)), dtype=np.int64)
        for row, w in zip(padded, weights, strict=True):
            row[: len(w)] = w
        allowed = rng.random((len(stacked), kind.num_sums)) < 0.7
        allowed[allowed.any(1) == 0] = True
        bit, few = int(rng.integers(2)), int(rng.integers(len(scope) + 1))
        for b, model in enumerate(stacked):
            if sort == "linear":
                model.add_linear(scope, padded, at_least=low, at_most=high)
            elif sort == "parity":
                model.add_parity(scope, bit if alike else int(rng.integers(2)))
            elif sort == "budget":
                model.add_budget(scope, few if alike else int(rng.integers(len(scope) + 1)))
            else:
                scores = np.zeros(kind.num_sums) if alike else rng.normal(size=kind.num_sums)
                model.add_factors(kind, [scope], scores=np.where(allowed[0 if alike else b], scores, -np.inf)[None])
    return ModelBatch.stack(stacked)


def truth(batch: ModelBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """log Z (B,) and the probabilities of states (B, N, K), by enumeration."""
    cells = torch.cartesian_prod(*(torch.arange(int(k)) for k in batch.cardinalities)).view(-1, batch.num_variables)
    scores = batch.score(cells.expand(len(batch), -1, -1))
    log_z = scores.logsumexp(1)
    weight = torch.exp(scores - log_z[:, None]).nan_to_num(0.0)
    states = torch.nn.functional.one_hot(cells, batch.unary.shape[2]).double()  # shape: (S, N, K)
    return log_z, torch.einsum("bs,snk->bnk", weight, states)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_both_semirings_agree_with_enumeration(path: str, batch: ModelBatch) -> None:
    log_z, marginal = truth(batch)
    best = solve(batch, "brute-force").score
    with taking(path):
        plan = build_plan(allowed_states(batch), **OPTIONS.get(path, {}))
        if plan.steps is None:
            assert bool((best == -torch.inf).all())
            return
        assignment, value = run_plan(plan, batch, torch.float64)
        total = LogSum(plan, batch, torch.float64)
    torch.testing.assert_close(batch.score(assignment), best, rtol=0, atol=1e-9)
    torch.testing.assert_close(value, best, rtol=0, atol=1e-9)
    torch.testing.assert_close(total.log_z, log_z, rtol=0, atol=1e-9)
    torch.testing.assert_close(total.gradient(torch.ones_like(log_z))[0], marginal, rtol=0, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(batch=batches(max_variables=5))
def test_every_use_of_a_plan_agrees_with_enumeration(batch: ModelBatch) -> None:
    log_z, marginal = truth(batch)
    possible = ~log_z.isneginf()
    torch.testing.assert_close(log_partition(batch, "exact").value, log_z, rtol=0, atol=1e-9)
    for i, p in enumerate(marginals(batch, "exact").variables):
        torch.testing.assert_close(p[possible], marginal[possible, i, : p.shape[1]], rtol=0, atol=1e-9)
    bound = marginals(batch, "mini-bucket").bound
    assert bool((bound >= log_z - 1e-9).all())
    model = batch.model(0)
    cells = np.indices(tuple(model.cardinalities)).reshape(model.num_variables, -1).T
    scores = np.sort(model.score(cells))[::-1]
    found, values = best_assignments(model, 5)
    np.testing.assert_allclose(values, scores[np.isfinite(scores)][:5], atol=1e-9)
    np.testing.assert_allclose(model.score(found), values, atol=1e-9)
    if np.isfinite(scores).any():
        assert np.isfinite(model.score(sample(model, 20))).all()
    if set(model.cardinalities.tolist()) == {2}:
        scores = np.asarray(model.score(cells))
        by_state = [[scores[cells[:, i] == k].max() for k in range(2)] for i in range(cells.shape[1])]
        np.testing.assert_allclose(max_marginals(batch)[0].numpy(), by_state, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(batch=batches(max_variables=6))
def test_propagation_keeps_every_feasible_state(batch: ModelBatch) -> None:
    live = propagate(allowed_states(batch))
    occurs = (truth(batch)[1] > 0).any(0).numpy()
    if live is None:
        assert not occurs.any()
    else:
        assert not (occurs & ~live).any()


def test_propagation_uses_weights_residues_and_gaps() -> None:
    model = GraphicalModel([2, 2, 3])
    model.add_linear([0, 1, 2], [5, 2, 1], at_most=4)  # the first is too heavy
    model.add_linear([1, 2], [2, 1], at_least=3)  # the second is needed
    model.add_parity([0, 1], 1)
    live = propagate(allowed_states(ModelBatch.stack([model])))
    assert live is not None
    np.testing.assert_array_equal(live, [[True, False, False], [False, True, False], [False, True, True]])
    parity = GraphicalModel([2, 2])
    parity.add_unary(0, [0.0, -np.inf])
    parity.add_parity([0, 1], 1)
    live = propagate(allowed_states(ModelBatch.stack([parity])))
    np.testing.assert_array_equal(live, [[True, False], [False, True]])
    gap = GraphicalModel([2, 3])
    gap.add_unary(0, [-np.inf, 0.0])
    gap.add_factors(Scored(((0, 2), (0, 1, 2)), 0), [[0, 1]], scores=[[0.0, 0.0, -np.inf, 1.0, 1.0]])
    live = propagate(allowed_states(ModelBatch.stack([gap])))
    np.testing.assert_array_equal(live, [[False, True, False], [False, True, True]])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_joint_states_are_counted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = tuple((0, *rng.integers(0, 5, size=rng.integers(1, 3)).tolist()) for _ in range(rng.integers(1, 6)))
    sums = sum_up(weights).ravel()
    low, high = sorted(rng.integers(0, sums.max() + 1, size=2).tolist())
    inside = int(((sums >= low) & (sums <= high)).sum())
    assert log2_within(weights, low, high) == pytest.approx(np.log2(max(1, inside)), abs=1e-9)
    modulus = int(rng.integers(2, 5))
    allowed = rng.random(modulus) < 0.5
    rule = Sums(0, int(sums.max()), 1, modulus, allowed.tobytes())
    assert rule.allow(sums).tolist() == allowed[(sums + 1) % modulus].tolist()
    by_shift = [int(allowed[(sums + 1 + shift) % modulus].sum()) for shift in range(modulus)]
    for rest, most in ((0, by_shift[0]), (modulus, max(by_shift))):
        assert log2_completions(weights, rule, rest) == pytest.approx(np.log2(max(1, most)), abs=1e-9)


def test_counting_joint_states_keeps_few_large_arrays() -> None:
    for first in range(70):
        weights = tuple((0, first + 50 * i) for i in range(1, 30))
        share = ways._shares(weights)
        assert len(share) == 1 + sum(map(max, weights))
        assert share.sum() == pytest.approx(1.0)
    assert ways._shares.cache_info().currsize <= 64
    assert ways._few_shares.cache_info().maxsize * ways._FEW_SUMS * 8 <= 1 << 24


def test_scores_of_sums_have_gradients_even_where_they_are_zero() -> None:
    kind = Scored(((0, 1), (0, 2), (0, 1)), 0)
    model = GraphicalModel([2] * 4)
    model.add_unaries(np.random.default_rng(0).normal(size=8))
    model.add_factors(kind, [[0, 1, 2], [1, 2, 3]], scores=np.zeros((2, 5)))
    batch = ModelBatch.stack([model, model])
    scores = torch.randn(2, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for start in (torch.zeros_like(scores), scores):
        start.requires_grad_(True)

        def log_z(numbers: torch.Tensor) -> torch.Tensor:
            (group,) = batch.structured
            learned = batch.with_factors([replace(group, numbers={"scores": numbers})])
            value = log_partition(learned, "exact").value
            assert isinstance(value, torch.Tensor)
            return value

        assert torch.autograd.gradcheck(log_z, start)


def test_a_parity_check_over_many_variables_has_two_states_a_step() -> None:
    n = 300
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * n)
    values = rng.normal(size=(n, 2))
    model.add_unaries(values)
    model.add_parity(range(n), 1)
    plan = exact_plan(ModelBatch.stack([model]))
    assert plan.total_states <= 8 * n
    gap = np.abs(values[:, 1] - values[:, 0])
    wrong = (values.argmax(1).sum() % 2) != 1
    assert solve(model, "exact").score == pytest.approx(values.max(1).sum() - wrong * gap.min(), abs=1e-9)


def test_a_code_is_decoded_by_the_states_of_its_checks() -> None:
    """A trellis has a state for every syndrome so far, in the order of the variables."""
    n, checks = 30, 8
    rng = np.random.default_rng(7)
    model = GraphicalModel([2] * n)
    model.add_unaries(rng.normal(size=2 * n))
    parity = rng.random((checks, n)) < 0.5
    for row in parity:
        model.add_parity(np.flatnonzero(row).tolist(), int(rng.integers(2)))
    batch = ModelBatch.stack([model])
    assert exact_plan(batch).states <= 2 ** (checks + 1)
    target = [int(factor.numbers["value"]) for factor in model.structured()]
    best = np.full(2**checks, -np.inf)
    best[0] = 0.0
    unary = model.unaries.reshape(n, 2)
    for i in range(n):
        flip = int(sum(1 << c for c in range(checks) if parity[c, i]))
        best = np.maximum(best + unary[i, 0], best[np.arange(2**checks) ^ flip] + unary[i, 1])
    syndrome = sum(1 << c for c, bit in enumerate(target) if bit)
    assert solve(model, "exact").score == pytest.approx(best[syndrome], abs=1e-9)


def test_a_knapsack_is_solved_by_its_partial_sums() -> None:
    n, room = 60, 200
    rng = np.random.default_rng(1)
    weights, values = rng.integers(1, 40, size=n), rng.random(n)
    model = GraphicalModel([2] * n)
    model.add_unaries(np.stack([np.zeros(n), values], 1))
    model.add_linear(range(n), weights, at_most=room)
    best = np.zeros(room + 1)
    for w, v in zip(weights.tolist(), values.tolist(), strict=True):
        best[w:] = np.maximum(best[w:], best[:-w] + v)
    solution = solve(model, "exact")
    assert solution.status == "optimal"
    assert solution.score == pytest.approx(best[-1], abs=1e-9)
    assert exact_plan(ModelBatch.stack([model])).states <= 2 * 2 * (room + 1)


def test_sums_that_the_rest_completes_in_the_same_ways_are_one_state() -> None:
    """Weights of 7 and 8, and at most 20: two of them fit, so the number of ones is all that matters."""
    n = 40
    heavy, light = GraphicalModel([2] * n), GraphicalModel([2] * n)
    heavy.add_linear(range(n), [7] * n, at_most=20)
    light.add_budget(range(n), at_most=2)
    mixed = GraphicalModel([2] * n)
    mixed.add_linear(range(n), [7, 8] * (n // 2), at_most=20)
    states = [exact_plan(ModelBatch.stack([m])).total_states for m in (heavy, light, mixed)]
    assert states[0] == states[1]
    assert states[2] <= states[1]


def test_models_with_equal_scopes_and_other_weights_do_not_share_a_plan() -> None:
    for weights, best in (([1, 2, 3], 2), ([1, 1, 1], 3)):
        model = GraphicalModel([2] * 3)
        model.add_unaries([0.0, 1.0] * 3)
        model.add_linear(range(3), weights, at_most=3)
        assert solve(model, "exact").score == best


def test_components_beside_a_wide_one_keep_their_counters() -> None:
    rng = np.random.default_rng(3)
    model = GraphicalModel([2] * 26)
    model.add_unaries(rng.normal(size=52))
    wide = [(i, j) for i in range(14) for j in range(i)]
    model.add_tables(wide, rng.normal(size=(len(wide), 2, 2)))
    model.add_parity(range(14, 26), 1)
    model.add_linear(range(14, 26), rng.integers(1, 5, size=12), at_most=11)
    model.add_parity(range(14), 0)
    batch = ModelBatch.stack([model])
    with pytest.raises(TooLarge) as refused:
        exact_plan(batch, max_states=1 << 12)
    split = refused.value.split
    assert split is not None
    assert split.hard.tolist() == [True] * 14 + [False] * 12
    easy, hard = take_apart(batch, split)
    parts = [solve(part.batch, "exact") for part in (easy, hard)]
    assert float(parts[0].score + parts[1].score) == pytest.approx(solve(model, "exact").score, abs=1e-9)


def knapsacks(counters: int, size: int) -> GraphicalModel:
    model = GraphicalModel([2] * size * counters)
    for c in range(counters):
        model.add_linear(range(size * c, size * (c + 1)), np.arange(size) % 7 + 1, at_most=3 * size // 2)
    return model


def test_too_many_sums_are_refused() -> None:
    with pytest.raises(TooLarge, match="width 199"):
        exact_plan(ModelBatch.stack([knapsacks(1, 200)]), memory=64 * 1000)
    assert exact_plan(ModelBatch.stack([knapsacks(1, 200)])).states < 2000


def test_the_sums_of_all_counters_together_fit_in_memory() -> None:
    rows = sum(len(r.rows) for r in chosen(knapsacks(1, 40)).relations if r.rows is not None)
    assert chosen(knapsacks(1, 40), memory=64 * 2 * rows).limits == ()
    with pytest.raises(TooManyStates):
        chosen(knapsacks(3, 40), memory=64 * 2 * rows)


def test_partial_sums_take_memory_by_their_states_and_not_by_their_product() -> None:
    weights = np.random.default_rng(0).integers(300, 500, size=24)
    model = GraphicalModel([2] * 24)
    middle = int(weights.sum()) // 2
    model.add_linear(range(24), weights, at_least=middle - 20, at_most=middle + 20)
    problem = chosen(model)
    sums = [(r.rows, [problem.cardinalities[i] for i in r.scope]) for r in problem.relations if r.rows is not None]
    assert max(k for _, cards in sums for k in cards) > 300
    for rows, (first, second, _) in sums:
        assert len(rows) <= first * second
        assert len(np.unique(rows[:, :2], axis=0)) == len(rows)  # two terms have one sum


def test_adding_up_looks_at_the_clock() -> None:
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks > 50:
            raise OutOfTime

    with pytest.raises(OutOfTime):
        chosen(knapsacks(1, 200), check=check)


def chosen(model: GraphicalModel, **options: Any) -> Problem:
    """The problem of a model whose counters are running sums."""
    allowed = allowed_states(ModelBatch.stack([model]))
    live = propagate(allowed)
    assert live is not None

    def order(problem: Problem, search: bool) -> Order:
        return min_fill(problem_graph(problem))

    return choose_counters(free_problem(allowed, live), order, **options).problem


def test_models_that_share_their_counters_run_in_large_slices() -> None:
    model = GraphicalModel([2] * 12)
    model.add_linear(range(12), [900] * 12, at_most=5000)
    batch = ModelBatch.stack([model] * 64)
    parts: list[slice] = []
    in_slices(parts.append, exact_plan(batch), batch, 1 << 20, 1000, threads=False)
    assert len(parts) == 1
