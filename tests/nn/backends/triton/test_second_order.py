"""Gradients of what kernels compute can be differentiated again, as those of plain torch."""

from __future__ import annotations

import copy
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fgnn.nn import build, use_backend
from tests.nn.graphs import ragged_graph, uniform_graph

INTERPRETER = find_spec("triton") is not None and tuple(map(int, version("triton").split(".")[:2])) >= (3, 9)
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETER, reason="needs the interpreter of triton 3.9")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("q", ["basis", "table"])
@pytest.mark.parametrize("structure", [uniform_graph, ragged_graph])
def test_second_derivatives_equal_those_of_torch(structure: Any, q: str, norm: Any, device: str) -> None:
    torch.manual_seed(0)
    graph = structure().to(device)
    names = dict.fromkeys(graph.groups, 3)
    one = build("FGNN(8) - FC(8) - FGNN(1)", variable_in=2, factor_in=names, edge_in=names, q=q, norm=norm)
    nets = [one.to(device), copy.deepcopy(one)]
    f = torch.randn(graph.num_variables, 2).to(device)
    gs = {name: torch.randn(group.num_factors, 3).to(device) for name, group in graph.groups.items()}
    edges = {
        name: torch.randint(3, (group.num_edges,)).to(device)
        if q == "table"
        else torch.randn(group.num_edges, 3).to(device)
        for name, group in graph.groups.items()
    }
    found = []
    for net, backend in zip(nets, ("triton", "torch"), strict=True):
        with use_backend(backend):
            for _ in range(4 if backend == "triton" else 1):  # the last ones replayed
                x = f.clone().requires_grad_()
                (force,) = torch.autograd.grad(net(graph, x, gs, edges).square().sum(), x, create_graph=True)
                grads = torch.autograd.grad(force.square().sum(), list(net.parameters()), allow_unused=True)
        found.append(
            [force, *(torch.zeros_like(p) if d is None else d for p, d in zip(net.parameters(), grads, strict=True))]
        )
    ours, theirs = (torch.cat([x.flatten() for x in some]) for some in found)
    assert theirs.norm() > 0.1
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()
