"""Prop. 3: the row maximum as a ReLU network of the stated depth, and its actual number of units."""

from __future__ import annotations

from math import ceil, log2

import pytest
import torch

from fgnn.nn import Message
from fgnn.theory import row_max_network


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 13, 16])
@pytest.mark.parametrize("rows", [1, 3])
def test_it_is_the_maximum_of_every_row(n: int, rows: int) -> None:
    x = torch.randn(200, rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) * 10
    x[0] = x[0, :, :1]  # ties
    got = row_max_network(n, rows)(x)
    torch.testing.assert_close(got, x.amax(-1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 16])
def test_non_negative_entries_need_fewer_units(n: int) -> None:
    net = row_max_network(n, nonnegative=True)
    x = torch.rand(100, 1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(net(x), x.amax(-1), rtol=1e-14, atol=1e-14)
    assert sum(net.hidden_units) <= 2 * n


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_depth_and_width_match_the_proposition(n: int) -> None:
    net = row_max_network(n)
    levels = int(log2(n))
    # the paper counts two layers per level; the linear one merges with the next level
    assert len(net.hidden_units) == levels
    assert len(net.message.tail) + 1 == levels + 1
    assert max(net.hidden_units) == 3 * n // 2 <= 2 * n
    # the total exceeds the paper's 2n units, except for non-negative entries
    assert sum(net.hidden_units) == 3 * (n - 1)
    assert sum(row_max_network(n, nonnegative=True).hidden_units) == 2 * (n - 1) <= 2 * n
    assert (sum(net.hidden_units) > 2 * n) == (n >= 4)


def test_depth_for_any_number_of_columns() -> None:
    for n in range(2, 20):
        assert len(row_max_network(n).hidden_units) == ceil(log2(n))


def test_it_is_a_single_message_network() -> None:
    assert [type(child) for child in row_max_network(5).children()] == [Message]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        row_max_network(0)
    with pytest.raises(ValueError, match=r"matrices of 1 x 3 \(got shape \(3, 1\)\)"):
        row_max_network(3)(torch.zeros(3, 1))
