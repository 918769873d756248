"""Prop. 3: the row maximum as a ReLU network of the stated depth, and its actual number of units."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
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
def test_non_negative_entries_do_without_negative_parts(n: int) -> None:
    net = row_max_network(n, nonnegative=True)
    x = torch.rand(100, 1, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(net(x), x.amax(-1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 17])
def test_selection_returns_an_entry_bit_for_bit(n: int) -> None:
    """Entries of very different size, ties, and neighbours in floating point."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(400, 2, n, dtype=torch.float64, generator=generator)
    x *= 10.0 ** torch.randint(-20, 20, x.shape, generator=generator)
    x[:50] = x[:50, :, :1]
    x[50:100] = 0.1 * torch.randint(-2, 3, x[50:100].shape, generator=generator)
    x[100:200] = torch.nextafter(x[100:200, :, :1].expand(-1, -1, n).contiguous(), x[200:300])
    x[200:300] = -(2.0 ** torch.randint(-2, 2, x[200:300].shape, generator=generator))
    x[200:300] *= 1 + 2.0**-53 * torch.randint(-1, 3, x[200:300].shape, generator=generator)
    assert torch.equal(row_max_network(n, 2, select=True)(x), x.amax(-1))
    assert torch.equal(row_max_network(n, 2, select=True, nonnegative=True)(x.abs()), x.abs().amax(-1))


def test_the_printed_form_cancels_within_its_bound_and_selection_does_not() -> None:
    for n in (2, 5, 9):
        x = torch.full((1, n), -1e9, dtype=torch.float64)
        x[0, 0] = 0.3
        error = abs(row_max_network(n)(x).item() - 0.3)
        assert 1e-9 < error <= ceil(log2(n)) * 2.0**-51 * 1e9
        assert row_max_network(n, select=True)(x).item() == 0.3


def test_selection_is_exact_over_the_reals_too() -> None:
    """The network in rational arithmetic, on pairs that differ by less than double precision resolves."""
    message = row_max_network(2, select=True).message
    layers = [(torch.cat([message.factor_weight, message.variable_weight], 1), message.bias)]
    layers += [(layer.weight, layer.bias) for layer in message.tail]
    for a, b in product((Fraction(1, 3), Fraction(-7, 5), Fraction(0), Fraction(10**40)), repeat=2):
        for gap in (Fraction(0), Fraction(1, 10**30), Fraction(-1, 10**12), Fraction(1, 2**53)):
            units = [a, b + gap]
            for at, (weight, bias) in enumerate(layers):
                units = [
                    sum((Fraction(w) * u for w, u in zip(row, units, strict=True)), start=Fraction(shift))
                    for row, shift in zip(weight.tolist(), bias.tolist(), strict=True)
                ]
                units = units if at == len(layers) - 1 else [max(u, Fraction(0)) for u in units]
            assert units == [max(a, b + gap)]


@pytest.mark.parametrize("n", range(2, 40))
def test_the_number_of_units_for_every_n(n: int) -> None:
    levels = [ceil(n / 2**level) for level in range(ceil(log2(n)))]
    total, fewer = sum(row_max_network(n).hidden_units), sum(row_max_network(n, nonnegative=True).hidden_units)
    assert fewer == sum(levels)
    assert total == 2 * sum(levels) - n + 1 >= 3 * (n - 1)
    assert max(row_max_network(n).hidden_units) == n + ceil(n / 2) <= 2 * n
    # the paper's bound of 2n units
    assert (total <= 2 * n) == (n == 2)
    assert fewer <= 2 * n or n in {9, 17, 18, 19, 21, 25, 33, 34, 35, 36, 37, 38, 39}


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
