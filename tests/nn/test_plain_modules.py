"""The modules inside a layer are called: replaced, hooked or parametrised, they have their effect.

Fused operations read parameters only, so they must stand back wherever a module is not as it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrizations, prune

from fgnn import FactorGraph
from fgnn.nn import FGNNLayer, Message
from fgnn.testing import layer_by_loop
from tests.nn.changes import CHANGES, Doubled, LoRA, hook, own_forward, weigh
from tests.nn.graphs import features, ragged_graph, uniform_graph
from tests.nn.oracle import layer_loop
from tests.nn.test_layer import make

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, while compiling


def parts(layer: FGNNLayer) -> Iterator[Any]:
    """The messages of all groups in both directions."""
    yield from (half.edge_messages for half in layer.variable_to_factor.values())
    yield from layer.factor_to_variable.edge_messages.values()


def everything(layer: FGNNLayer, graph: FactorGraph, inputs: Any, loop: Any = None) -> list[Tensor]:
    f, gs = (layer if loop is None else lambda *args: loop(layer, *args))(graph, *inputs)
    return [f, *gs.values()]


def assert_equals_loop(layer: FGNNLayer, graph: FactorGraph, inputs: Any, loop: Any = layer_loop) -> None:
    """Results, gradients and second derivatives."""
    found = []
    leaves = [p for p in layer.parameters() if p.requires_grad]
    for way in (None, loop):
        results = everything(layer, graph, inputs, way)
        total = sum(y.square().sum() for y in results)
        first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        live = [g for g in first if g is not None and g.requires_grad]
        second = torch.autograd.grad(sum(g.square().sum() for g in live), leaves, allow_unused=True)
        found.append([*results, *(x for x in (*first, *second) if x is not None and x.any())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", [uniform_graph, ragged_graph])
@pytest.mark.parametrize("q", ["basis", "dense"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_network_inside_q(change: str, q: str, structure: Callable[[], FactorGraph]) -> None:
    graph = structure()
    layer, factor_in, edge_in = make(graph, q, aggregate="sum", q_options={"hidden": (32, 32)})
    inputs = features(graph, 4, factor_in, edge_in)
    before = everything(layer, graph, inputs)
    for part in parts(layer):
        CHANGES[change](part.matrix.net)
    assert_equals_loop(layer, graph, inputs)
    for one, other in zip(everything(layer, graph, inputs), before, strict=True):
        assert change == "weight norm" or (one - other).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("change", "way"),
    [(change, way) for change in ("adapter", "activation", "hook", "weight norm") for way in ("compiled", "exported")]
    + [("pruned", "compiled"), ("pruned", "func"), ("adapter", "func")],
)
def test_the_network_inside_q_in_traced_code(change: str, way: str) -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis")
    inputs = features(graph, 4, factor_in, edge_in)
    for part in parts(layer):
        CHANGES[change](part.matrix.net)
    expected = everything(layer, graph, inputs, layer_loop)
    call: Any = layer
    if way == "compiled":
        torch._dynamo.reset()
        call = torch.compile(layer, backend="aot_eager", fullgraph=change != "pruned")
    elif way == "func":
        state = dict(layer.named_parameters())
        call = lambda *args: torch.func.functional_call(layer, state, args)  # noqa: E731
    else:
        call = torch.export.export(layer, (graph, *inputs), strict=False).module()
    f, gs = call(graph, *inputs)
    for one, other in zip([f, *gs.values()], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("by_position", [False, True])
def test_a_linear_q(by_position: bool) -> None:
    """Without hidden layers, Q is a shorter sum; not with another module in it."""
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis", q_options={"hidden": ()})
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    if by_position:
        rows = {name: edges[name][: group.arity] for name, group in graph.groups.items()}
        edges = {name: rows[name].repeat(group.num_factors, 1) for name, group in graph.groups.items()}
    for part in parts(layer):
        part.matrix.net[0] = LoRA(part.matrix.net[0])
    found, _ = layer(graph, f, gs, rows if by_position else edges)
    torch.testing.assert_close(found, layer_loop(layer, graph, f, gs, edges)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("change", [LoRA, Doubled, hook, own_forward, parametrizations.weight_norm, weigh])
def test_the_last_layers_of_m(change: Callable[[Any], Any]) -> None:
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, "basis", hidden=(6,), aggregate="sum")
    inputs = features(graph, 4, factor_in, edge_in)
    for part in parts(layer):
        made = change(part.message.tail[0])
        part.message.tail[0] = part.message.tail[0] if made is None else made
    assert_equals_loop(layer, graph, inputs)
    assert "->" in repr(layer)


class Gated(Message):
    """An M with a forward of its own."""

    def forward(self, g: Tensor, f: Tensor) -> Tensor:
        return super().forward(g, f) * f[..., :1].sigmoid()


def gate(m: Message) -> Message:
    return Gated(m.factor_in, m.variable_in, m.out, hidden=[6] * len(m.tail)).double()


@pytest.mark.parametrize("hidden", [(), (6,)])
@pytest.mark.parametrize("change", [Doubled, hook, own_forward, gate])
def test_m_as_a_whole(change: Callable[[Any], Any], hidden: tuple[int, ...]) -> None:
    graph = ragged_graph()
    layer, factor_in, edge_in = make(graph, "basis", hidden=hidden, aggregate="sum")
    inputs = features(graph, 4, factor_in, edge_in)
    for part in parts(layer):
        made = change(part.message)
        part.message = part.message if made is None else made
    assert_equals_loop(layer, graph, inputs, layer_by_loop)


@pytest.mark.parametrize("name", ["factor_weight", "variable_weight"])
def test_the_first_layer_of_m(name: str) -> None:
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis")
    inputs = features(graph, 4, factor_in, edge_in)
    for part in parts(layer):
        prune.l1_unstructured(part.message, name, 0.5)
    for _ in range(2):  # a second step needs a new mask times weight
        everything(layer, graph, inputs)[0].sum().backward()
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * p.grad
    assert_equals_loop(layer, graph, inputs, layer_by_loop)


def test_m_without_features_of_factors() -> None:
    graph = uniform_graph()
    layer = FGNNLayer(4, dict.fromkeys(graph.groups, 0), None, 5).double()
    f, _, _ = features(graph, 4, dict.fromkeys(graph.groups, 1), dict.fromkeys(graph.groups, 1))
    before = layer(graph, f)[0]
    for part in parts(layer):
        part.message.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(layer(graph, f)[0], before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("change", [Doubled, hook, own_forward])
@pytest.mark.parametrize("what", ["edge_messages", "output", "half"])
def test_the_parts_of_a_layer(what: str, change: Callable[[Any], Any]) -> None:
    """All of them are linear in what is doubled: a result with twice the messages is twice the result."""
    graph = uniform_graph()
    layer, factor_in, edge_in = make(graph, "basis", activation="relu")
    f, gs, edges = features(graph, 4, factor_in, edge_in)
    _, before = layer(graph, f, gs, edges)
    half = layer.variable_to_factor["pair"]
    owner, name = (layer.variable_to_factor, "pair") if what == "half" else (half, what)
    if change is Doubled:
        setattr(owner, name, Doubled(getattr(owner, name)))
    else:
        change(getattr(owner, name))
    _, after = layer(graph, f, gs, edges)
    torch.testing.assert_close(after["pair"], 2 * before["pair"])
    torch.testing.assert_close(after["triple"], before["triple"])


@pytest.mark.parametrize("q", ["basis", "dense", "table", "cosine"])
def test_a_wrapper_around_q(q: str) -> None:
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    layer = FGNNLayer(4, widths, None if q == "cosine" else widths, 5, q=q).double()
    f, gs, edges = features(graph, 4, widths, widths, types=q == "table")
    edges = {} if q == "cosine" else edges
    _, before = layer(graph, f, gs, edges)
    half: Any = layer.variable_to_factor["pair"]
    half.edge_messages.matrix = Doubled(half.edge_messages.matrix)
    _, after = layer(graph, f, gs, edges)
    torch.testing.assert_close(after["pair"], 2 * before["pair"])
