"""A proof holds in the model's own numbers, whatever their unit, their constants and the precision of the method."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.data import ChainMAP
from fgnn.infer.certificate import StandardForm, certify
from fgnn.infer.solution import Answer, sum_rounded_up
from tests.infer.oracle import chain
from tests.infer.rational import faults, rational_scores
from tests.strategies import models

PROVERS: dict[str, dict[str, Any]] = {
    "brute-force": {},
    "exact": {},
    "lp": {},
    "ad3": {"iterations": 300},
    "ad3, branch and bound": {"iterations": 100, "branch_and_bound": True, "max_nodes": 50},
    "auto": {"time_limit": 20.0, "max_states": 4},
}
UNITS = (1e-300, 1e-12, 1.0, 1e12, 1e250)


def changed(model: GraphicalModel, unit: float = 1.0, constant: float = 0.0, hidden: float = 0.0) -> GraphicalModel:
    """The same optimum in another unit, with a constant, and with constants hidden in unaries and tables."""
    twin = GraphicalModel(model.cardinalities)
    twin.add_unaries(model.unaries * unit)
    for i in range(model.num_variables):
        twin.add_unary(i, np.full(model.cardinalities[i], hidden))
    for t in model.tables():
        twin.add_table(t.scope, t.values * unit - hidden)
    for u in model.budgets():
        twin.add_budget(u.scope, u.at_most, at_least=u.at_least)
    twin.constant = constant
    return twin


def run(model: GraphicalModel | ModelBatch, method: str, **more: Any) -> Any:
    return solve(model, method.split(",")[0], **{**PROVERS[method], **more})


# ---- false proofs that were once given --------------------------------------------------------------------------


@pytest.mark.parametrize("branch_and_bound", [False, True])
def test_a_feasible_model_with_one_huge_entry_is_not_proved_infeasible(branch_and_bound: bool) -> None:
    model = GraphicalModel([3, 2])
    model.add_table((0, 1), [[0, 0], [0, -1e39], [0, 0]])
    solution = solve(model.condition({0: 1, 1: 1}), "ad3", branch_and_bound=branch_and_bound)
    assert (solution.status, solution.score, solution.gap) == ("optimal", -1e39, 0.0)


def test_a_huge_entry_beside_ordinary_ones_does_not_overflow_float32() -> None:
    model = GraphicalModel([3, 2, 2])
    model.add_table((0, 1), [[0, -1e39], [0, -1e39], [0.5, -1e39]])
    model.add_table((1, 2), [[0.0, 1.0], [2.0, 0.0]])
    model.add_unary(0, [0.0, 0.3, 0.1])
    for options in ({}, {"branch_and_bound": True}, {"tolerance": 1e-7}):
        assert not faults(model, rational_scores(model), solve(model, "ad3", **options))


def test_sums_in_float32_are_no_proof() -> None:
    batch = ChainMAP(kind=2).sample(50, seed=3)
    truth, rough = solve(batch, "exact"), solve(batch, "exact", dtype=torch.float32)
    assert set(truth.status) == {"optimal"}
    assert set(rough.status) == {"feasible"}
    assert bool((truth.score <= rough.score + rough.gap).all())
    assert bool((rough.gap > 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.complex64])
def test_sums_in_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"torch\.float64 or torch\.float32 \(got torch\."):
        solve(chain(0, length=6), "exact", dtype=dtype)


def dense(unit: float, constant: float = 0.0, count: int = 10) -> GraphicalModel:
    rng = np.random.default_rng(0)
    model = GraphicalModel([4] * count)
    pairs = np.array([(i, j) for i in range(count) for j in range(i)])
    model.add_tables(pairs, unit * rng.normal(size=(len(pairs), 4, 4)))
    model.constant = constant
    return model


@pytest.mark.parametrize("unit", [1e-12, 1e-100, 1.0])
@pytest.mark.parametrize("method", ["ad3", "ad3, branch and bound", "lp", "auto"])
def test_no_method_calls_a_dense_model_solved_before_it_is(method: str, unit: float) -> None:
    best = solve(dense(1.0), "exact", max_states=1 << 22).score
    solution = run(dense(unit), method, time_limit=1.0)
    assert best * unit <= solution.score + solution.gap
    if solution.status == "optimal":
        assert solution.score == pytest.approx(best * unit, rel=1e-9)


@pytest.mark.parametrize("method", ["ad3", "ad3, branch and bound", "lp", "exact", "auto"])
def test_a_constant_neither_makes_nor_hides_a_proof(method: str) -> None:
    for seed in range(6):
        model = chain(seed, length=8)
        plain, shifted = run(model, method), run(changed(model, constant=1e12), method)
        assert plain.status == shifted.status
        assert plain.assignment.tolist() == shifted.assignment.tolist()
        assert plain.gap == shifted.gap


# ---- units and constants ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PROVERS)
def test_the_answer_does_not_depend_on_the_unit(method: str) -> None:
    for seed in range(3):
        model = chain(seed, length=7)
        whole = run(changed(model), method)
        for power in (-900, -40, 40, 900):
            unit = 2.0**power
            scaled = run(changed(model, unit), method)
            assert scaled.assignment.tolist() == whole.assignment.tolist()
            assert (scaled.status, scaled.gap / unit) == (whole.status, whole.gap)
            assert scaled.score / unit == pytest.approx(whole.score, rel=1e-15)


@pytest.mark.parametrize("method", PROVERS)
@settings(max_examples=10)
@given(model=models(max_variables=5), unit=st.sampled_from(UNITS), constant=st.sampled_from((0.0, 1e12, -1e20)))
def test_right_by_rational_arithmetic_in_every_unit(
    method: str, model: GraphicalModel, unit: float, constant: float
) -> None:
    twin = changed(model, unit, constant * unit, hidden=unit * 1e3)
    assert not faults(twin, rational_scores(twin), run(twin, method), proves=method in ("brute-force", "exact"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", PROVERS)
def test_a_batch_of_any_precision_is_solved_in_its_own_numbers(method: str, dtype: torch.dtype) -> None:
    batch = ModelBatch.stack([chain(seed, length=6) for seed in range(4)], dtype=dtype)
    solutions = run(batch, method)
    for b in range(len(batch)):
        model = batch.model(b)  # the rounded numbers are the model
        wrong = faults(model, rational_scores(model), solutions[b], proves=method in ("brute-force", "exact"))
        assert not wrong


def test_short_numbers_leave_no_gap() -> None:
    model = GraphicalModel([2, 3, 2])
    model.add_unary(0, [1.0, 2.5])
    model.add_table((0, 1), [[0, 1, 2], [3, 1, -4]])
    model.add_table((1, 2), [[0, 7], [2, 0], [1, 1]])
    for method in ("exact", "brute-force", "auto", "toulbar2"):
        solution = solve(model, method)
        assert (solution.status, solution.score, solution.bound, solution.gap) == ("optimal", 12.5, 12.5, 0.0)


# ---- certificates -----------------------------------------------------------------------------------------------


def claim(model: GraphicalModel, states: list[int], bound: float) -> Answer:
    answer = Answer.of(torch.tensor([states]), bound=bound, proved=torch.tensor([True]))
    return certify(ModelBatch.stack([model]), answer)


def two_variables() -> GraphicalModel:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.1, 0.7], [0.3, -math.inf]])
    model.add_unary(0, [0.0, 0.9])
    model.constant = 5.0
    return model


def test_a_solver_of_ones_own_proves_by_its_bound_alone() -> None:
    model = two_variables()
    assert claim(model, [1, 0], math.inf).proved.tolist() == [False]
    assert claim(model, [1, 0], model.score([1, 0]) + 1e-6).proved.tolist() == [False]
    proved = claim(model, [1, 0], model.score([1, 0]))
    assert proved.proved.tolist() == [True]
    assert 0 < proved.gap.item() < 1e-13


def test_a_bound_below_the_score_is_dropped() -> None:
    model = two_variables()
    for bound in (5.5, -math.inf, math.nan):
        certified = claim(model, [1, 0], bound)
        assert certified.proved.tolist() == [False]
        assert certified.bound.item() >= model.score([1, 0])


def test_infeasibility_needs_a_bound_of_minus_infinity() -> None:
    model = two_variables()
    assert claim(model, [1, 1], -math.inf).proved.tolist() == [True]
    assert claim(model, [1, 1], 5.0).proved.tolist() == [False]
    assert claim(model, [1, 1], 5.0).gap.item() == math.inf


@given(models(), st.sampled_from(UNITS))
def test_the_standard_form_is_the_same_problem(model: GraphicalModel, unit: float) -> None:
    twin = changed(model, unit, constant=unit)
    form = StandardForm.of(ModelBatch.stack([twin]))
    assert form.batch.constant.tolist() == [0.0]
    offset, own = Fraction(form.offset.item()), Fraction(form.unit.item())
    sizes = [abs(v) for v in (*twin.unaries, *(v for t in twin.tables() for v in t.values.flat)) if math.isfinite(v)]
    for x, exact in rational_scores(twin).items():
        standard = form.batch.score(torch.tensor([x])).item()
        assert standard <= 0.0
        assert (standard == -math.inf) == (exact is None)
        if exact is not None:
            error = abs(offset + own * Fraction(standard) - exact)
            assert error <= Fraction(sum(sizes) + abs(twin.constant)) / 2**44
    parts = [form.batch.unary, *(t.values for t in form.batch.tables)]
    widest = max((-p[p > -math.inf].min().item() for p in parts if (p > -math.inf).any()), default=0.0)
    assert widest == 0.0 or 0.5 <= widest <= 2.0**100


@given(st.floats(-1e300, 1e300), st.floats(0, 1e300))
def test_sums_are_rounded_up(a: float, b: float) -> None:
    above = sum_rounded_up(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)).item()
    exact = Fraction(a) + Fraction(b)
    assert Fraction(above) >= exact
    assert Fraction(math.nextafter(above, -math.inf)) < exact
