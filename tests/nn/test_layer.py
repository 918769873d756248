"""The FGNN layer is Alg. 1: it equals a plain loop over edges in every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, build
from fgnn.nn.backends.torch import chunks
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph
from tests.nn.oracle import layer_loop

FORMS = ["dense", "basis", "table"]
AGGREGATIONS = ["max", "sum", "mean", "softmax(2.5)"]
GRAPHS = {"uniform": uniform_graph, "ragged": ragged_graph}


def make(graph: FactorGraph, q: str, **options: object) -> tuple[FGNNLayer, dict[str, int], dict[str, int]]:
    factor_in = {name: 3 + k for k, name in enumerate(graph.groups)}
    edge_in = {name: 2 + k for k, name in enumerate(graph.groups)}
    torch.manual_seed(0)
    layer = FGNNLayer(4, factor_in, edge_in, 5, q=q, **options).double()
    return layer, factor_in, edge_in


def assert_equals_loop(layer: FGNNLayer, graph: FactorGraph, f, gs, edges) -> None:  # type: ignore[no-untyped-def]
    found_f, found_gs = layer(graph, f, gs, edges)
    samples = [None] if f.dim() == 2 else list(range(f.shape[0]))
    for b in samples:
        one = (lambda x: x) if b is None else (lambda x, b=b: x[b])
        expected_f, expected_gs = layer_loop(layer, graph, one(f), {k: one(g) for k, g in gs.items()}, edges)
        torch.testing.assert_close(one(found_f), expected_f, rtol=1e-12, atol=1e-12)
        for name in expected_gs:
            torch.testing.assert_close(one(found_gs[name]), expected_gs[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [None, 2, 5])
@pytest.mark.parametrize("structure", GRAPHS)
@pytest.mark.parametrize("schedule", ["sequential", "parallel"])
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("q", FORMS)
def test_equals_a_loop_over_edges(q: str, aggregate: str, schedule: str, structure: str, batch: int | None) -> None:
    graph = GRAPHS[structure]()
    layer, factor_in, edge_in = make(graph, q, aggregate=aggregate, schedule=schedule)
    f, gs, edges = features(graph, 4, factor_in, edge_in, batch=batch, types=q == "table")
    with torch.no_grad():
        assert_equals_loop(layer, graph, f, gs, edges)


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("q", FORMS)
def test_chunks_do_not_show(q: str, batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunks._CHUNK, "cpu", 40)
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, q)
    f, gs, edges = features(graph, 4, factor_in, edge_in, batch=batch, types=q == "table")
    with torch.no_grad():
        assert_equals_loop(layer, graph, f, gs, edges)


@pytest.mark.parametrize("q", FORMS)
def test_messages_of_several_layers(q: str) -> None:
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, q, hidden=(6, 7), width=3)
    f, gs, edges = features(graph, 4, factor_in, edge_in, batch=2, types=q == "table")
    with torch.no_grad():
        assert_equals_loop(layer, graph, f, gs, edges)


def test_linear_messages_and_other_factor_widths() -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(
        graph, "basis", message_activation="identity", factor_out={"pair": 2, "triple": 7}, q_options={"bases": 3}
    )
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    with torch.no_grad():
        assert_equals_loop(layer, graph, f, gs, edges)
        assert layer(graph, f, gs, edges)[1]["triple"].shape == (5, 7)


@given(graph=graphs(), seed=st.integers(0, 2**16), q=st.sampled_from(FORMS), aggregate=st.sampled_from(AGGREGATIONS))
def test_any_structure(graph: FactorGraph, seed: int, q: str, aggregate: str) -> None:
    layer, factor_in, edge_in = make(graph, q, aggregate=aggregate)
    f, gs, edges = features(graph, 4, factor_in, edge_in, types=q == "table", seed=seed)
    with torch.no_grad():
        assert_equals_loop(layer, graph, f, gs, edges)


@pytest.mark.parametrize("q", FORMS)
def test_edge_features_may_come_by_edge_by_factor_or_by_place(q: str) -> None:
    graph = FactorGraph(4, {"triple": FactorGroup([[0, 1, 2], [1, 3, 2]])})
    layer = FGNNLayer(4, {"triple": 3}, {"triple": 3}, 5, q=q).double()
    f, gs, _ = features(graph, 4, {"triple": 3}, {"triple": 3}, batch=2)
    by_place = torch.eye(3, dtype=torch.float64)[[2, 0, 1]]
    by_factor = by_place.expand(2, 3, 3)
    shapes = [by_place, by_factor, by_factor.reshape(6, 3), by_factor.expand(2, 2, 3, 3).contiguous()]
    if q == "table":
        shapes += [torch.tensor([2, 0, 1]), torch.tensor([[2, 0, 1]] * 2), torch.tensor([[2, 0, 1] * 2] * 2)]
    results = [layer(graph, f, gs, {"triple": t})[0] for t in shapes]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("q", ["dense", "basis"])
def test_samples_may_have_edge_features_of_their_own(q: str) -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, q)
    f, gs, _ = features(graph, 4, factor_in, edge_in, batch=5)
    edges = {name: torch.randn(5, g.num_edges, edge_in[name]).double() for name, g in graph.groups.items()}
    together = layer(graph, f, gs, edges)[0]
    for b in range(5):
        alone = layer(graph, f[b], {k: g[b] for k, g in gs.items()}, {k: t[b] for k, t in edges.items()})[0]
        torch.testing.assert_close(together[b], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor_in": ["pair"]}, r"factor_in as a dict by group \(got list\)"),
        ({"factor_in": {}}, "at least one group"),
        ({"factor_in": {"a.b": 1}}, r"without '\.' .*got 'a\.b' in factor_in"),
        ({"factor_in": {"keys": 1}}, "got 'keys' in factor_in"),
        ({"factor_in": {"pair": 1}, "edge_in": 3}, r"edge_in as a dict by group \(got int\)"),
        ({"factor_in": {"pair": 1, "one": 1}, "factor_out": {"pair": 2}}, r"\['pair', 'one'\] \(got \['pair'\]\)"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FGNNLayer(4, **options)


def test_every_parameter_gets_a_gradient_without_features_of_factors() -> None:
    """DistributedDataParallel waits for all of them, also after they were frozen for a while."""
    net = build("FGNN(4) - FC(2)", variable_in=2, factor_in={"pair": 0, "triple": 0})
    net.requires_grad_(False).requires_grad_(True)
    net(uniform_graph(), torch.randn(7, 2)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert "layers.0.variable_to_factor.pair.edge_messages.message.factor_weight" in net.state_dict()


def test_features_may_be_absent() -> None:
    graph = uniform_graph()
    layer = FGNNLayer(4, {"pair": 0, "triple": 0}, None, 5)
    f = torch.randn(3, 7, 4)
    new, gs = layer(graph, f)
    assert new.shape == (3, 7, 5)
    assert gs["pair"].shape == (3, 4, 5)


def test_features_of_one_side_may_be_shared_by_all_samples() -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis")
    f, gs, edges = features(graph, 4, factor_in, edge_in, batch=3)
    shared = {name: g[0] for name, g in gs.items()}
    expanded = {name: g.expand(3, -1, -1) for name, g in shared.items()}
    torch.testing.assert_close(layer(graph, f, shared, edges)[0], layer(graph, f, expanded, edges)[0])


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("options", [{}, {"bias": True, "norm": "layer", "activation": "relu"}])
def test_no_edges_no_message_no_gradient(aggregate: str, options: dict[str, object]) -> None:
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, "basis", aggregate=aggregate, **options)
    for half in [*layer.variable_to_factor.values(), layer.factor_to_variable]:
        if half.output.bias is not None:
            torch.nn.init.ones_(half.output.bias)
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    f.requires_grad_()
    new, made = layer(graph, f, gs, edges)
    assert (new[6:] == 0).all()
    assert (made["any"][2] == 0).all()
    (gradient,) = torch.autograd.grad(new[6:].sum() + made["any"][2].sum() + 0 * f.sum(), f)
    assert (gradient == 0).all()


def test_a_graph_without_factors_gives_zeros() -> None:
    layer = FGNNLayer(2, {"pair": 1}, {"pair": 1}, 3)
    new, made = layer(FactorGraph(4, {}), torch.randn(2, 4, 2))
    assert new.shape == (2, 4, 3)
    assert (new == 0).all()
    assert made == {}


def test_mistakes_are_named() -> None:
    graph = uniform_graph()
    with pytest.raises(ValueError, match=r"Expected q among .*\(got 'full'\)"):
        FGNNLayer(2, {"pair": 1}, {"pair": 1}, 3, q="full")
    with pytest.raises(ValueError, match="Expected schedule 'sequential' or 'parallel'"):
        FGNNLayer(2, {"pair": 1}, {"pair": 1}, 3, schedule="both")
    with pytest.raises(ValueError, match="Expected an aggregation among"):
        FGNNLayer(2, {"pair": 1}, {"pair": 1}, 3, aggregate="median")
    layer, factor_in, edge_in = make(graph, "basis")
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    with pytest.raises(ValueError, match=r"Expected f of shape \(7, 4\) or .* the variables \(got \(7, 3\)\)"):
        layer(graph, f[:, :3], gs, edges)
    with pytest.raises(ValueError, match=r"Expected gs\['pair'\] of shape \(4, 3\) .* group 'pair' \(got none\)"):
        layer(graph, f, {}, edges)
    with pytest.raises(ValueError, match=r"Expected edges\['pair'\] of shape \(C, A, 2\) or .* C = 4, A = 2"):
        layer(graph, f, gs, {**edges, "pair": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match=r"Expected groups \['pair', 'triple'\] in graph \(got \['other'\]\)"):
        layer(FactorGraph(7, {"other": FactorGroup([[0, 1]])}), f, {}, {})
    with pytest.raises(ValueError, match="Expected the same number of samples"):
        layer(graph, f.expand(2, -1, -1), {k: g.expand(3, -1, -1) for k, g in gs.items()}, edges)
    with pytest.raises(ValueError, match=r"Expected edges\['triple'\], features of length 3 .*\(got none\)"):
        layer(graph, f, gs, {"pair": edges["pair"]})


def test_swapped_arguments_are_named() -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis")
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    expected, _ = layer(graph, f, gs, edges)
    with pytest.raises(ValueError, match=r"FactorGraph as graph \(got tensor of shape \(7, 4\)\)"):
        layer(f, graph, gs, edges)
    with pytest.raises(
        ValueError, match=r"Expected f.* as a tensor \(got dict\); the arguments are \(graph, f, gs, edges\)"
    ):
        layer(graph, gs, f, edges)
    with pytest.raises(ValueError, match=r"Expected gs as a dict by group \(got tensor of shape \(7, 4\)\)"):
        layer(graph, f, f, edges)
    with pytest.raises(
        ValueError, match=r"Expected gs\['pair'\].* \(4, 3\).* \(got \(8, 2\)\); gs and edges look swapped"
    ):
        layer(graph, f, edges, gs)
    with pytest.raises(ValueError, match=r"Expected gs\['triple'\] in the layer's torch.float64 \(got torch.float32\)"):
        layer(graph, f, {**gs, "triple": gs["triple"].float()}, edges)
    assert torch.equal(layer(graph, f, gs, edges)[0], expected)  # a refused call leaves the layer as it was
    with pytest.raises(ValueError, match=r"Expected f in the layer's torch.float32 \(got torch.float64\)"):
        layer.float()(graph, f, gs, edges)


def test_the_backend_can_be_seen() -> None:
    assert make(uniform_graph(), "basis")[0].backend == "torch"
