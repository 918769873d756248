"""The LP bounds the optimum, proves only scores that meet the bound, and solves a batch like its models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.infer.lp.program import linear_program
from tests.infer.counting_kind import NumberOfOnes
from tests.infer.oracle import best_score, chain
from tests.pgm.factors.test_kinds import Case, by_definition, factors
from tests.strategies import models, tree_models


@given(models())
def test_the_bound_is_never_below_the_optimum(model: GraphicalModel) -> None:
    best = best_score(model)
    solution = fgnn.solve(model, "lp")
    assert solution.bound >= best - 1e-9 * max(1.0, abs(best))
    assert solution.converged
    if solution.status == "optimal":
        assert solution.score == pytest.approx(best, rel=1e-9, abs=1e-9)
    if solution.status == "infeasible" and solution.bound == -np.inf:
        assert best == -np.inf


@given(tree_models())
def test_the_relaxation_is_tight_on_trees(model: GraphicalModel) -> None:
    # Budgets are integral polytopes too, so a tree of tables and budgets has no fractional vertex better than all
    # integral ones.
    solution = fgnn.solve(model, "lp")
    assert solution.bound == pytest.approx(best_score(model), rel=1e-7, abs=1e-7)


def test_a_frustrated_triangle_rounds_to_fractions_and_a_loose_bound() -> None:
    model = GraphicalModel([2, 2, 2])
    for scope in ((0, 1), (1, 2), (0, 2)):
        model.add_table(scope, [[0.0, 1.0], [1.0, 0.0]])
    solution = fgnn.solve(model, "lp")
    assert solution.bound == pytest.approx(3.0)  # half of every state satisfies all three; no assignment does
    assert not bool(solution.info["integral"][0])
    assert solution.status == "feasible"
    assert solution.assignment.tolist() == [0, 0, 0]  # ties take the lowest state


def test_infeasible_models_are_proved_infeasible() -> None:
    forced = GraphicalModel([2, 2, 2])
    forced.add_unary(0, [-np.inf, 0.0])
    forced.add_unary(1, [-np.inf, 0.0])
    forced.add_budget((0, 1, 2), at_most=1)
    empty = GraphicalModel([3, 2])
    empty.add_table((0, 1), np.full((3, 2), -np.inf))
    nothing = GraphicalModel([2])
    nothing.add_unary(0, [-np.inf, -np.inf])
    for model in (forced, empty, nothing):
        solution = fgnn.solve(model, "lp")
        assert (solution.status, solution.bound, solution.feasible) == ("infeasible", -np.inf, False)


def test_models_without_factors_or_choices() -> None:
    assert fgnn.solve(GraphicalModel([]), "lp").status == "optimal"
    single = GraphicalModel([1, 1])
    single.add_unary(0, [2.0])
    single.add_table((0, 1), [[3.0]])
    solution = fgnn.solve(single, "lp")
    assert (solution.status, solution.score) == ("optimal", 5.0)


def test_a_forbidden_state_zero_of_a_ternary_variable_stays_forbidden() -> None:
    model = GraphicalModel([3])
    model.add_unary(0, [-np.inf, -2.0, -1.0])
    solution = fgnn.solve(model, "lp")
    assert (solution.status, solution.score, solution.assignment.tolist()) == ("optimal", -1.0, [2])


def test_a_batch_gives_the_answers_of_its_models() -> None:
    each = [chain(seed, length=12, window=4, at_most=2) for seed in range(6)]
    other = each[-1].copy()
    other.add_unary(3, [-np.inf, 0.0])  # an entry forbidden in one model only
    each.append(other)
    together = fgnn.solve(ModelBatch.stack(each), "lp")
    alone = [fgnn.solve(m, "lp") for m in each]
    assert together.bound.tolist() == pytest.approx([s.bound for s in alone], abs=1e-8)
    assert together.status == [s.status for s in alone]


@pytest.mark.slow
def test_processes_divide_a_batch() -> None:
    batch = ModelBatch.stack([chain(seed) for seed in range(9)])
    one, two = (fgnn.solve(batch, "lp", jobs=jobs) for jobs in (1, 2))
    assert torch.equal(one.assignment, two.assignment)
    assert torch.equal(one.bound, two.bound)


def test_counts_of_states_are_rows_and_as_tight_as_their_tables() -> None:
    """Weights that are equal or 0, on variables of any cardinality, need neither cells nor auxiliary variables."""
    rng = np.random.default_rng(0)
    for seed in range(8):
        cards = rng.integers(1, 4, size=6)
        marked = rng.integers(0, 2, size=(6, 3)) * 4 - 2  # which states count, by weights -2 and 2
        own, other = GraphicalModel(cards), GraphicalModel(cards)
        low, high = sorted(rng.integers(-7, 8, size=2).tolist())
        for model in (own, other):
            draw = np.random.default_rng(seed)
            model.add_unaries(draw.normal(size=int(cards.sum())))
            model.add_table((0, 5), draw.normal(size=(int(cards[0]), int(cards[5]))))
        own.add_linear(range(6), marked, at_least=low, at_most=high)
        (factor,) = own.structured()
        other.add_table(range(6), factor.as_table())
        program, _ = linear_program(ModelBatch.stack([own]))
        assert len(program.cells) == cards[0] * cards[5]  # of the table alone
        a, b = fgnn.solve(own, "lp"), fgnn.solve(other, "lp")
        assert a.bound == pytest.approx(b.bound, rel=1e-7, abs=1e-7)
        assert (a.status == "infeasible") == (b.status == "infeasible")


@settings(max_examples=40, deadline=None)
@given(factors(), st.integers(0, 2**32 - 1))
def test_other_sums_are_flows_and_as_tight_as_their_tables(case: Case, seed: int) -> None:
    kind, shape, numbers = case
    cards = [*shape, 2]
    own, other = GraphicalModel(cards), GraphicalModel(cards)
    for model in (own, other):
        rng = np.random.default_rng(seed)
        unaries = rng.normal(size=sum(cards))
        model.add_unaries(np.where(rng.random(unaries.shape) < 0.1, -np.inf, unaries))
        for i in range(len(shape)):  # cycles, so that the relaxation is loose
            model.add_table((i, (i + 1) % len(cards)), rng.normal(size=(cards[i], cards[(i + 1) % len(cards)])))
            model.add_table((i, len(shape)), rng.normal(size=(cards[i], 2)))
    own.add_factors(kind, [range(len(shape))], **{name: np.asarray(v)[None] for name, v in numbers.items()})
    other.add_table(range(len(shape)), by_definition(kind, shape, numbers))
    a, b = fgnn.solve(own, "lp"), fgnn.solve(other, "lp")
    assert a.bound == pytest.approx(b.bound, rel=1e-6, abs=1e-6)


def test_sums_with_log_potentials_of_their_own_differ_by_model() -> None:
    rng = np.random.default_rng(0)
    models, tables = [], []
    for _ in range(3):
        model = GraphicalModel([2] * 5)
        model.add_unaries(rng.normal(size=10))
        table = model.copy()
        values = np.where(rng.random((2, 4)) < 0.2, -np.inf, rng.normal(size=(2, 4)))
        scopes = [(0, 1, 2), (4, 3, 1)]
        model.add_factors(NumberOfOnes(), scopes, values=values)
        for scope, by_sum in zip(scopes, values, strict=True):
            table.add_table(scope, by_sum[np.indices((2, 2, 2)).sum(0)])
        models.append(model)
        tables.append(table)
    together = fgnn.solve(ModelBatch.stack(models), "lp")
    assert together.bound.tolist() == pytest.approx([fgnn.solve(t, "lp").bound for t in tables], abs=1e-7)


def test_a_knapsack_takes_a_column_for_each_arc_between_partial_sums() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 20, size=40)
    model = GraphicalModel([2] * 40)
    gains = rng.uniform(1, 10, size=40)
    model.add_unaries(np.stack([np.zeros(40), gains], 1).ravel())
    model.add_linear(range(40), weights.tolist(), at_most=int(weights.sum()) // 2)
    program, _ = linear_program(ModelBatch.stack([model]))
    assert program.equal.shape[1] <= 40 + 2 * 40 * (int(weights.sum()) // 2 + 1)
    best = np.zeros(int(weights.sum()) // 2 + 1)  # by the textbook recursion
    for gain, weight in zip(gains, weights, strict=True):
        best[weight:] = np.maximum(best[weight:], best[:-weight] + gain)
    assert fgnn.solve(model, "lp").bound == pytest.approx(best.max(), rel=1e-6)


def test_a_model_without_choices_can_be_impossible() -> None:
    model = GraphicalModel([1, 1, 1])
    model.add_linear((0, 1, 2), [[1], [1], [1]], at_most=2)
    assert fgnn.solve(model, "lp").status == "infeasible"


def test_the_time_limit_returns_an_answer_with_a_bound() -> None:
    batch = ModelBatch.stack([chain(seed) for seed in range(50)])
    limited = fgnn.solve(batch, "lp", time_limit=0.02, progress=lambda update: None)
    full = fgnn.solve(batch, "lp")
    assert limited.seconds < 1.0
    assert "time-limit" in limited.status
    assert bool((limited.bound >= full.bound - 1e-9).all())
    assert not bool(limited.converged.all())


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="Expected the rounding argmax"):
        fgnn.solve(GraphicalModel([2]), "lp", rounding="random")
    with pytest.raises(ValueError, match="Expected at least one job"):
        fgnn.solve(GraphicalModel([2]), "lp", jobs=0)


def test_flows_of_too_many_arcs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.lp.solver._MOST_ARCS", 50)
    model = GraphicalModel([2, 2, 2])
    model.add_linear((0, 1, 2), [1, 2, 4], at_most=5)  # 3 variables of 2 states, 8 sums
    assert fgnn.solve(model, "lp").status == "optimal"
    monkeypatch.setattr("fgnn.infer.lp.solver._MOST_ARCS", 47)
    with pytest.raises(ValueError, match=r"at most 47 arcs over partial sums \(got up to 48\)"):
        fgnn.solve(model, "lp")
