"""torch.compile: one graph without breaks, for any number of samples and any structure, with the same results."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, Network, build
from fgnn.nn.aggregate import Aggregation
from tests.nn.graphs import features, ragged_graph, uniform_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, while compiling


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module: nn.Module, graphs: list[torch.fx.GraphModule], **options: object) -> Callable[..., Tensor]:
    """Compile without generating code; ``graphs`` collects what was traced."""

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    return torch.compile(module, backend=backend, fullgraph=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("q", ["basis", "table"])
@pytest.mark.parametrize("make", [uniform_graph, ragged_graph])
def test_one_graph_serves_every_number_of_samples(make: Callable[[], FactorGraph], q: str) -> None:
    graph, graphs = make(), []
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build("FGNN(4) - GlobalPooling - FC(2)", variable_in=2, factor_in=widths, edge_in=widths, q=q)
    fast = compiled(net, graphs, dynamic=True)
    for batch in (13, 19, 33):
        f, gs, edges = features(graph, 2, widths, widths, batch=batch, types=q == "table", dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges), net(make(), f, gs, edges))
    assert len(graphs) == 1


def names(graph: torch.fx.GraphModule) -> list[str]:
    """What is called in a traced graph, without reading from lists."""
    targets = [str(node.target) for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
    return [name for name in targets if "getitem" not in name]


def built(notation: str) -> tuple[Network, tuple[Any, ...]]:
    """A network, and a graph and features for it."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    net = build(notation, variable_in=2, factor_in=widths, edge_in=widths)
    return net, (graph, *features(graph, 2, widths, widths, batch=5, dtype=torch.float32))


@pytest.mark.parametrize("older", [False, True])
def test_a_network_is_one_operator(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where, as before torch 2.12, code that ``torch.compile`` traces is told that it is exported."""
    if older:
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: torch.compiler.is_compiling())
    net, (graph, f, gs, edges) = built("FGNN(4) - Res[FC(4)] - FGNN(2)")
    graphs: list[torch.fx.GraphModule] = []
    wanted = net(graph, f, gs, edges)
    for training in (False,) if older else (False, True):
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(compiled(net, graphs)(graph, f, gs, edges), wanted)
    assert [names(one) for one in graphs] == [["fgnn.steps.default"]] * (1 if older else 2)


@pytest.mark.slow
def test_what_is_between_the_steps_splits_the_operator() -> None:
    """Whatever reads features between layers reads real ones: pooling, hooks, and layers of other kinds."""
    net, (graph, f, gs, edges) = built("FGNN(4) - FC(4) - GlobalPooling - FGNN(4) - FC(2)")
    graphs: list[torch.fx.GraphModule] = []
    wanted = net(graph, f, gs, edges)
    torch.testing.assert_close(compiled(net, graphs)(graph, f, gs, edges), wanted)
    assert names(graphs[0]).count("fgnn.steps.default") == 2
    for layer in (net.layers[1], net.layers[0].factor_to_variable, net.layers[3]):
        torch._dynamo.reset()
        layer.register_forward_hook(lambda module, args, out: None if isinstance(out, Tensor) else (2 * out[0], out[1]))
        wanted = net(graph, f, gs, edges)
        torch.testing.assert_close(compiled(net, graphs)(graph, f, gs, edges), wanted)


@pytest.mark.slow
def test_changes_of_a_layer_are_seen_after_the_first_call() -> None:
    """Also those that make it consist of other operations than steps."""
    net, (graph, f, gs, edges) = built("FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(2)")
    fast = compiled(net, [])
    before = fast(graph, f, gs, edges)
    first, inner = net.layers[0], net.layers[1].body
    changes: list[Callable[[], object]] = [
        lambda: setattr(first.factor_to_variable, "aggregation", Aggregation("mean")),
        lambda: setattr(first.factor_to_variable.output, "norm", nn.LayerNorm(4)),
        lambda: setattr(inner[1].variable_to_factor["pair"].output, "activation", None),
        lambda: inner[0].variable.append(nn.LayerNorm(4)),
    ]
    for change in changes:
        change()
        wanted = net(graph, f, gs, edges)
        assert not torch.equal(before, wanted)
        before = fast(graph, f, gs, edges)
        torch.testing.assert_close(before, wanted)


def test_messages_of_several_layers_need_no_call_before() -> None:
    graph = ragged_graph()
    widths = dict.fromkeys(graph.groups, 3)
    f, gs, _ = features(graph, 2, widths, widths, dtype=torch.float32)
    layer = FGNNLayer(2, widths, dict.fromkeys(graph.groups, 0), 4, hidden=(5,))
    fast = compiled(layer, [])
    torch.testing.assert_close(fast(ragged_graph(), f, gs)[0], layer(graph, f, gs)[0])


@pytest.mark.slow
def test_features_without_samples_are_shared_by_all() -> None:
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    net = build("FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(2)", variable_in=2, factor_in=widths, edge_in=widths)
    f, gs, edges = features(graph, 2, widths, widths, batch=5, dtype=torch.float32)
    for mixed in (f[0], f):
        torch.testing.assert_close(compiled(net, [])(graph, mixed, gs, edges), net(graph, mixed, gs, edges))
        gs = {name: g[0] for name, g in gs.items()}


def test_batches_of_other_structures_compile_at_most_twice() -> None:
    graphs: list[torch.fx.GraphModule] = []
    layer = FGNNLayer(2, {"pair": 3}, {"pair": 2}, 4)
    fast = compiled(layer, graphs)
    for count in (5, 7, 12, 9):
        one = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
        graph = FactorGraph.concat([one] * count)
        f, gs, edges = features(graph, 2, {"pair": 3}, {"pair": 2}, dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges)[0], layer(graph, f, gs, edges)[0])
    assert len(graphs) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "aggregate"), [("basis", "max"), ("dense", "softmax"), ("table", "mean"), ("cosine", "max")]
)
def test_a_compiled_training_step_gives_the_same_gradients(q: str, aggregate: str) -> None:
    graph = ragged_graph()
    widths = dict.fromkeys(graph.groups, 3)
    no_edges = dict.fromkeys(graph.groups, 0)
    torch.manual_seed(0)
    net = build(
        "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(2)", variable_in=2, factor_in=widths,
        edge_in=no_edges if q == "cosine" else widths, q=q, aggregate=aggregate, norm="batch",
    )  # fmt: skip
    f, gs, t = features(graph, 2, widths, widths, batch=5, types=q == "table", dtype=torch.float32)
    edges = {k: EdgeTypes(v, 3) for k, v in t.items()} if q == "table" else {} if q == "cosine" else t
    net(graph, f, gs, edges).square().sum().backward()
    wanted = [p.grad for p in net.parameters()]
    net.zero_grad()
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    fast(ragged_graph(), f, gs, edges).square().sum().backward()
    for p, gradient in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_graph_may_be_dropped_before_the_backward_pass() -> None:
    net, (_, f, gs, edges) = built("FGNN(4) - FGNN(2)")
    scores = compiled(net, [])(uniform_graph(), f, gs, edges)
    gc.collect()
    scores.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.slow
def test_steps_give_the_gradients_of_autograd() -> None:
    """Of parameters and inputs, where only some are wanted, and again from the same graph."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build(
        "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FC(4) - FGNN(2)", variable_in=2, factor_in=widths, edge_in=widths
    )
    f, gs, edges = features(graph, 2, widths, widths, batch=5, dtype=torch.float32)
    fast = torch.compile(net, backend="aot_eager", fullgraph=True)
    for frozen in (False, True):
        net.layers[1].requires_grad_(not frozen)
        leaves = [f.requires_grad_(not frozen), *(p for p in net.parameters() if p.requires_grad)]
        leaves = [x for x in leaves if x.requires_grad]
        wanted = torch.autograd.grad(net(graph, f, gs, edges).square().sum(), leaves)
        loss = fast(graph, f, gs, edges).square().sum()
        for again in (True, False):
            found = torch.autograd.grad(loss, leaves, retain_graph=again)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_generated_code_gives_the_same() -> None:
    """The default backend, with the paper's kind of network."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    net = build("FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(2)", variable_in=2, factor_in=widths, edge_in=widths)
    fast = torch.compile(net, fullgraph=True, dynamic=True)
    for batch in (13, 19, 33):
        f, gs, edges = features(graph, 2, widths, widths, batch=batch, dtype=torch.float32)
        torch.testing.assert_close(fast(graph, f, gs, edges), net(graph, f, gs, edges), rtol=1e-4, atol=1e-5)


def test_transforms_inside_compiled_code_are_followed() -> None:
    """The operator of compiled code knows no batching rule, so plain operations serve, and only inside a transform."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    net = build("FGNN(4) - FC(4) - FGNN(2)", variable_in=2, factor_in=widths)
    f, gs, _ = features(graph, 2, widths, widths, batch=3, dtype=torch.float32)
    gs = {name: g[0] for name, g in gs.items()}

    def scores(x: Tensor) -> Tensor:
        found: Tensor = net(graph, x, gs)
        return found

    def called(x: Tensor) -> tuple[Tensor, ...]:
        slopes = torch.func.vmap(torch.func.grad(lambda one: scores(one).square().sum()))(x)
        return torch.func.vmap(scores)(x), slopes, scores(x[0])

    graphs: list[torch.fx.GraphModule] = []
    torch.testing.assert_close(compiled(called, graphs)(f), called(f))
    assert [names(one).count("fgnn.steps.default") for one in graphs] == [1]


def test_checkpoints_inside_compiled_code() -> None:
    net, (graph, f, gs, edges) = built("FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - GlobalPooling - FGNN(2)")

    def called(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(net, graph, x, gs, edges, use_reentrant=False)
        return found

    f.requires_grad_()
    fast = torch.compile(called, backend="aot_eager", fullgraph=True)
    found, wanted = (torch.autograd.grad(call(f).square().sum(), f) for call in (fast, called))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
