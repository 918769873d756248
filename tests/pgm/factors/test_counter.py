"""Factors that depend on a sum: the counter of a kind says what its table says."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fgnn
from fgnn.pgm import Kind, ModelBatch
from fgnn.pgm.conditionals import conditionals
from fgnn.pgm.factors import Counter, Linear, Parity
from fgnn.pgm.factors.counter import MOST_SUMS
from tests.infer.counting import Residue
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


def test_weights_are_reduced_by_the_modulus() -> None:
    counter = Counter(((0, 1, 2, 3, 4), (5, 0)), np.arange(3), modulus=3)
    assert counter.weights == ((0, 1, 2, 0, 1), (2, 0))
    np.testing.assert_array_equal(counter.padded(6)[1], [2, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(counter.sums(cells((5, 2))), (cells((5, 2)) @ [1, -5] + 5) % 3)


@pytest.mark.parametrize(("weights", "modulus", "message"), [((0, 1), 2, "modulus of 0 or"), ((1, 2), 0, "least")])
def test_a_counter_with_another_modulus_or_negative_weights_is_refused(
    weights: tuple[int, ...], modulus: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Counter((weights,), np.arange(3), modulus)


@pytest.mark.parametrize("method", ["exact", "dual", "lp"])
def test_residues_of_weights_beyond_the_modulus_are_those_of_the_table(method: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((5, 4), (5, 2, 5)):
        kind = Residue(3)
        theta = rng.normal(size=3)
        model, tables = fgnn.GraphicalModel(list(shape)), fgnn.GraphicalModel(list(shape))
        for m in (model, tables):
            m.add_unaries(np.random.default_rng(1).normal(size=sum(shape)))
        model.add_factors(kind, [range(len(shape))], scores=theta[None])
        tables.add_table(range(len(shape)), kind.as_table(shape, {"scores": theta}))
        ours, theirs = fgnn.solve(model, method), fgnn.solve(tables, "brute-force")
        assert ours.bound == pytest.approx(theirs.score, abs=1e-6)
        x = torch.from_numpy(cells(shape).copy())
        both = [conditionals(ModelBatch.stack([m]).repeat(len(x)), x) for m in (model, tables)]
        torch.testing.assert_close(*both)


def test_the_counter_of_a_kind_is_one_object_while_it_is_in_use_and_is_freed_afterwards() -> None:
    batch = group_of(Linear(((0, 3), (0, 7)), 0, 7), (2, 2), {})
    counter = weakref.ref(batch.structured[0].counter)
    assert batch.select(slice(0, 1)).structured[0].counter is counter()
    del batch
    assert counter() is None


def test_a_missing_bound_does_not_contradict_the_one_given() -> None:
    for bounds in ({"at_least": 5}, {"at_most": -1}, {"at_least": 5, "at_most": 9}):
        model = fgnn.GraphicalModel([2, 2])
        model.add_linear((0, 1), [1, 1], **bounds)
        assert (model.score(cells((2, 2))) == -np.inf).all()
