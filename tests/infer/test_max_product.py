"""max-product: equal to a plain reference at every iteration, exact on trees, and as good as it should be on chains."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.data import ChainMAP
from fgnn.infer.max_product.numbers import Numbers, Rule
from fgnn.infer.max_product.solver import solve_max_product
from fgnn.infer.max_product.sweeps import Workspace, flooding_step
from fgnn.infer.max_product.wiring import Wiring, incident_rows
from fgnn.pgm.factors.ones import ones_messages
from fgnn.pgm.factors.ranking import ranked
from tests.infer.max_product_by_hand import ByHand
from tests.strategies import models, tree_models

SWEEPS = 4


def best_by_enumeration(model: GraphicalModel) -> float:
    states = np.array(list(itertools.product(*(range(k) for k in model.cardinalities))))
    return float(model.score(states).max())


def padded(beliefs: list[list[float]], widest: int) -> np.ndarray:
    return np.array([b + [-math.inf] * (widest - len(b)) for b in beliefs])


def assert_follows(model: GraphicalModel, hand: ByHand, sweep: Any, **options: Any) -> None:
    """After 1, 2, ... iterations: the same beliefs, the same change in each iteration, the same decision."""
    if not hand.factors:
        return
    changes: list[float] = []
    widest = int(model.cardinalities.max())
    for t in range(1, SWEEPS + 1):
        changes.append(sweep(t - 1))
        options |= {"iterations": t, "tolerance": -1.0, "keep_beliefs": True}
        solution = solve_max_product(ModelBatch.stack([model]), **options)
        expected = padded(hand.beliefs(), widest)
        np.testing.assert_allclose(solution.info["beliefs"][0].numpy(), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(solution.info["deltas"][0].numpy(), changes, rtol=1e-9, atol=1e-9)
        assert solution.iterations.tolist() == [t]
        assert not solution.converged.any()


@given(models(max_variables=5), st.sampled_from(["standard", "paper"]), st.sampled_from([0.0, 0.3]), st.booleans())
def test_flooding_is_the_reference_at_every_iteration(
    model: GraphicalModel, variant: str, damping: float, normalise: bool
) -> None:
    hand = ByHand(model, paper=variant == "paper", normalise=normalise)
    assert_follows(model, hand, lambda t: hand.flooding(damping), damping=damping, variant=variant, normalise=normalise)


@given(models(max_variables=5, forbid=False, max_budgets=0), st.sampled_from(["standard", "paper"]))
def test_flooding_is_the_reference_where_nothing_is_forbidden(model: GraphicalModel, variant: str) -> None:
    hand = ByHand(model, paper=variant == "paper")
    assert_follows(model, hand, lambda t: hand.flooding(0.5), variant=variant)


@given(models(max_variables=5), st.sampled_from(["fixed", "random"]), st.integers(0, 5))
def test_sequential_is_one_factor_after_another(model: GraphicalModel, order: str, seed: int) -> None:
    hand = ByHand(model)
    count = len(hand.factors)

    def sweep(t: int) -> float:
        turns = np.arange(count) if order == "fixed" else np.random.default_rng([seed, t]).permutation(count)
        return hand.sequential(0.1, turns.tolist())

    assert_follows(model, hand, sweep, schedule="sequential", order=order, damping=0.1, seed=seed)


@given(models(max_variables=5, max_budgets=1))
def test_residual_updates_the_largest_changes_first(model: GraphicalModel) -> None:
    hand = ByHand(model)
    assert_follows(model, hand, lambda t: hand.residual(0.0), schedule="residual", damping=0.0)


@given(tree_models(), st.sampled_from(["flooding", "sequential", "residual"]))
def test_standard_is_exact_on_trees(model: GraphicalModel, schedule: str) -> None:
    solution = fgnn.solve(model, "max-product", schedule=schedule, damping=0.0, tolerance=1e-12)
    assert solution.converged
    assert solution.score == pytest.approx(best_by_enumeration(model), abs=1e-9)


@given(tree_models(max_variables=6), st.integers(1, 4))
def test_a_batch_gets_the_answers_of_its_models(model: GraphicalModel, count: int) -> None:
    rng = np.random.default_rng(count)
    twins = [model.copy() for _ in range(count)]
    for twin in twins:
        twin.add_unaries(rng.normal(size=twin.unaries.size))
    together = fgnn.solve(ModelBatch.stack(twins), "max-product", damping=0.2, iterations=60)
    for b, twin in enumerate(twins):
        alone = fgnn.solve(twin, "max-product", damping=0.2, iterations=60)
        assert alone.assignment.tolist() == together.assignment[b].tolist()
        assert alone.iterations == together.iterations[b]
        assert alone.converged == together.converged[b]


# ---- budgets ------------------------------------------------------------------------------------------------------


@st.composite
def budgets(draw: st.DrawFn, max_size: int = 7) -> tuple[np.ndarray, int, int]:
    """Incoming messages (n, 2) with ties and impossible states, and bounds."""
    n = draw(st.integers(1, max_size))
    level = st.sampled_from([-math.inf, -1.5, -0.5, 0.0, 0.5, 2.0])
    nu = np.array(draw(st.lists(st.lists(level, min_size=2, max_size=2), min_size=n, max_size=n)))
    low = draw(st.integers(0, n))
    return nu, low, draw(st.integers(low, n))


@given(budgets(), st.booleans())
def test_messages_of_counts_are_the_best_over_all_states_of_the_others(
    budget: tuple[np.ndarray, int, int], normalise: bool
) -> None:
    nu, low, high = budget
    n = len(nu)
    expected = np.full((n, 2), -np.inf)
    for x in itertools.product((0, 1), repeat=n):
        if low <= sum(x) <= high:
            for i in range(n):
                others = sum(nu[j, x[j]] for j in range(n) if j != i)
                expected[i, x[i]] = max(expected[i, x[i]], others)
    if normalise:
        best = expected.max(1, keepdims=True)
        expected -= np.where(np.isinf(best), 0.0, best)
    incoming = torch.tensor(nu)[:, :, None, None]
    for bounds in ((low, high), (torch.tensor([[low]]), torch.tensor([[high]]))):  # shared, and one per model
        solution = ones_messages(incoming, *bounds, normalise=normalise)
        np.testing.assert_allclose(solution[:, :, 0, 0].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 20, 32, 33])
def test_ranked_is_a_descending_sort(n: int) -> None:
    values = torch.randn(n, 2500, generator=torch.Generator().manual_seed(n))
    values[values < -1.0] = -torch.inf
    expected = values.sort(dim=0, descending=True).values
    assert torch.equal(torch.stack(list(ranked(values))), expected)
    few = ranked(values, (1, n))
    assert torch.equal(few[0], expected[0])
    assert torch.equal(few[n - 1], expected[-1])
    assert torch.equal(torch.stack(list(ranked(values[:, :7]))), expected[:, :7])


def test_a_budget_over_very_many_variables_stays_cheap() -> None:
    n = 20_000
    model = GraphicalModel([2] * n)
    gains = np.random.default_rng(0).normal(size=n)
    model.add_unaries(np.stack([np.zeros(n), gains], 1))
    model.add_budget(range(n), at_most=1000, at_least=10)
    solution = fgnn.solve(model, "max-product", damping=0.0)
    assert solution.score == pytest.approx(np.sort(gains)[-1000:].sum())


# ---- the chain data -----------------------------------------------------------------------------------------------


def agreement(kind: int, **options: Any) -> float:
    """Percent of variables that agree with the optimum, over 500 models."""
    data = ChainMAP(kind)
    batch = data.sample(500, seed=11)
    solution = fgnn.solve(batch, "max-product", **options)
    return 100 * (solution.assignment == data.labels(batch)).double().mean().item()


# Undamped messages end in a cycle of three; iteration 100 is in the phase of the independent implementations.
@pytest.mark.parametrize(("kind", "undamped", "damped"), [(1, 70.9, 86.7), (2, 67.0, 86.9), (3, 68.1, 84.6)])
def test_agreement_is_that_of_independent_implementations(kind: int, undamped: float, damped: float) -> None:
    # three standard deviations of the difference of two means over 500
    assert agreement(kind, damping=0.0, iterations=100) == pytest.approx(undamped, abs=2.5)
    assert agreement(kind) == pytest.approx(damped, abs=2.5)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_sequential_random_updates_are_at_least_as_good(kind: int) -> None:
    assert agreement(kind, schedule="sequential", order="random", damping=0.1) >= agreement(kind) - 0.25


# ---- what it reports ----------------------------------------------------------------------------------------------


def frustrated(edges: int = 3) -> GraphicalModel:
    """A ring of variables that each prefer to differ from the next, which is impossible with three."""
    model = GraphicalModel([2] * edges)
    model.add_unaries(np.linspace(0.0, 0.3, 2 * edges))
    for i in range(edges):
        model.add_table((i, (i + 1) % edges), [[0.0, 3.0], [3.0, 0.0]])
    return model


def test_decode_best_keeps_the_best_of_all_iterations() -> None:
    batch = ChainMAP(1).sample(40, seed=1)
    options: dict[str, Any] = {"damping": 0.0, "iterations": 20}
    best = fgnn.solve(batch, "max-product", decode="best", **options)
    scores = [fgnn.solve(batch, "max-product", damping=0.0, iterations=t).score for t in range(1, 21)]
    assert torch.equal(best.score, torch.stack(scores).amax(0))
    assert best.feasible.sum() > fgnn.solve(batch, "max-product", **options).feasible.sum()


def test_a_converged_model_is_left_alone_while_others_go_on() -> None:
    easy, hard = frustrated(), frustrated()
    easy.add_unaries([20.0, 0.0, 0.0, 20.0, 20.0, 0.0])
    both = fgnn.solve(ModelBatch.stack([easy, hard]), "max-product", damping=0.0, iterations=50, keep_beliefs=True)
    alone = fgnn.solve(easy, "max-product", damping=0.0, keep_beliefs=True)
    assert both.converged.tolist() == [True, False]
    assert both.iterations.tolist() == [alone.iterations, 50]
    assert torch.equal(both.info["beliefs"][0], alone.info["beliefs"][0])
    assert (both.info["deltas"][0, alone.iterations :] == 0).all()
    assert (both.info["deltas"][1] > 0).all()


def test_equal_beliefs_take_the_lowest_state() -> None:
    model = GraphicalModel([3, 2])
    model.add_table((0, 1), np.zeros((3, 2)))
    assert fgnn.solve(model, "max-product").assignment.tolist() == [0, 0]


def test_a_contradiction_is_proved() -> None:
    model = GraphicalModel([2, 2, 2])
    model.add_table((0, 1), [[0.0, -np.inf], [-np.inf, -np.inf]])
    model.add_budget((0, 1, 2), at_least=2)
    model.add_budget((1, 2), at_most=1)
    solution = fgnn.solve(model, "max-product")
    assert solution.status == "infeasible"
    assert solution.bound == -math.inf


def test_a_model_without_factors_is_its_unaries() -> None:
    model = GraphicalModel([2, 1, 3])
    model.add_unaries([0.0, 1.0, 5.0, 0.0, 0.5, 0.2])
    solution = fgnn.solve(model, "max-product")
    assert solution.assignment.tolist() == [1, 0, 1]
    assert solution.converged


def test_no_iterations_decode_the_unaries() -> None:
    solution = fgnn.solve(frustrated(), "max-product", iterations=0)
    assert solution.assignment.tolist() == [1, 1, 1]
    assert not solution.converged


def test_a_time_limit_stops_it_with_an_answer() -> None:
    batch = ModelBatch.stack([frustrated(101)] * 1000)
    solution = fgnn.solve(batch, "max-product", iterations=10**9, damping=0.0, tolerance=-1.0, time_limit=0.5)
    assert set(solution.status) == {"time-limit"}
    assert solution.seconds < 10
    assert solution.iterations[0] > 0
    assert solution.iterations[-1] == 0  # it was never started
    assert solution.info["deltas"].shape == (1000, int(solution.iterations.max()))


def test_messages_that_grow_stay_finite() -> None:
    rng = np.random.default_rng(3)
    model = GraphicalModel([2] * 12)
    model.add_unaries(rng.normal(size=24))
    for _ in range(20):
        model.add_budget(rng.permutation(12)[:6], at_most=2, at_least=1)
    for dtype in (torch.float32, torch.float64):
        batch = ModelBatch.stack([model], dtype=dtype)
        solution = solve_max_product(batch, variant="paper", damping=0.0, iterations=600, keep_beliefs=True)
        assert not solution.info["beliefs"].isnan().any()


@pytest.mark.parametrize("full", [False, True])
def test_gathered_beliefs_are_the_scattered_ones(full: bool) -> None:
    batch = ChainMAP(2, length=9, window=4).sample(3)
    wiring = Wiring.of(batch, full=full)
    numbers = Numbers.of(batch, wiring)
    messages = torch.randn(len(wiring.belief_of), 3, generator=torch.Generator().manual_seed(0))
    scattered = wiring.beliefs(numbers.unary, messages)
    gathering = replace(wiring, incident=incident_rows(wiring.belief_of, len(numbers.unary)))
    assert gathering.incident is not None
    torch.testing.assert_close(gathering.beliefs(numbers.unary, messages), scattered)


def test_a_step_without_a_workspace_leaves_its_messages_alone() -> None:
    batch = ChainMAP(3).sample(4)
    wiring = Wiring.of(batch, full=False)
    numbers = Numbers.of(batch, wiring)
    messages = torch.zeros(wiring.num_messages, 4)
    rate = torch.tensor([1.0, 0.5, 0.0, 1.0])
    stepped, change = flooding_step(wiring, Rule(), numbers, messages, rate)
    assert (messages == 0).all()
    assert (stepped[:, 2] == 0).all()  # held still
    assert (change > 0).all()
    again, same = flooding_step(wiring, Rule(), numbers, messages, rate, Workspace.like(wiring, messages))
    torch.testing.assert_close(again, stepped)
    torch.testing.assert_close(same, change)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
@pytest.mark.parametrize("kind", [1, 3])
def test_a_gpu_gives_the_same_beliefs(kind: int, schedule: str) -> None:
    batch = ChainMAP(kind).sample(300, seed=2, dtype=torch.float64)
    # Messages that are not normalised grow tenfold an iteration and more: soon an input's last bit decides, anywhere
    # (after 20 by flooding the beliefs of inputs 2e-16 apart differ in their first digit, by residuals after 5).
    unnormalised = {"flooding": 5, "sequential": 1}
    for normalise, iterations in ((True, 20), (False, unnormalised.get(schedule, 0))):
        options: dict[str, Any] = {"schedule": schedule, "normalise": normalise, "iterations": iterations}
        here = solve_max_product(batch, keep_beliefs=True, **options)
        there = solve_max_product(batch.to("cuda"), keep_beliefs=True, **options)
        torch.testing.assert_close(there.info["beliefs"].cpu(), here.info["beliefs"])
        assert torch.equal(there.iterations.cpu(), here.iterations)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "floding"}, "schedule .* flooding or sequential or residual .*floding"),
        ({"variant": "textbook"}, "variant .* standard or paper .*textbook"),
        ({"order": "sorted"}, "order .* fixed or random .*sorted"),
        ({"decode": "all"}, "decode .* last or best .*all"),
        ({"damping": 1.0}, r"Expected a damping in \[0, 1\)"),
        ({"iterations": -1}, "Expected a number of iterations"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fgnn.solve(frustrated(), "max-product", **options)


@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
def test_variables_of_a_single_state_receive_no_messages(schedule: str) -> None:
    model = GraphicalModel([1, 1, 3, 3])
    model.add_table((0, 1), [[0.5]])
    model.add_table((2, 3), np.eye(3))
    model.add_unary(2, [0.0, 0.0, 2.0])
    solution = fgnn.solve(model, "max-product", schedule=schedule)
    assert solution.converged
    assert np.asarray(solution.assignment).tolist() == [0, 0, 2, 2]
