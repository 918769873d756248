"""What callers see of a replayed call besides its numbers: hooks, their own dicts, modes, empty tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import build, record, use_backend
from fgnn.runtime.triton_support import why_unavailable
from tests.nn.graphs import features

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.skipif(why_unavailable(torch.device(DEVICE)) is not None, reason="needs a GPU or Triton's interpreter"),
]
WIDTHS = {"pair": 4, "triple": 4}


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "cpu"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of the kernels: a GPU, or without one the CPU, by Triton's interpreter."""
    if (request.param == "cuda") != (DEVICE == "cuda"):
        pytest.skip("for the other device")
    with use_backend("triton"):
        yield str(request.param)


def graph_on(where: str, *, triples: bool = True) -> FactorGraph:
    groups = {"pair": FactorGroup([[0, 1], [1, 2], [2, 3]])}
    if triples:
        groups["triple"] = FactorGroup([[0, 1, 2], [1, 2, 3], [0, 2, 3]])
    return FactorGraph(4, groups).to(where)


def network(where: str, notation: str = "FGNN(4) - FGNN(2)", **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(notation, variable_in=4, factor_in=WIDTHS, edge_in=WIDTHS, **options).to(where)


def draw(graph: FactorGraph, seed: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    widths = {name: WIDTHS[name] for name in graph.groups}
    f, gs, edges = features(graph, 4, widths, widths, seed=seed, dtype=torch.float32)
    gs, edges = ({name: x.to(graph.device) for name, x in some.items()} for some in (gs, edges))
    return f.to(graph.device), gs, edges


def recordings(net: torch.nn.Module) -> int:
    return len(net.__dict__["launches"])


def test_hooks_of_parameters_without_gradient_are_not_called(where: str) -> None:
    graph, net = graph_on(where, triples=False), network(where)
    called: list[str] = []
    for name, p in net.named_parameters():
        p.register_hook(lambda grad, name=name: called.append(name) or grad.clamp(-1, 1))
    seen = []
    for seed in range(5):
        called.clear()
        net(graph, *draw(graph, seed)).sum().backward()
        seen.append(sorted(called))
    assert recordings(net) == 1
    assert seen[4] == seen[0] != []
    assert not any("triple" in name for name in seen[4])


@pytest.mark.parametrize("change", ["swap", "replace", "clear", "eval"])
def test_second_derivatives_are_those_of_the_call_as_it_was(change: str, where: str) -> None:
    graph, net = graph_on(where), network(where, norm="batch")
    for seed in range(3):
        net(graph, *draw(graph, seed)).sum().backward()
    assert recordings(net) == 1
    found = []
    for one in (net, record(copy.deepcopy(net), False)):
        f, gs, edges = draw(graph, 7)
        f.requires_grad_()
        energy = one(graph, f, gs, edges).square().sum()
        if change == "swap":
            gs["pair"] = gs.pop("pair")
        elif change == "replace":
            gs["pair"] = torch.zeros_like(gs["pair"])
        elif change == "clear":
            edges.clear()
        else:
            one.eval()
        (force,) = torch.autograd.grad(energy, f, create_graph=True)
        found.append(force.detach())
        one.train()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_groups_without_factors_or_features_are_replayed(where: str) -> None:
    groups = {"pair": FactorGroup([[0, 1], [1, 2]]), "triple": FactorGroup(torch.empty(0, 3, dtype=torch.int64))}
    graph = FactorGraph(4, groups).to(where)
    torch.manual_seed(0)
    net = build("FGNN(4) - FGNN(2)", variable_in=4, factor_in={"pair": 0, "triple": 4}, edge_in=WIDTHS).to(where)
    for seed in range(4):
        f, gs, edges = draw(graph, seed)
        net(graph, f, {"triple": gs["triple"]}, edges).sum().backward()
    assert recordings(net) == 1, net.__dict__["launches"].reason


@pytest.mark.parametrize("call", ["by keyword", "by position"])
def test_calls_are_replayed_however_arguments_are_given(call: str, where: str) -> None:
    graph, net = graph_on(where), network(where)
    for seed in range(4):
        f, gs, edges = draw(graph, seed)
        make: Callable[..., Tensor] = net
        y = make(graph, f=f, gs=gs, edges=edges) if call == "by keyword" else make(graph, f, gs, edges)
        y.sum().backward()
    assert recordings(net) == 1
