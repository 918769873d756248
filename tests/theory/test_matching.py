"""The perfect-matching transformation: an FGNN layer as an MPNN layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, MPNNLayer
from fgnn.theory import to_mpnn


def matched_graph(n: int, extra: int, seed: int) -> FactorGraph:
    """A random graph with a hidden perfect matching and factors of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randperm(n, generator=generator).tolist()
    scopes = []
    for own in owner:
        size = int(torch.randint(0, extra + 1, (), generator=generator))
        others = [i for i in torch.randperm(n, generator=generator).tolist() if i != own][:size]
        scopes.append([*others, own])
    return FactorGraph(n, {"c": FactorGroup(scopes)})


def knn_graph(n: int, k: int, seed: int) -> FactorGraph:
    """One factor per point: the point and its k nearest neighbours."""
    points = torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return FactorGraph(n, {"c": FactorGroup(torch.cdist(points, points).topk(k + 1, largest=False).indices)})


def layer_and_features(graph: FactorGraph, seed: int = 0, batch: int | None = 2, **options: Any) -> tuple:
    torch.manual_seed(seed)
    options = {"q": "basis", "schedule": "parallel", "factor_out": 4} | options
    layer = FGNNLayer(3, {"c": 5}, {"c": 6}, 7, **options).double()
    lead = () if batch is None else (batch,)
    f = torch.randn(*lead, graph.num_variables, 3, dtype=torch.float64)
    gs = {"c": torch.randn(*lead, graph.num_factors, 5, dtype=torch.float64)}
    if options["q"] == "table":
        edges = {"c": torch.randint(0, 6, (graph.num_edges,))}
    else:
        edges = {"c": torch.randn(graph.num_edges, 6, dtype=torch.float64)}
    return layer, f, gs, edges


def assert_equal(one: tuple, two: tuple) -> None:
    torch.testing.assert_close(one[0], two[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one[1]["c"], two[1]["c"], rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
@given(
    n=st.integers(1, 12),
    extra=st.integers(0, 4),
    seed=st.integers(0, 999),
    q=st.sampled_from(["dense", "basis", "table"]),
    batch=st.sampled_from([None, 2]),
)
def test_it_equals_the_layer_on_random_graphs(n: int, extra: int, seed: int, q: str, batch: int | None) -> None:
    graph = matched_graph(n, extra, seed)
    layer, f, gs, edges = layer_and_features(graph, seed, batch, q=q)
    mpnn = to_mpnn(layer, graph)
    assert isinstance(mpnn, MPNNLayer)
    assert_equal(mpnn.run(f, gs, edges), layer(graph, f, gs, edges))


@pytest.mark.parametrize("k", [1, 4, 8])
def test_it_equals_the_layer_on_knn_graphs(k: int) -> None:
    graph = knn_graph(60, k, seed=k)
    layer, f, gs, edges = layer_and_features(graph, hidden=(9,))
    mpnn = to_mpnn(layer, graph)
    assert_equal(mpnn.run(f, gs, edges), layer(graph, f, gs, edges))
    assert torch.equal(mpnn.matching.factor, torch.arange(60))


@pytest.mark.parametrize(
    "options",
    [
        {"aggregate": "sum"},
        {"aggregate": "softmax(2)"},
        {"bias": True, "activation": "relu"},
        {"hidden": (8, 6), "message_activation": "identity"},
        {"width": 11},
    ],
)
def test_it_equals_layers_with_other_options(options: dict[str, object]) -> None:
    graph = matched_graph(9, 3, seed=4)
    layer, f, gs, edges = layer_and_features(graph, **options)
    if "bias" in options:
        for parameter in (layer.factor_to_variable.output.bias, layer.variable_to_factor["c"].output.bias):
            torch.nn.init.normal_(parameter)
    assert_equal(to_mpnn(layer, graph).run(f, gs, edges), layer(graph, f, gs, edges))


def test_features_by_position_and_edges_without_features() -> None:
    graph = knn_graph(20, 3, seed=0)
    layer, f, gs, _ = layer_and_features(graph)
    edges = {"c": torch.randn(4, 6, dtype=torch.float64)}
    assert_equal(to_mpnn(layer, graph).run(f, gs, edges), layer(graph, f, gs, edges))
    bare = FGNNLayer(3, {"c": 5}, out=7, schedule="parallel").double()
    assert_equal(to_mpnn(bare, graph).run(f, gs), bare(graph, f, gs))


def test_it_is_an_mpnn_layer_on_super_nodes() -> None:
    graph = matched_graph(8, 3, seed=1)
    layer, f, gs, edges = layer_and_features(graph)
    mpnn = to_mpnn(layer, graph)
    nodes, e = mpnn.stack(f, gs), mpnn.edge_features(edges)
    assert nodes.shape == (2, 8, 5 + 3)
    assert e.shape == (mpnn.neighbours.num_edges, 6 + 6 + 2)
    plain = MPNNLayer.forward(mpnn, mpnn.neighbours, nodes, e)
    assert plain.shape == (2, 8, 4 + 7)
    assert_equal(mpnn.split(plain), layer(graph, f, gs, edges))
    # N(i): the scope of i's factor, and the variables whose factor contains i
    scopes, h = graph.groups["c"].lists(), mpnn.matching.factor.tolist()
    for i, around in enumerate(mpnn.neighbours.lists()):
        assert around == [j for j in range(8) if j in scopes[h[i]] or i in scopes[h[j]]]


def test_without_gates_unrelated_nodes_exchange_messages() -> None:
    graph = matched_graph(12, 3, seed=2)
    layer, f, gs, edges = layer_and_features(graph)
    mpnn, relaxed = to_mpnn(layer, graph), to_mpnn(layer, graph, gated=False)
    one, two = mpnn.run(f, gs, edges), relaxed.run(f, gs, edges)
    # a maximum over more messages is at least as large, and larger somewhere here
    assert (two[0] >= one[0] - 1e-12).all()
    assert (two[0] > one[0] + 1e-6).any()


def test_gates_make_no_difference_if_neighbourhoods_are_symmetric() -> None:
    ring = torch.stack([torch.arange(9), (torch.arange(9) + 1) % 9, (torch.arange(9) - 1) % 9], 1)
    graph = FactorGraph(9, {"c": FactorGroup(ring)})
    layer, f, gs, edges = layer_and_features(graph)
    assert_equal(to_mpnn(layer, graph, gated=False).run(f, gs, edges), layer(graph, f, gs, edges))


def test_a_gate_of_zeros_would_be_wrong_under_a_maximum() -> None:
    """All messages negative: a zero from a missing edge would win."""
    graph = matched_graph(10, 2, seed=5)
    layer, f, gs, edges = layer_and_features(graph, q="table", message_activation="relu")
    with torch.no_grad():
        for matrix in (
            layer.variable_to_factor["c"].edge_messages.matrix,
            layer.factor_to_variable.edge_messages["c"].matrix,
        ):
            matrix.weight.copy_(-matrix.weight.abs() - 0.1)
    wanted = layer(graph, f, gs, edges)
    assert (wanted[0] <= 0).all()
    assert_equal(to_mpnn(layer, graph).run(f, gs, edges), wanted)


def test_gradients_flow_to_the_features() -> None:
    graph = matched_graph(6, 2, seed=3)
    layer, f, gs, edges = layer_and_features(graph, batch=None)
    f.requires_grad_()
    grads = []
    for run in (lambda: to_mpnn(layer, graph).run(f, gs, edges), lambda: layer(graph, f, gs, edges)):
        outputs = run()
        grads.append(torch.autograd.grad(outputs[0].square().sum() + outputs[1]["c"].square().sum(), f)[0])
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def test_a_graph_without_a_perfect_matching_is_refused_with_the_reason() -> None:
    layer, *_ = layer_and_features(matched_graph(3, 1, seed=0))
    too_few = FactorGraph(3, {"c": FactorGroup([[0, 1], [1, 2]])})
    with pytest.raises(ValueError, match=r"as many factors as variables .* \(got 2 factors and 3 variables\)"):
        to_mpnn(layer, too_few)
    crowded = FactorGraph(3, {"c": FactorGroup([[0, 1], [0, 1], [0, 1]])})
    with pytest.raises(ValueError, match="the 3 factors 0, 1, 2 hold only 2 variables between them"):
        to_mpnn(layer, crowded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "sequential"}, r"parallel schedule.*\(got sequential\)"),
        ({"aggregate": "mean"}, "max, softmax or sum"),
        ({"norm": "layer"}, "without normalisation"),
        ({"variables_only": True}, "returns factor features too"),
    ],
)
def test_layers_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    graph = matched_graph(4, 1, seed=0)
    layer, *_ = layer_and_features(graph, **options)
    with pytest.raises(ValueError, match=message):
        to_mpnn(layer, graph)


def test_several_groups_are_refused() -> None:
    graph = FactorGraph(2, {"a": FactorGroup([[0]]), "b": FactorGroup([[1]])})
    layer = FGNNLayer(1, {"a": 1, "b": 1}, out=2, schedule="parallel")
    with pytest.raises(ValueError, match="one group of factors"):
        to_mpnn(layer, graph)
