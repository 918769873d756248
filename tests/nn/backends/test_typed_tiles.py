"""Typed edges in tiles: whatever their size, the values and gradients of a plain loop over edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn import Aggregation, FGNNLayer
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.torch import chunks, typed_tiles
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.torch.typed_tiles import tiles

SCOPES: dict[str, list[list[int]]] = {
    "uniform": [[0, 1, 2], [3, 1, 0], [4, 2, 1], [1, 0, 4], [2, 4, 3]],
    "ragged": [[0], [2, 1, 3], [], [4, 2], [0, 1, 2, 3], [3]],
    "hub": [[0, k] for k in range(1, 12)],
    "one": [[2, 0]],
}
EDGES = {"pair": torch.tensor([0, 1])}  # types by position
SIDES: tuple[Side, Side] = ("factor", "variable")


def problem(name: str, towards: Side, kind: Any, batch: int, kinds: int | None, per_edge: bool = False) -> EdgeInputs:
    """Edges typed by position, or of random types of which some may not occur; the last variable has no edges."""
    rng = torch.Generator().manual_seed(0)
    group = FactorGroup(SCOPES[name])
    incidence = Incidence.of(group, 13)
    types = incidence.positions
    if kinds is not None:
        types = EdgeTypes(torch.randint(kinds, (incidence.num_edges,), generator=rng), kinds)
    call = EdgeCall(incidence, towards, True, Aggregation(kind), types, batch)

    def draw(*shape: int) -> Tensor:
        """Small integers: exact, with many ties."""
        return torch.randint(-3, 4, shape, generator=rng).double().requires_grad_()

    nodes = incidence.num_edges if per_edge else incidence.num_factors
    b = None if per_edge else draw(13, batch, 4)
    return EdgeInputs(draw(nodes, batch, 4), b, None, draw(types.num_types, 3, 4), call)


def by_loop(inputs: EdgeInputs) -> Tensor:
    """The aggregate, edge by edge; where there is none, zero.  # shape: (D, B, m)"""
    call, messages = inputs.call, {}
    assert call.types is not None
    incidence = call.incidence
    for e in range(incidence.num_edges):
        c, i = int(incidence.factor[e]), int(incidence.variable[e])
        h = inputs.a[e] if inputs.b is None else inputs.a[c] + inputs.b[i]
        messages.setdefault(c if call.towards == "factor" else i, []).append(
            h.relu() @ inputs.weight[call.types.index[e]].T
        )
    found = []
    for d in range(incidence.num_destinations(call.towards)):
        x = torch.stack(messages.get(d, [torch.zeros(inputs.batch, 3).double()]))
        gamma = call.aggregation.gamma
        if call.aggregation.kind == "max":
            x, place = x.max(0).values, (x == x.amax(0)).to(torch.uint8).argmax(0)
            rows = torch.stack(messages.get(d, [torch.zeros(inputs.batch, 3).double()]))
            x = rows.gather(0, place.unsqueeze(0)).squeeze(0)  # the gradient to the first maximum
        else:
            x = (x * gamma).logsumexp(0) / gamma if call.aggregation.kind == "softmax" else x.sum(0)
        found.append(x)
    return torch.stack(found)


def covered(inputs: EdgeInputs) -> Tensor:
    """Whether a destination has edges.  # shape: (D, 1, 1)"""
    return (inputs.call.incidence.degree(inputs.call.towards) > 0).view(-1, 1, 1)


@pytest.fixture(params=[1 << 19, 40, 12, 1], ids=lambda size: f"limit {size}")
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """From one tile with all samples down to one destination and one sample at a time."""
    monkeypatch.setitem(chunks._CHUNK, "cpu", request.param)
    monkeypatch.setattr(typed_tiles, "_EDGES", request.param // 4)
    monkeypatch.setattr(typed_tiles, "MIN_ROWS", 1)
    return int(request.param)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("towards", SIDES)
@pytest.mark.parametrize("kind", ["max", "sum", "softmax"])
@pytest.mark.parametrize("name", list(SCOPES))
@pytest.mark.parametrize(("kinds", "per_edge"), [(None, False), (1, False), (3, False), (2, True)])
def test_values_and_gradients(name: str, towards: Side, kind: str, kinds: int | None, per_edge: bool) -> None:
    inputs = problem(name, towards, kind, 5, kinds, per_edge)
    assert inputs.call.types is not None
    live = covered(inputs)
    leaves = [x for x in (inputs.a, inputs.b, inputs.weight) if x is not None]
    wanted = by_loop(inputs)
    up = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double() * live
    expected = torch.autograd.grad(wanted, leaves, up)
    with torch.no_grad():
        values, arg = typed_tiles.forward(inputs, inputs.call.types, True)
        assert (arg is None) == (kind != "max")
        out = values if kind == "softmax" else None
        d_a, d_b, d_phi, d_weight = typed_tiles.backward(up, inputs, inputs.call.types, arg, out, [True] * 4)
    torch.testing.assert_close(values[live.flatten()], wanted[live.flatten()])
    assert torch.equal(values[~live.flatten()].unique(), torch.tensor([inputs.call.aggregation.neutral])[live.all() :])
    assert d_phi is None
    for one, other in zip([x for x in (d_a, d_b, d_weight) if x is not None], expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "wants", [(True, False, False, False), (False, True, False, False), (False, False, False, True)]
)
def test_only_wanted_gradients_are_returned(wants: tuple[bool, ...]) -> None:
    inputs = problem("uniform", "variable", "max", 2, None)
    assert inputs.call.types is not None
    with torch.no_grad():
        _, arg = typed_tiles.forward(inputs, inputs.call.types, True)
        found = typed_tiles.backward(torch.ones(13, 2, 3).double(), inputs, inputs.call.types, arg, None, wants)
    assert [x is not None for x in found] == list(wants)


@pytest.mark.parametrize("towards", SIDES)
@pytest.mark.parametrize("name", list(SCOPES))
@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_every_edge_is_in_one_tile_with_all_others_of_its_destination(name: str, towards: Side, size: int) -> None:
    incidence = Incidence.of(FactorGroup(SCOPES[name]), 13)
    types = EdgeTypes(torch.arange(incidence.num_edges) % 3, 3)
    found = tiles(incidence, types, towards, size)
    edges = torch.cat([tile.edges for tile in found])
    assert torch.equal(edges.sort().values, torch.arange(incidence.num_edges))
    for tile in found:
        degrees = incidence.degree(towards)[tile.destination(towards).unique()]
        assert int(degrees.sum()) == len(tile.edges)
        for kinds, rows in tile.runs:
            each = types.index[tile.edges[rows]].view(kinds.stop - kinds.start, -1)
            assert torch.equal(each, torch.arange(kinds.start, kinds.stop).view(-1, 1).expand_as(each))
    assert tiles(incidence, types, towards, size) is found


def test_a_whole_group_by_position_reads_its_factors_in_order() -> None:
    """No features of factors are gathered then, in either direction."""
    incidence = Incidence.of(FactorGroup(SCOPES["uniform"]), 13)
    for towards in SIDES:
        (tile,) = tiles(incidence, incidence.positions, towards, 1000)
        assert tile.factors == slice(0, 5)
        assert len(tile.runs) == 1


def test_sums_in_half_precision_are_rounded_once() -> None:
    """300 equal gradients at one variable: added up in bfloat16, they would stop at 256."""
    incidence = Incidence.of(FactorGroup([[0, 1]] * 300), 2)
    call = EdgeCall(incidence, "factor", False, Aggregation("sum"), incidence.one_type, 1)
    a, b, weight = torch.zeros(300, 1, 1), torch.ones(2, 1, 1), torch.ones(1, 1, 1)
    inputs = EdgeInputs(a.bfloat16(), b.bfloat16(), None, weight.bfloat16(), call)
    values, _ = typed_tiles.forward(inputs, incidence.one_type, False)
    assert values.unique().tolist() == [2]
    up = torch.ones(300, 1, 1).bfloat16()
    _, d_b, _, d_weight = typed_tiles.backward(up, inputs, incidence.one_type, None, None, [True] * 4)
    assert d_b is not None
    assert d_b.flatten().tolist() == [300, 300]
    assert d_weight is not None
    assert d_weight.item() == 600


@pytest.mark.parametrize("towards", SIDES)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_sums_at_a_hub_keep_their_digits(kind: str, towards: Side) -> None:
    """20,000 terms added up one after the other in float32 would be wrong in the fourth digit."""
    n = 20_000
    layer = FGNNLayer(1, {"all": 0}, out=2, aggregate=kind).double()
    graph = FactorGraph(n, {"all": FactorGroup([list(range(n))])})
    if towards == "factor":
        graph = FactorGraph(n + 1, {"all": FactorGroup([[n, i] for i in range(n)])})
    x = torch.rand(graph.num_variables, 1, generator=torch.Generator().manual_seed(0)).double()
    results = []
    for dtype in (torch.float64, torch.float32):
        layer, f = layer.to(dtype), x.to(dtype).requires_grad_()
        new_f, new_gs = layer(graph, f)
        results.append([new_f, *new_gs.values(), *torch.autograd.grad(new_f.sum() + new_gs["all"].sum(), [f])])
    for exact, found in zip(*results, strict=True):
        assert (found.double() - exact).norm() <= 2e-6 * exact.norm()


def test_many_types_share_few_products() -> None:
    """A tile and a chunk of samples are large enough that the rows of a type are worth reading its matrix."""
    incidence = Incidence.of(FactorGroup(torch.arange(12_000).view(-1, 2)), 12_000)
    types = EdgeTypes(torch.arange(12_000) % 500, 500)
    call = EdgeCall(incidence, "factor", True, Aggregation("max"), types, 16)
    work = typed_tiles._Work(
        EdgeInputs(torch.zeros(6000, 16, 32), torch.zeros(12_000, 16, 32), None, torch.zeros(500, 32, 32), call), types
    )
    rows = sum(len(tile.edges) for tile in work.tiles) * 16 / (len(work.samples) * len(work.tiles) * 500)
    assert rows >= 50


def test_layers_of_all_widths_share_tiles() -> None:
    graph = FactorGraph(200, {"pair": FactorGroup(torch.arange(200).view(-1, 2))})
    for width in (8, 24, 64, 200):
        FGNNLayer(4, {"pair": 0}, {"pair": 2}, out=width, q="table")(graph, torch.zeros(200, 4), None, EDGES)
    kept = graph.incidence("pair").positions._derived["tiles"]
    assert len(kept) == 2


def test_types_keep_the_tiles_of_few_graphs() -> None:
    types = EdgeTypes(torch.arange(20) % 2, 2)
    layer = FGNNLayer(4, {"pair": 0}, {"pair": 2}, out=8, q="table")
    for _ in range(10):
        graph = FactorGraph(20, {"pair": FactorGroup(torch.randperm(20).view(-1, 2))})
        layer(graph, torch.zeros(20, 4), None, {"pair": types})
    assert len(types._derived["tiles"]) <= 4
