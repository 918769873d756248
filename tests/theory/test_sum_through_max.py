"""Lemma lossless_agg and Prop. 4: sums through max aggregation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn.theory import sum_through_max


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(5, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_the_sum_over_rows(rows: int, columns: int, seed: int) -> None:
    x = matrix(rows, columns, seed)
    torch.testing.assert_close(sum_through_max(rows, columns)(x.abs()), x.abs().sum(1), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(sum_through_max(rows, columns, signed=True)(x), x.sum(1), rtol=1e-14, atol=1e-14)


def test_it_matches_the_statement_with_constant_tensors() -> None:
    net = sum_through_max(3, 4)
    x = matrix(3, 4, 1)[0].abs()
    assert net.w.shape == (3, 4, 12)
    assert net.q.shape == (4, 12)
    y = torch.einsum("ij,ijk->ik", x, net.w)
    torch.testing.assert_close(net.slots(x), y.amax(0), rtol=0, atol=0)
    torch.testing.assert_close(net.q @ y.amax(0), x.sum(0))


def test_the_aggregation_is_lossless() -> None:
    x = matrix(4, 3, 2).abs()
    torch.testing.assert_close(sum_through_max(4, 3).slots(x), x.flatten(1), rtol=0, atol=0)


def test_negative_features_are_refused_unless_signed() -> None:
    with pytest.raises(ValueError, match="non-negative entries"):
        sum_through_max(2, 2)(torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double())
    # the maximum with the zeros of other slots would erase it
    net = sum_through_max(2, 2)
    y = torch.einsum("ij,ijk->ik", torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double(), net.w)
    assert (net.q @ y.amax(0)).tolist() == [4.0, 2.0]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        sum_through_max(0, 2)
    with pytest.raises(ValueError, match="matrices of 2 x 3"):
        sum_through_max(2, 3)(torch.zeros(3, 2))
