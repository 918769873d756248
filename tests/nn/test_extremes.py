"""Layers at the edge of floating point: right by exact rational arithmetic, or not a number for all to see."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes
from fgnn.nn import Aggregation, FGNNLayer
from fgnn.nn.aggregate import combine_groups
from fgnn.nn.functional import aggregate_messages

GRAPH = FactorGraph(4, {"pair": FactorGroup(torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3]]))})


def _by_fractions(a: Tensor, b: Tensor, types: Tensor, weight: Tensor, how: str) -> list[list[Fraction]]:
    """Every factor's aggregate of W h with h = relu(a + b), without rounding."""
    out = []
    for c in range(len(a)):
        messages = []
        for place, i in enumerate(GRAPH.groups["pair"].lists()[c]):
            pre = [Fraction(float(x)) + Fraction(float(y)) for x, y in zip(a[c], b[i], strict=True)]
            h = [max(x, Fraction(0)) for x in pre]
            w = weight[int(types[2 * c + place])]
            messages.append([sum(Fraction(float(q)) * x for q, x in zip(row, h, strict=True)) for row in w])
        columns = zip(*messages, strict=True)
        out.append([max(column) if how == "max" else sum(column) for column in columns])
    return out


@pytest.mark.parametrize("how", ["max", "sum"])
@pytest.mark.parametrize("size", [1e-320, 1e-160, 1.0, 1e150, 1e300], ids=lambda s: f"{s:g}")
def test_aggregates_are_right_by_rational_arithmetic(how: str, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    incidence = GRAPH.incidence("pair")
    a, b = (torch.randn(4, 3, generator=generator, dtype=torch.float64) * size for _ in range(2))
    weight = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)
    a[1], b[1], b[2] = a[0], b[0], b[0]  # ties
    types = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1])
    out = aggregate_messages(
        a, b, incidence, EdgeTypes(types, 2), weight, towards="factor", aggregation=Aggregation.parse(how)
    )
    for row, wanted in zip(out, _by_fractions(a, b, types, weight, how), strict=True):
        for value, exact in zip(row, wanted, strict=True):
            # three products and sums: a few units in the last place, of the largest, or of the least denormal
            allowed = max(Fraction(1, 2**49) * Fraction(size) * 8, Fraction(5e-324) * 8)
            assert abs(Fraction(float(value)) - exact) <= allowed


@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax"])
@pytest.mark.parametrize("q", ["basis", "dense", "table"])
def test_what_is_not_a_number_is_not_hidden(aggregate: str, q: str) -> None:
    """A NaN reaches all that depends on it, so that the loss shows it."""
    torch.manual_seed(0)
    graph = FactorGraph(3, {"one": FactorGroup(torch.tensor([[0, 1]])), "two": FactorGroup(torch.tensor([[0, 2]]))})
    layer = FGNNLayer(
        variable_in=2, factor_in={"one": 2, "two": 2}, edge_in={"one": 2, "two": 2}, out=4, q=q, aggregate=aggregate
    ).double()
    f = torch.randn(3, 2, dtype=torch.float64)
    gs = {name: torch.randn(1, 2, dtype=torch.float64) for name in ("one", "two")}
    edges = {name: torch.eye(2, dtype=torch.float64) for name in ("one", "two")}
    for name in ("one", "two"):  # the second group's NaN meets the first group's numbers, and the other way round
        poisoned = {k: v.clone() for k, v in gs.items()}
        poisoned[name][0, 0] = math.nan
        out, _ = layer(graph, f, poisoned, edges)
        assert bool(out[0].isnan().all())
    out, _ = layer(graph, f, gs, edges)
    assert bool(out.isfinite().all())


def test_a_union_of_groups_keeps_a_nan_from_either() -> None:
    one, two = torch.tensor([math.nan, 1.0, 2.0]), torch.tensor([0.0, math.nan, -math.inf])
    for parts in ([one, two], [two, one]):
        found = combine_groups(parts, Aggregation("max"))
        assert found[:2].isnan().all()
        assert float(found[2]) == 2.0


def test_of_two_groups_that_tie_the_first_has_the_gradient() -> None:
    torch.manual_seed(2)
    a, b = (torch.randint(-2, 3, (30, 7)).double().requires_grad_() for _ in range(2))
    upstream = torch.randn(30, 7, dtype=torch.float64)
    found = combine_groups([a, b], Aggregation("max"))
    torch.autograd.backward(found, upstream)
    assert torch.equal(found, torch.maximum(a, b))
    second = b > a
    assert a.grad is not None
    assert b.grad is not None
    assert torch.equal(a.grad, upstream * ~second)
    assert torch.equal(b.grad, upstream * second)
