"""The residual layer against a plain loop over edges in float64, and the network made of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import CosineMatrix, ResidualFGNNLayer, ResidualNetwork, ResidualUpdate, RMSNorm
from fgnn.nn.backends.torch.slots import Slots, relu_sum, variables_to_slots
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph

WIDTH = 3
HUB = FactorGraph(20, {"pair": FactorGroup([[0, i] for i in range(1, 20)])})  # degrees 19 and 1: not padded


def _norm(norm: RMSNorm, x: Tensor) -> Tensor:
    return norm.scale * x / (sum(v * v for v in x) / len(x) + norm.eps).sqrt()


def _update(update: ResidualUpdate, x: Tensor, normed: Tensor, incoming: Tensor) -> Tensor:
    hidden = update.inner.weight @ normed + update.inner.bias + incoming
    return x + update.outer.weight @ (hidden * hidden.sigmoid()) + update.outer.bias


def _q(matrix: CosineMatrix, place: int, arity: int) -> Tensor:
    cosines = [math.cos(math.pi * tau * (place + 0.5) / arity) for tau in range(matrix.terms)]
    return sum((c * w for c, w in zip(cosines, matrix.weight, strict=True)), torch.zeros(()))


def residual_loop(
    layer: ResidualFGNNLayer, graph: FactorGraph, f: Tensor, gs: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The layer's equations, edge by edge, for one sample."""
    d = layer.width
    new_gs, arriving = {}, [f.new_zeros(2 * d) for _ in range(graph.num_variables)]
    for name, group in graph.groups.items():
        half, rows = layer.to_factors[name], []
        for c, scope in enumerate(group.lists()):
            g = gs[name][c]
            total = f.new_zeros(2 * d)
            for a, i in enumerate(scope):
                total = total + _q(half.matrix, a, len(scope)) @ _norm(layer.to_factors_norm, f[i])
            rows.append(_update(half.update, g, _norm(half.norm, g), total))
        new_gs[name] = torch.stack(rows)
    for name, group in graph.groups.items():
        half = layer.to_variables[name]
        for c, scope in enumerate(group.lists()):
            for a, i in enumerate(scope):
                own = half.variable.weight @ _norm(layer.to_variables_norm, f[i]) + half.variable.bias
                sent = _q(half.matrix, a, len(scope)) @ _norm(half.norm, new_gs[name][c])
                arriving[i] = arriving[i] + half.out.weight @ (sent + own).relu()
    normed = [_norm(layer.to_variables_norm, x) for x in f]
    return torch.stack([_update(layer.update, *row) for row in zip(f, normed, arriving, strict=True)]), new_gs


def _layer(graph: FactorGraph, bases: int = 3) -> ResidualFGNNLayer:
    torch.manual_seed(0)
    layer = ResidualFGNNLayer(WIDTH, {name: group.arity or None for name, group in graph.groups.items()}, bases)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return layer.double()


def _features(graph: FactorGraph, batch: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    sizes = dict.fromkeys(graph.groups, WIDTH)
    f, gs, _ = features(graph, WIDTH, sizes, sizes, batch=batch)
    return f, gs


@pytest.mark.parametrize("graph", [uniform_graph(), ragged_graph(), HUB], ids=["uniform", "ragged", "hub"])
def test_layer_and_gradients_equal_the_loop(graph: FactorGraph) -> None:
    layer, (f, gs) = _layer(graph), _features(graph)
    inputs = [f.requires_grad_(), *(g.requires_grad_() for g in gs.values())]
    weight = torch.randn(graph.num_variables, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    results, gradients = [], []
    for run in (layer, partial(residual_loop, layer)):
        new_f, new_gs = run(graph, f, gs)
        results.append((new_f, new_gs))
        gradients.append(torch.autograd.grad((new_f * weight).sum(), [*inputs, *layer.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


@given(graphs())
def test_layer_equals_the_loop_on_any_graph(graph: FactorGraph) -> None:
    layer, (f, gs) = _layer(graph), _features(graph)
    torch.testing.assert_close(layer(graph, f, gs), residual_loop(layer, graph, f, gs), rtol=1e-10, atol=1e-10)


@given(graphs(), st.sampled_from(["all", "variables", "factors"]))
def test_samples_of_a_batch_are_independent_and_a_side_may_be_shared(graph: FactorGraph, batched: str) -> None:
    layer = _layer(graph)
    f, gs = _features(graph, batch=3)
    f = f if batched != "factors" else f[0]
    gs = gs if batched != "variables" else {name: g[0] for name, g in gs.items()}
    new_f, new_gs = layer(graph, f, gs)
    for b in range(3):
        one = {name: g[b] if g.dim() == 3 else g for name, g in gs.items()}
        expected_f, expected_gs = layer(graph, f[b] if f.dim() == 3 else f, one)
        torch.testing.assert_close(new_f[b], expected_f)
        torch.testing.assert_close({name: g[b] for name, g in new_gs.items()}, expected_gs)


def test_groups_of_any_arity_share_parameters() -> None:
    layer = ResidualFGNNLayer(WIDTH, {"count": None}, bases=4)
    for scopes in ([[0, 1]], [[0, 1, 2], [1, 2, 3]], [[0, 1, 2, 3, 4], [3]]):
        graph = FactorGraph(5, {"count": FactorGroup(scopes)})
        f, gs = layer(graph, torch.randn(5, WIDTH), {"count": torch.randn(len(scopes), WIDTH)})
        assert f.shape == (5, WIDTH)
        assert gs["count"].shape == (len(scopes), WIDTH)


@pytest.mark.parametrize(
    ("graph", "sizes", "match"),
    [
        (uniform_graph(), {"pair": (4, 3)}, r"gs\['triple'\] of shape \(5, 3\) .*\(got none\)"),
        (FactorGraph(2, {"odd": FactorGroup([[0]])}), {"odd": (1, 3)}, "'odd'"),
        (uniform_graph(), {"pair": (4, 2), "triple": (5, 3)}, r"\(4, 2\)"),
    ],
)
def test_wrong_features_are_refused(graph: FactorGraph, sizes: dict[str, tuple[int, int]], match: str) -> None:
    layer = ResidualFGNNLayer(WIDTH, {"pair": 2, "triple": 3})
    with pytest.raises(ValueError, match=match):
        layer(graph, torch.zeros(graph.num_variables, WIDTH), {name: torch.zeros(size) for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda graph, f, gs: (f, graph, gs), "Expected a FactorGraph as graph"),
        (lambda graph, f, gs: (graph, gs, f), r"Expected f, .*\(got dict\)"),
        (lambda graph, f, gs: (graph, f.double(), gs), r"Expected f in the layer's torch.float32"),
        (lambda graph, f, gs: (graph, f.expand(2, 7, 3), {k: g.expand(3, *g.shape) for k, g in gs.items()}), "f of 2"),
        (lambda graph, f, gs: (graph, f[:, :2], gs), r"f of shape \(7, 3\) .*got \(7, 2\)"),
    ],
)
def test_a_layer_names_what_does_not_fit(change: Any, match: str) -> None:
    graph = uniform_graph()
    layer = ResidualFGNNLayer(WIDTH, {"pair": 2, "triple": 3})
    gs = {name: torch.randn(group.num_factors, WIDTH) for name, group in graph.groups.items()}
    for _ in range(2):
        layer(graph, torch.randn(7, WIDTH), gs)
        with pytest.raises(ValueError, match=match):
            layer(*change(graph, torch.randn(7, WIDTH), gs))


def test_arities_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"arities of the groups \['pair'\] only \(got \['pairs'\]\)"):
        ResidualNetwork(3, {"pair": 2}, {"pairs": 2}, width=8, layers=1)
    for arity, got in ((3, "2"), (2, "scopes of several lengths")):
        scopes = [[0, 1], [1, 2]] if arity == 3 else [[0, 1], [0, 1, 2]]
        graph = FactorGraph(3, {"pair": FactorGroup(scopes)})
        net = ResidualNetwork(3, {"pair": 2}, {"pair": arity}, width=8, layers=1)
        with pytest.raises(ValueError, match=rf"group 'pair' of arity {arity}, .* \(got {got}\)"):
            net(graph, torch.randn(3, 3), {"pair": torch.randn(2, 2)})


@pytest.mark.parametrize(("variable_in", "factor_in"), [(0, 2), (2, 0)])
def test_a_network_needs_features_of_all_nodes(variable_in: int, factor_in: int) -> None:
    with pytest.raises(ValueError, match=r"_in.* as an integer of at least 1 \(got 0\); features may be constant"):
        ResidualNetwork(variable_in, {"pair": factor_in}, width=8, layers=1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda graph, f, gs: (f, graph, gs), "FactorGraph as graph"),
        (lambda graph, f, gs: (graph, f[:, :2], gs), r"f of shape \(7, 3\) .*got \(7, 2\)"),
        (lambda graph, f, gs: (graph, f, {"pair": gs["pair"]}), r"gs\['triple'\] of shape \(5, 2\) .*got none"),
        (lambda graph, f, gs: (graph, f, gs | {"pair": gs["triple"]}), r"gs\['pair'\] of shape \(4, 2\) .*\(5, 2\)"),
    ],
)
def test_a_network_names_what_does_not_fit(change: Any, match: str) -> None:
    graph = uniform_graph()
    net = ResidualNetwork(3, {"pair": 2, "triple": 2}, width=8, layers=1)
    gs = {name: torch.randn(group.num_factors, 2) for name, group in graph.groups.items()}
    with pytest.raises(ValueError, match=match):
        net(*change(graph, torch.randn(7, 3), gs))


@pytest.mark.parametrize("graph", [uniform_graph(), ragged_graph(), HUB], ids=["uniform", "ragged", "hub"])
def test_gathers_between_variables_and_slots(graph: FactorGraph) -> None:
    for name in graph.groups:
        slots = Slots.of(graph.incidence(name))
        assert slots is Slots.of(graph.incidence(name))
        assert (slots.of_variable is None) == (graph is HUB)
        edges = graph.groups[name].num_edges
        f = torch.randn(2, graph.num_variables, 2, dtype=torch.float64, requires_grad=True)
        x = torch.randn(2, edges, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda f, slots=slots: variables_to_slots(f, slots), (f,))
        assert torch.autograd.gradcheck(lambda x, f, slots=slots: relu_sum(x, f, slots), (x, f))
        expected = torch.zeros_like(f).index_add(1, slots.variable, (x + f[:, slots.variable]).relu())
        torch.testing.assert_close(relu_sum(x, f, slots), expected)


def test_rms_norm_is_computed_in_float32_and_serves_autocast() -> None:
    norm = RMSNorm(4)
    x = torch.randn(5, 4)
    torch.testing.assert_close(norm(x).square().mean(-1), torch.ones(5), atol=1e-4, rtol=0)
    assert norm(x.double()).dtype == torch.float64
    half = norm.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert norm.float()(x).dtype == torch.bfloat16


def _network(**options: int | bool) -> tuple[ResidualNetwork, tuple[FactorGraph, Tensor, dict[str, Tensor]]]:
    torch.manual_seed(0)
    graph = ragged_graph()
    net = ResidualNetwork(2, {"any": 1, "pair": 4}, {"pair": 2}, out=3, width=8, bases=2, **options)
    torch.nn.init.normal_(net.readout.weight)
    f, gs, _ = features(graph, 2, {"any": 1, "pair": 4}, {"any": 1, "pair": 1}, batch=5, dtype=torch.float32)
    return net, (graph, f, gs)


def test_a_network_reads_out_inner_scores_in_training_only() -> None:
    net, inputs = _network(layers=3, repeat=4, supervise=True)
    inner = net.train()(*inputs)
    assert inner.shape == (3, 5, 8, 3)
    answer = net.eval()(*inputs)
    assert torch.equal(answer, inner[-1])
    assert _network(layers=2)[0].train()(*inputs).shape == (5, 8, 3)


def test_repeating_layers_adds_depth_and_no_parameters() -> None:
    once, inputs = _network(layers=2)
    twice, _ = _network(layers=2, repeat=2)
    assert once.state_dict().keys() == twice.state_dict().keys()
    assert not torch.allclose(once(*inputs), twice(*inputs))


@torch.no_grad()
def test_one_compilation_serves_all_layers_and_graphs() -> None:
    net, inputs = _network(layers=3)
    expected = net(*inputs)
    compilations = []
    torch._dynamo.reset()

    def backend(module: torch.fx.GraphModule, example: list[Tensor]) -> object:
        compilations.append(module)
        return module.forward

    for layer in net.layers:
        layer.compile(backend=backend, dynamic=False, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(net(ragged_graph(), *inputs[1:]), expected)
    assert len(compilations) == 1


@pytest.mark.parametrize("called", [False, True])
def test_a_compiled_network_takes_structures_that_it_has_not_seen(called: bool) -> None:
    """Ragged ones and joined batches too, whether or not something is derived from them yet."""
    net, _ = _network(layers=1)
    torch._dynamo.reset()
    compilations = []

    def backend(module: torch.fx.GraphModule, example: list[Tensor]) -> object:
        compilations.append(module)
        return module.forward

    fast, weight = torch.compile(net, backend=backend, dynamic=True, fullgraph=True), net.layers[0].update.inner.weight
    for count in (2, 3, 5, 7):
        graph, other = (FactorGraph.concat([ragged_graph()] * count) for _ in range(2))
        f, gs, _ = features(graph, 2, {"any": 1, "pair": 4}, {"any": 1, "pair": 1}, dtype=torch.float32)
        expected, found = net(graph if called else other, f, gs), fast(graph, f, gs)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(x.square().sum(), weight)[0] for x in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert len(compilations) <= 2


def test_a_compiled_layer_names_the_shapes_that_do_not_fit() -> None:
    torch._dynamo.reset()
    fast = torch.compile(_layer(uniform_graph()), backend="eager", dynamic=True, fullgraph=True)
    gs = {name: torch.randn(group.num_factors, WIDTH) for name, group in uniform_graph().groups.items()}
    with pytest.raises(Exception, match=rf"\(7, {WIDTH}\) or .* variables \(got \(5, {WIDTH}\)\)"):
        fast(uniform_graph(), torch.randn(5, WIDTH), gs)


def test_autocast_keeps_the_residual_stream_in_float32() -> None:
    net, inputs = _network(layers=2)
    kinds = []
    net.layers[0].register_forward_hook(lambda module, args, out: kinds.extend([out[0].dtype, args[1].dtype]))
    with torch.autocast("cpu", torch.bfloat16):
        scores = net(*inputs)
    assert kinds == [torch.float32, torch.float32]
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, net(*inputs), atol=0.1, rtol=0.1)
