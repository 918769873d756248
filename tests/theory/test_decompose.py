"""Lemma 1: every table is a maximum over rank-1 terms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.theory import decompose, decompose_budget
from fgnn.theory.decompose import decompositions


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """Tables of arity and cardinality up to 4, with repeated or distinct values, some of them -inf."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.sampled_from([1, 2, 5, None]))
    table = (
        rng.normal(size=shape) * 3
        if distinct is None
        else rng.normal(size=distinct)[rng.integers(distinct, size=shape)]
    )
    table[rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -np.inf
    return table


@settings(max_examples=30)
@given(tables(), st.booleans())
def test_the_maximum_over_terms_is_the_table(table: np.ndarray, merge: bool) -> None:
    d = decompose(table, merge=merge)
    by_hand = np.full(table.shape, -np.inf)
    for x in product(*map(range, table.shape)):
        for z in range(d.num_terms):
            by_hand[x] = max(by_hand[x], sum(float(theta[s, z]) for theta, s in zip(d.tensors, x, strict=True)))
    np.testing.assert_allclose(by_hand, table, rtol=8e-15, atol=8e-15)
    np.testing.assert_allclose(d.reconstruct().numpy(), table, rtol=8e-15, atol=8e-15)


@given(tables())
def test_terms_are_at_most_the_lines_and_the_configurations(table: np.ndarray) -> None:
    single, few = decompose(table, merge=False), decompose(table)
    assert single.num_terms == np.isfinite(table).sum()
    assert few.num_terms <= min(single.num_terms, table.size // max(table.shape))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_an_additive_table_is_one_term(shape: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.zeros(shape)
    for axis, k in enumerate(shape):
        table = table + rng.normal(size=k).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    assert decompose(table).num_terms == 1


def test_a_maximum_of_two_additive_tables_on_disjoint_boxes_is_two_terms() -> None:
    rng = np.random.default_rng(0)
    table = np.full((4, 6), -np.inf)
    table[:2, :3] = rng.normal(size=(2, 1)) + rng.normal(size=3)
    table[2:, 3:] = rng.normal(size=(2, 1)) + rng.normal(size=3)
    assert decompose(table).num_terms == 2


def test_few_terms_never_cost_small_entries_their_precision() -> None:
    # a table that is additive up to the rounding of its large entries only
    table = np.array([[0.3, 1e15], [-1e15, 0.7]])
    np.testing.assert_array_equal(decompose(table).reconstruct().numpy(), table)


def test_comparisons_count_the_maxima_of_the_network() -> None:
    assert decompose(np.zeros((3, 4))).comparisons == (2 + 3, 0)
    assert decompose(np.arange(12.0).reshape(3, 4), merge=False).comparisons == (0, 3 * 3 + 4 * 2)
    potts = decompositions(np.eye(5))[-1]
    assert (potts.num_terms, potts.comparisons) == (6, (4, 10))


def test_repeated_values_share_terms() -> None:
    assert decompose(np.zeros((3, 4, 2))).num_terms == 1
    # x_0 alone decides, the other two variables are free
    alone = decompose(np.broadcast_to(np.array([1.0, 2.0, 5.0])[:, None, None], (3, 4, 2)))
    assert (alone.num_terms, alone.slopes) == (1, ((0,),))
    # the box of the low value covers the whole table, that of the high value the corner
    corner = np.zeros((4, 4))
    corner[2:, 2:] = 1.0
    assert decompose(corner).num_terms == 2


def test_a_forbidden_table_has_no_terms() -> None:
    d = decompose(np.full((2, 3), -np.inf))
    assert d.num_terms == 0
    assert torch.equal(d.reconstruct(), torch.full((2, 3), -torch.inf, dtype=torch.float64))


@pytest.mark.parametrize("n", range(1, 9))
def test_budgets_need_the_minimum_number_of_boxes(n: int) -> None:
    ones = sum(np.indices((2,) * n))
    for low in range(n + 1):
        for high in range(low, n + 1):
            d = decompose_budget(n, low, high)
            wanted = np.where((low <= ones) & (ones <= high), 0.0, -np.inf)
            assert np.array_equal(d.reconstruct().numpy(), wanted), (n, low, high)
            # a feasible box contains at most one configuration of the lowest and of the highest level
            assert d.num_terms == max(comb(n, low), comb(n, high)), (n, low, high)


def test_a_large_budget_is_never_expanded() -> None:
    assert decompose_budget(40, at_most=2).num_terms == comb(40, 2)
    assert decompose_budget(40, at_least=38).num_terms == comb(40, 38)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decompose(3.0), "over at least one variable"),
        (lambda: decompose([0.0, np.nan]), "finite or -inf"),
        (lambda: decompose([0.0, np.inf]), "finite or -inf"),
        (lambda: decompose_budget(0), "at least one variable"),
        (lambda: decompose_budget(3, 2, 1), r"at_least <= at_most \(got 2 and 1\)"),
        (lambda: decompose_budget(3, 4), "at_least <= at_most"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
