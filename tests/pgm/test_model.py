"""GraphicalModel: building, scoring, equality, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch
from tests.strategies import models


def score_by_hand(model: GraphicalModel, x: tuple[int, ...]) -> float:
    """eq. (map_def) as a plain loop over factors, independent of the grouped code."""
    total = model.constant + sum(float(model.unary(i)[v]) for i, v in enumerate(x))
    for table in model.tables():
        total += float(table.values[tuple(x[i] for i in table.scope)])
    for budget in model.budgets():
        if not budget.at_least <= sum(x[i] for i in budget.scope) <= budget.at_most:
            return -math.inf
    return total


@given(models(max_variables=4, max_cardinality=3))
def test_score_equals_the_sum_over_factors(model: GraphicalModel) -> None:
    states = list(itertools.product(*(range(k) for k in model.cardinalities)))
    scores = model.score(np.array(states))
    for x, score in zip(states, scores, strict=True):
        assert score == pytest.approx(score_by_hand(model, x), abs=1e-12)
        assert model.score(x) == score


@given(models(max_variables=5), st.integers(1, 4))
def test_a_batch_scores_as_its_models_do(model: GraphicalModel, count: int) -> None:
    batch = ModelBatch.stack([model] * count)
    rng = np.random.default_rng(0)
    x = rng.integers(0, model.cardinalities, size=(count, 3, model.num_variables))
    expected = np.stack([model.score(row) for row in x])
    np.testing.assert_allclose(batch.score(torch.as_tensor(x)).numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(batch.score(torch.as_tensor(x[:, 0])).numpy(), batch.score(torch.as_tensor(x))[:, 0])


@given(models())
def test_a_model_survives_a_batch(model: GraphicalModel) -> None:
    twin = ModelBatch.stack([model]).model(0)
    assert ModelBatch.stack([twin]).model(0) == twin
    x = np.random.default_rng(1).integers(0, model.cardinalities, size=(20, model.num_variables))
    np.testing.assert_allclose(twin.score(x), model.score(x), atol=1e-12)


def test_adding_a_unary_twice_sums() -> None:
    model = GraphicalModel([2])
    model.add_unary(0, [0.25, 1.0])
    model.add_table((0,), [0.5, -1.0])
    assert model.unary(0).tolist() == [0.75, 0.0]


def test_a_budget_over_many_variables_is_never_a_table() -> None:
    model = GraphicalModel([2] * 5000)
    model.add_budget(range(5000), at_most=3)
    x = np.zeros(5000, dtype=int)
    x[:3] = 1
    assert model.score(x) == 0.0
    x[3] = 1
    assert model.score(x) == -math.inf


def test_a_budget_may_have_a_lower_bound() -> None:
    model = GraphicalModel([2, 2, 2])
    model.add_budget((0, 1, 2), at_least=1, at_most=2)
    assert [model.score(x) for x in ([0, 0, 0], [1, 0, 0], [1, 1, 1])] == [-math.inf, 0.0, -math.inf]


def test_evidence_leaves_one_state_and_keeps_the_ids() -> None:
    model = GraphicalModel([2, 3])
    clamped = model.condition({1: 2})
    assert clamped.score([0, 2]) == 0.0
    assert clamped.score([0, 1]) == -math.inf
    assert model.score([0, 1]) == 0.0


def test_equality_compares_every_number() -> None:
    def make(value: float = 1.0, k: int = 1, pattern: int = 0, score: float = 2.0) -> GraphicalModel:
        model = GraphicalModel([2, 2])
        model.add_table((0, 1), [[0, value], [0, 0]])
        model.add_budget((0, 1), at_most=k)
        model.add_pattern((0, 1), [[1, pattern]], [score])
        return model

    assert make() == make()
    for other in (make(value=2.0), make(k=2), make(pattern=1), make(score=3.0), GraphicalModel([2, 2]), "a model"):
        assert make() != other


def test_repr() -> None:
    model = GraphicalModel([2, 3])
    model.add_table((0, 1), np.zeros((2, 3)))
    assert repr(model) == "GraphicalModel(2 variables of 2-3 states, 1 table of arity <= 2)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GraphicalModel([2, 0]), "Expected at least one state for every variable (got 0 for variable 1)"),
        (lambda: GraphicalModel([2.5]), "Expected integer cardinalities (got float64)"),
        (lambda: GraphicalModel([2]).add_unary(1, [0, 0]), "Expected a variable below 1 (got 1)"),
        (
            lambda: GraphicalModel([2]).add_unary(0, [0, 0, 0]),
            "Expected 2 log-potentials for variable 0 (got shape (3,))",
        ),
        (lambda: GraphicalModel([2]).add_unary(0, [0, math.nan]), "got NaN or +inf in variable 0"),
        (
            lambda: GraphicalModel([2, 2]).add_table((0, 0), np.zeros((2, 2))),
            "Expected distinct variables in a scope (got (0, 0))",
        ),
        (
            lambda: GraphicalModel([2, 3]).add_table((1, 0), np.zeros((2, 3))),
            "Expected tables of shape (3, 2) (got (2, 3)) over the variables (1, 0)",
        ),
        (
            lambda: GraphicalModel([2, 3]).add_budget((0, 1), at_most=1),
            "Expected binary variables in a budget (got cardinalities (2, 3)) over the variables (0, 1)",
        ),
        (
            lambda: GraphicalModel([2, 2]).add_budget((0, 1), at_most=1, at_least=2),
            "Expected 0 <= at_least <= at_most (got 2 and 1)",
        ),
        (lambda: GraphicalModel([2]).score([0, 1]), "Expected an assignment of 1 variables (got shape (2,))"),
        (lambda: GraphicalModel([2]).score([2]), "Expected a state below 2 for variable 0 (got 2)"),
        (lambda: GraphicalModel([2]).condition({0: 5}), "Expected a state below 2 for variable 0 (got 5)"),
        (lambda: ModelBatch.stack([]), "Expected at least one model to stack (got none)"),
        (lambda: ModelBatch.stack([GraphicalModel([2]), GraphicalModel([3])]), "got other cardinalities in model 1"),
    ],
)
def test_errors_say_what_was_expected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        build()
    assert message in str(caught.value)
