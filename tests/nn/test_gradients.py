"""Gradients equal those of the loop over edges, pass gradcheck, and on a tie go to the first maximum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes, Incidence
from fgnn.nn import Aggregation, FGNNLayer, aggregate_messages
from fgnn.nn.backends.torch import chunks
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph
from tests.nn.oracle import layer_loop
from tests.nn.test_layer import AGGREGATIONS, FORMS, GRAPHS, make


def assert_gradients_equal_loop(layer: FGNNLayer, graph: FactorGraph, f, gs, edges) -> None:  # type: ignore[no-untyped-def]
    """Against autograd through the loop, for inputs and parameters; all samples at once."""
    leaves = [f, *gs.values(), *(t for t in edges.values() if t.dtype.is_floating_point)]
    for leaf in leaves:
        leaf.requires_grad_()
    leaves += list(layer.parameters())
    new, made = layer(graph, f, gs, edges)
    rng = torch.Generator().manual_seed(1)
    mix = [torch.randn(x.shape, generator=rng, dtype=x.dtype) for x in (new, *made.values())]
    found = torch.autograd.grad(sum((w * x).sum() for w, x in zip(mix, (new, *made.values()), strict=True)), leaves)
    total = 0 * f.sum()
    for b in range(f.shape[0]):
        one_f, one_gs = layer_loop(layer, graph, f[b], {k: g[b] for k, g in gs.items()}, edges)
        total = total + sum((w[b] * x).sum() for w, x in zip(mix, (one_f, *one_gs.values()), strict=True))
    expected = torch.autograd.grad(total, leaves, allow_unused=True)
    for leaf, one, other in zip(leaves, found, expected, strict=True):
        other = torch.zeros_like(leaf) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("structure", GRAPHS)
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("q", FORMS)
def test_gradients_equal_those_of_the_loop(q: str, aggregate: str, structure: str, batch: int) -> None:
    graph = GRAPHS[structure]()
    layer, factor_in, edge_in = make(graph, q, aggregate=aggregate)
    assert_gradients_equal_loop(layer, graph, *features(graph, 4, factor_in, edge_in, batch=batch, types=q == "table"))


@pytest.mark.parametrize("q", FORMS)
@pytest.mark.parametrize("batch", [1, 5])
def test_gradients_do_not_depend_on_the_chunk_size(q: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunks._CHUNK, "cpu", 50)
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, q)
    assert_gradients_equal_loop(layer, graph, *features(graph, 4, factor_in, edge_in, batch=batch, types=q == "table"))


@settings(max_examples=20)
@given(graph=graphs(max_variables=5, max_factors=3), seed=st.integers(0, 99), q=st.sampled_from(FORMS))
def test_any_structure(graph: FactorGraph, seed: int, q: str) -> None:
    layer, factor_in, edge_in = make(graph, q)
    assert_gradients_equal_loop(
        layer, graph, *features(graph, 4, factor_in, edge_in, batch=1, types=q == "table", seed=seed)
    )


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("towards", ["factor", "variable"])
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("typed", [False, True])
def test_gradcheck(typed: bool, aggregate: str, towards: str, batch: int | None) -> None:
    incidence = Incidence.of(FactorGroup([[0], [2, 1, 3], [], [3, 2]]), 5)
    rng = torch.Generator().manual_seed(3)
    lead = () if batch is None else (batch,)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()

    a, b, weight = leaf(*lead, 4, 2), leaf(*lead, 5, 2), leaf(2, 2, 2)
    types = EdgeTypes(torch.randint(2, (incidence.num_edges,), generator=rng), 2)
    # 0 for -inf: gradcheck compares numbers
    call = {"towards": towards, "aggregation": Aggregation.parse(aggregate)}
    if typed:
        assert torch.autograd.gradcheck(
            lambda a, b, w: aggregate_messages(a, b, incidence, types, w, **call).nan_to_num(neginf=0), (a, b, weight)
        )
        return
    for phi in (leaf(incidence.num_edges, 2), *([leaf(batch, incidence.num_edges, 2)] if batch else [])):
        assert torch.autograd.gradcheck(
            lambda a, b, p, w: aggregate_messages(a, b, incidence, p, w, **call).nan_to_num(neginf=0),
            (a, b, phi, weight),
        )


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    ("group", "towards", "winner"),
    [
        (FactorGroup([[0, 1, 2]]), "factor", 0),
        (FactorGroup([[3, 1], [2, 0, 1]]), "factor", 0),
        (FactorGroup([[3, 1], [1, 0], [2, 1]]), "variable", 1),
        (FactorGroup([[3, 0], [2, 3, 1], [1], [1, 3]]), "variable", 4),
    ],
)
def test_on_a_tie_the_first_edge_gets_all(
    group: FactorGroup, towards: str, winner: int, batch: int, typed: bool
) -> None:
    """All messages are equal, so the winner of a destination is its edge of the lowest number."""
    incidence = Incidence.of(group, 4)
    edges = incidence.num_edges
    h = torch.ones(batch, edges, 2, dtype=torch.float64, requires_grad=True)
    coefficients = EdgeTypes(torch.zeros(edges, dtype=torch.long), 1) if typed else torch.ones(edges, 1).double()
    weight = torch.ones(1, 3, 2, dtype=torch.float64)
    out = aggregate_messages(h, None, incidence, coefficients, weight, towards=towards, activation="identity")
    at = int(incidence.destination(towards)[winner])
    out[:, at].sum().backward()
    assert h.grad is not None
    expected = torch.zeros_like(h)
    expected[:, winner] = 3.0
    torch.testing.assert_close(h.grad, expected)


def test_on_a_tie_of_groups_the_earlier_group_gets_all() -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis")
    first, second = layer.factor_to_variable.edge_messages.values()
    for parts in (first, second):
        torch.nn.init.zeros_(parts.matrix.weight)
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    layer(graph, f, gs, edges)[0].sum().backward()
    assert first.matrix.weight.grad.abs().sum() > 0
    # variable 4 alone is in no pair: only there do triples win
    assert second.matrix.weight.grad.abs().sum() > 0
    graph = FactorGraph(7, {k: FactorGroup(g.scopes[:2]) for k, g in graph.groups.items()})
    layer.zero_grad()
    edges = {k: t[: graph.groups[k].num_edges] for k, t in edges.items()}
    layer(graph, f, {k: g[:2] for k, g in gs.items()}, edges)[0][:3].sum().backward()
    assert second.matrix.weight.grad.abs().sum() == 0


def test_a_gradient_can_be_computed_for_each_input_alone() -> None:
    graph = ragged_graph()
    incidence = graph.incidence("any")
    a, b = torch.randn(6, 3), torch.randn(8, 3)
    phi, weight = torch.randn(incidence.num_edges, 4), torch.randn(4, 2, 3)
    for k, leaf in enumerate((a, b, phi, weight)):
        inputs = [t.clone() for t in (a, b, phi, weight)]
        inputs[k].requires_grad_()
        out = aggregate_messages(inputs[0], inputs[1], incidence, inputs[2], inputs[3], towards="variable")
        out[:4].sum().backward()
        assert inputs[k].grad is not None
        assert inputs[k].grad.shape == leaf.shape
