"""Factors that depend on a sum: the counter of a kind says what its table says."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fgnn
from fgnn.pgm import Kind, ModelBatch
from fgnn.pgm.factors import Counter, Linear, Parity
from fgnn.pgm.factors.counter import MOST_SUMS
from tests.pgm.factors.test_kinds import Case, factors


def cells(shape: tuple[int, ...]) -> np.ndarray:
    return np.indices(shape).reshape(len(shape), -1).T


def group_of(kind: Kind, shape: tuple[int, ...], numbers: dict[str, np.ndarray]) -> ModelBatch:
    model = fgnn.GraphicalModel(list(shape))
    model.add_factors(kind, [range(len(shape))], **{name: np.asarray(v)[None] for name, v in numbers.items()})
    return ModelBatch.stack([model, model])


@settings(max_examples=80, deadline=None)
@given(factors())
def test_the_log_potential_at_each_sum_is_that_of_the_table(case: Case) -> None:
    kind, shape, numbers = case
    batch = group_of(kind, shape, numbers)
    (group,) = batch.factors
    counter = group.counter
    assert group.kind == kind
    assert batch.counted == (() if counter is None else (group,))
    if counter is None:
        assert kind.name in ("table", "pattern", "all-different")
        return
    (group,) = batch.counted
    assert all(min(weights) == 0 and len(weights) == k for weights, k in zip(counter.weights, shape, strict=True))
    values = group.by_sum(torch.float64)[0, 0].numpy()
    assert values.shape == counter.entries.shape
    np.testing.assert_array_equal(values[counter.sums(cells(shape))], kind.as_table(shape, numbers).reshape(-1))


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6))
def test_a_budget_counts_its_ones(size: int, low: int, high: int) -> None:
    low, high = min(low, high, size), min(max(low, high), size)
    model = fgnn.GraphicalModel([2] * size)
    model.add_budget(range(size), high, at_least=low)
    (group,) = ModelBatch.stack([model]).counted
    assert group.counter is not None
    assert group.counter.counts_ones
    x = cells((2,) * size)
    np.testing.assert_array_equal(group.by_sum(torch.float64)[0, 0].numpy()[group.counter.sums(x)], model.score(x))
    bounds = group.bounds()
    assert bounds is not None
    assert [int(bound) for bound in bounds] == [low, high]


def test_bounds_are_known_where_the_allowed_sums_are_an_interval() -> None:
    (linear,) = group_of(Linear(((0, 1), (0, 1), (0, 1)), 1, 2), (2, 2, 2), {}).structured
    bounds = linear.bounds()
    assert bounds is not None
    assert [int(bound) for bound in bounds] == [1, 2]
    (nothing,) = group_of(Linear(((0, 1), (0, 1)), 5, 6), (2, 2), {}).structured
    bounds = nothing.bounds()
    assert bounds is not None
    assert int(bounds[0]) > int(bounds[1])
    (parity,) = group_of(Parity(), (2, 2), {"value": np.array(1)}).structured
    assert parity.bounds() is None


def test_equal_weights_are_a_count_whatever_the_kind() -> None:
    equal, weighted = (Linear(((0, 3), (0, 3), (0, w)), 2, 7) for w in (3, 6))
    nothing = Linear(((0, 1), (0, 1)), 5, 6)
    groups = [group_of(kind, (2,) * len(kind.weights), {}).structured[0] for kind in (equal, weighted, nothing)]
    assert [group.form for group in groups] == ["ones", "other", "other"]
    (parity,) = group_of(Parity(), (2, 2), {"value": np.array(1)}).structured
    assert parity.form == "other"


def test_weights_are_divided_by_what_they_have_in_common() -> None:
    counter = Linear(((-100, 200), (0, 300)), -100, 100).counter((2, 2))
    assert counter is not None
    assert counter.weights == ((0, 1), (0, 1))
    assert not counter.modulus
    np.testing.assert_array_equal(counter.entries >= -1, [True, False, False])


def test_a_sum_of_equal_weights_counts_variables() -> None:
    counts = {True: [((0, 3), (3, 0)), ((0, 0, 2), (2, 0, 2)), ((1, 1), (0, 1))], False: [((0, 1), (0, 2))]}
    for expected, cases in counts.items():
        for weights in cases:
            counter = Linear(weights, 0, 1).counter(tuple(map(len, weights)))
            assert counter is not None
            assert counter.counts_variables == expected
    assert not Parity().counter((2, 2)).counts_variables


def test_a_range_that_is_too_large_is_not_counted() -> None:
    assert Linear(((0, MOST_SUMS), (0, 1)), 0, 5).counter((2, 2)) is None


def test_the_number_of_ones_has_a_potential_for_every_number() -> None:
    counter = Counter.of_ones(3)
    assert counter.counts_ones
    assert counter.entries.tolist() == [0, 1, 2, 3]
