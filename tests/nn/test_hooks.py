"""Hooks and other modules of one's own anywhere in a network: every module that it prints is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import FC, EdgeHead, EdgeMatrix, Message, MPNNLayer, Res, ResidualFGNNLayer, build
from fgnn.nn.norm import NodeBatchNorm
from tests.nn.changes import CHANGES, Doubled, hook
from tests.nn.graphs import features, ragged_graph, uniform_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, while compiling


def network(norm: Any, q: Any = "basis") -> tuple[nn.Module, tuple[Any, ...]]:
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build(
        "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - DR(0.5) - GlobalPooling - FC(4) - FC(2)",
        variable_in=2, factor_in=widths, edge_in=widths, norm=norm, q=q, hidden=(5,),
    )  # fmt: skip
    f, gs, edges = features(graph, 2, widths, widths, batch=2, types=q == "table", dtype=torch.float32)
    return net.eval(), (graph, f, gs, edges)


def residual(make: Callable[[], FactorGraph]) -> tuple[nn.Module, tuple[Any, ...]]:
    graph = make()
    torch.manual_seed(0)
    layer = ResidualFGNNLayer(4, dict.fromkeys(graph.groups))
    f, gs, _ = features(graph, 4, dict.fromkeys(graph.groups, 4), dict.fromkeys(graph.groups, 1), dtype=torch.float32)
    return layer, (graph, f, gs)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "basis": lambda: network(None),
    "dense": lambda: network("layer", "dense"),
    "table": lambda: network("batch", "table"),
    "residual": lambda: residual(uniform_graph),
    "residual, ragged": lambda: residual(ragged_graph),
}


def outputs(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else [y[0], *y[1].values()]


@pytest.mark.parametrize("way", ["eager", "func", "everywhere"])
@pytest.mark.parametrize("which", NETWORKS)
def test_hooks_see_every_module(which: str, way: str) -> None:
    net, args = NETWORKS[which]()
    before = outputs(net(*args))
    seen: set[nn.Module] = set()
    wanted = {m for m in net.modules() if type(m) not in (nn.ModuleDict, nn.ModuleList)}
    if way == "everywhere":
        handle = nn.modules.module.register_module_forward_hook(lambda m, args, y: seen.add(m))
    else:
        for m in wanted:
            m.register_forward_hook(lambda m, args, y: seen.add(m))
    try:
        if way == "func":
            after = outputs(torch.func.functional_call(net, dict(net.named_parameters()), args))
        else:
            after = outputs(net(*args))
    finally:
        if way == "everywhere":
            handle.remove()
    assert not {name for name, m in net.named_modules() if m in wanted - seen}
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("which", ["basis", "table", "residual"])
def test_one_hook_after_the_other(which: str) -> None:
    """A single hook on any module is called, whatever the others are, also in the backward pass."""
    net, args = NETWORKS[which]()
    for name, m in net.named_modules():
        if type(m) in (nn.ModuleDict, nn.ModuleList) or not list(m.parameters()):
            continue
        seen: list[str] = []
        handle = m.register_forward_pre_hook(lambda *_, seen=seen, name=name: seen.append(name))
        net(*args)
        handle.remove()
        assert seen, name
        if isinstance(m, nn.Linear):
            with m.register_full_backward_hook(lambda *_, seen=seen: seen.append("backward")):
                sum(y.sum() for y in outputs(net(*args))).backward()
            assert seen[-1] == "backward", name


@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_hooks_in_traced_code(way: str) -> None:
    net, args = NETWORKS["basis"]()
    for m in list(net.modules()):
        if isinstance(m, nn.Linear | Message | EdgeMatrix):
            hook(m)
    net, (graph, f, gs, edges) = net.double(), args
    args = graph, f.double(), *({name: x.double() for name, x in named.items()} for named in (gs, edges))
    wanted = net(*args)
    if way == "compiled":
        torch._dynamo.reset()
        found = torch.compile(net, backend="aot_eager", fullgraph=True)(*args)
    else:
        found = torch.export.export(net, args, strict=False).module()(*args)
    torch.testing.assert_close(found, wanted)


# ---- blocks, norms, heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("change", ["adapter", "activation", "no activation", "hook", "pruned", "layer"])
def test_fully_connected_layers(change: str, norm: Any) -> None:
    graph = uniform_graph()
    torch.manual_seed(0)
    fc = FC(3, {"pair": 3, "triple": 2}, 3, norm=norm).double()
    f, gs, _ = features(graph, 3, {"pair": 3, "triple": 2}, {"pair": 1, "triple": 1})
    one: Any = fc.factor["pair"]
    if change == "layer":
        fc.factor["pair"] = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    elif change in ("activation", "no activation"):
        one[-1] = nn.GELU() if change == "activation" else nn.Identity()
    else:
        CHANGES[change](one)

    def step(m: Any, x: Tensor) -> Tensor:
        for part in m:
            x = part(x)
        return x

    wanted = step(fc.variable, f), {name: step(fc.factor[name], g) for name, g in gs.items()}
    torch.testing.assert_close(fc(graph, f, gs), wanted, rtol=1e-9, atol=1e-9)
    new_f, new_gs = Res([fc])(graph, f, {"pair": gs["pair"]})
    torch.testing.assert_close((new_f, new_gs["pair"]), (f + wanted[0], gs["pair"] + wanted[1]["pair"]))


def test_hooks_inside_a_residual_connection_see_the_layer_alone() -> None:
    graph = uniform_graph()
    fc = FC(3, {}, 3)
    f = torch.randn(7, 3)
    alone, _ = fc(graph, f, {})
    for m in (fc, fc.variable):
        seen: list[Any] = []
        with m.register_forward_hook(lambda _, args, y, seen=seen: seen.append(y)):
            both, _ = Res([fc])(graph, f, {})
        y = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
        torch.testing.assert_close((y, both), (alone, f + alone))


@pytest.mark.parametrize("new", [nn.Identity(), nn.SyncBatchNorm(4), nn.LayerNorm(4)])
def test_norms(new: nn.Module) -> None:
    """In place of a norm, and of the norm inside it, as ``convert_sync_batchnorm`` does."""
    net, args = network("batch")
    if isinstance(new, nn.SyncBatchNorm):
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    else:
        for m in list(net.modules()):
            if isinstance(m, NodeBatchNorm):
                m.norm = new
    seen: list[int] = []
    for m in net.modules():
        if isinstance(m, type(new)):
            m.register_forward_hook(lambda *_: seen.append(1))
    assert net(*args).isfinite().all()
    assert seen


def test_edge_heads_and_message_passing() -> None:
    graph = uniform_graph()
    head = EdgeHead(3, {"pair": 2, "triple": 2}, 2).double()
    f, gs, _ = features(graph, 3, {"pair": 2, "triple": 2}, {"pair": 1, "triple": 1})
    before = head(graph, f, gs)
    hook(head.messages["pair"])
    after = head(graph, f, gs)
    torch.testing.assert_close((after["pair"], after["triple"]), (2 * before["pair"], before["triple"]))
    layer = MPNNLayer(3, 0, 4).double()
    neighbours = FactorGroup([[1, 2], [0, 2], [0, 1]])
    before_f = layer(neighbours, f[:3])
    layer.direction.edge_messages.message = Doubled(layer.direction.edge_messages.message)
    torch.testing.assert_close(layer(neighbours, f[:3]), 2 * before_f)
