"""Gradients can be differentiated again, and derivatives taken forward: forces from energies, penalties, Hessians."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import Aggregation, MPNNLayer, ResidualNetwork, aggregate_messages, build
from tests.nn.graphs import features, ragged_graph, uniform_graph
from tests.nn.oracle import layer_loop
from tests.nn.test_layer import AGGREGATIONS, FORMS, GRAPHS, make


def second(outputs: Tensor, at: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradients of a penalty on the gradient at one input."""
    (grad,) = torch.autograd.grad(outputs.square().sum(), at, create_graph=True)
    return list(torch.autograd.grad(grad.square().sum() + outputs.sum(), leaves, allow_unused=True))


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    assert any(x is not None and x.abs().max() > 1e-6 for x in expected)
    for one, other in zip(found, expected, strict=True):
        if one is not None or other is not None:
            shape = other if other is not None else one
            assert shape is not None
            one, other = (torch.zeros_like(shape) if x is None else x for x in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", GRAPHS)
@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("q", FORMS)
def test_second_derivatives_of_a_layer_equal_those_of_the_loop(q: str, aggregate: str, structure: str) -> None:
    graph = GRAPHS[structure]()
    layer, factor_in, edge_in = make(graph, q, aggregate=aggregate)
    f, gs, edges = features(graph, 4, factor_in, edge_in, batch=1, types=q == "table")
    leaves = [f.requires_grad_(), *(g.requires_grad_() for g in gs.values()), *layer.parameters()]
    new, made = layer(graph, f, gs, edges)
    found = second(torch.cat([new[0], *(g[0] for g in made.values())]), f, leaves)
    new, made = layer_loop(layer, graph, f[0], {name: g[0] for name, g in gs.items()}, edges)
    assert_same(found, second(torch.cat([new, *made.values()]), f, leaves))


def network(form: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    graph = uniform_graph() if form != "ragged" else ragged_graph()
    names = list(graph.groups)
    f = torch.randn(3, graph.num_variables, 2)
    gs = {name: torch.randn(3, group.num_factors, 2) for name, group in graph.groups.items()}
    if form == "residual":
        net: nn.Module = ResidualNetwork(2, dict.fromkeys(names, 2), {"pair": 2, "triple": 3}, 1, width=8, layers=2)
        inputs: tuple[Any, ...] = (graph, f, gs)
    else:
        norm: Any = form if form in ("batch", "layer", "rms") else None
        edges = {name: torch.randn(group.num_edges, 2) for name, group in graph.groups.items()}
        net = build(
            "FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(1)", variable_in=2, factor_in=dict.fromkeys(names, 2),
            edge_in=dict.fromkeys(names, 2), norm=norm,
        )  # fmt: skip
        inputs = (graph, f, gs, edges)
    for p in net.parameters():  # a read-out begins with zeros
        nn.init.normal_(p, std=0.3)
    return net.double(), tuple(_double(x) for x in inputs)


def _double(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: y.double() for name, y in x.items()}
    return x if isinstance(x, FactorGraph) else x.double()


NETWORKS = ["plain", "ragged", "batch", "layer", "rms", "residual"]


@pytest.mark.parametrize("form", NETWORKS)
def test_second_derivatives_of_networks_are_those_of_torch_func(form: str) -> None:
    net, (graph, f, *rest) = network(form)
    net.train(form != "batch")  # torch.func refuses running statistics
    parameters = dict(net.named_parameters())

    def energy(values: dict[str, Tensor], x: Tensor) -> Tensor:
        total: Tensor = torch.func.functional_call(net, values, (graph, x, *rest)).square().sum()
        return total

    def penalty(values: dict[str, Tensor]) -> Tensor:
        return torch.func.grad(energy, argnums=1)(values, f).square().sum()

    f.requires_grad_()
    (force,) = torch.autograd.grad(energy(parameters, f), f, create_graph=True)
    found = torch.autograd.grad(force.square().sum(), list(parameters.values()), allow_unused=True)
    f = f.detach()
    expected = torch.func.grad(penalty)({name: p.detach() for name, p in parameters.items()})
    assert_same(list(found), list(expected.values()))


def test_backward_reaches_the_parameters_through_a_gradient() -> None:
    net, (graph, f, *rest) = network("plain")
    f.requires_grad_()
    (force,) = torch.autograd.grad(net(graph, f, *rest).sum(), f, create_graph=True)
    force.square().sum().backward()
    assert max(float(p.grad.abs().max()) for p in net.parameters() if p.grad is not None) > 0


def test_gradients_of_gradients_of_messages_pass_gradgradcheck() -> None:
    torch.manual_seed(0)
    graph = ragged_graph()
    edges = graph.incidence("any")
    a, b, phi, weight = (
        torch.randn(size, dtype=torch.float64, requires_grad=True)
        for size in ((2, 6, 3), (8, 3), (edges.num_edges, 2), (2, 4, 3))
    )

    def message(*x: Tensor) -> Tensor:
        return aggregate_messages(
            x[0], x[1], edges, x[2], x[3], towards="variable", activation="identity", aggregation=Aggregation("sum")
        )

    assert torch.autograd.gradgradcheck(message, (a, b, phi, weight))


def test_plain_message_passing() -> None:
    torch.manual_seed(0)
    group, layer = FactorGroup([[1, 2], [0, 2], [0, 4], [1, 0], [3, 2]]), MPNNLayer(3, 0, 4).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(group, x).square().sum(), x, create_graph=True)
    found = torch.autograd.grad(grad.square().sum(), x)[0]
    hessian = torch.func.hessian(lambda y: layer(group, y).square().sum())(x.detach()).reshape(15, 15)
    torch.testing.assert_close(found.flatten(), 2 * hessian @ grad.detach().flatten())


def test_under_autocast() -> None:
    net, (graph, f, *rest) = network("plain")
    net, f, rest = net.float(), f.float().requires_grad_(), [{k: x.float() for k, x in y.items()} for y in rest]
    found = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            energy = net(graph, f, *rest).float().sum()
        (force,) = torch.autograd.grad(energy, f, create_graph=True)
        found.append(torch.autograd.grad(force.square().sum(), list(net.parameters()), allow_unused=True))
    half, single = (torch.cat([x.flatten() for x in some if x is not None]) for some in found)
    assert half.dtype == torch.float32
    assert (half - single).norm() < 0.1 * single.norm()


@pytest.mark.parametrize("form", NETWORKS)
def test_derivatives_forward_equal_those_backward(form: str) -> None:
    net, (graph, f, *rest) = network(form)
    net.eval()
    towards = torch.randn_like(f)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(net(graph, forward_ad.make_dual(f, towards), *rest))
        value, tangent = out.primal, out.tangent
    assert tangent is not None
    f.requires_grad_()
    result = net(graph, f, *rest)
    torch.testing.assert_close(value, result.detach())
    (grad,) = torch.autograd.grad(result.sum(), f)
    torch.testing.assert_close(tangent.sum(), (grad * towards).sum())
