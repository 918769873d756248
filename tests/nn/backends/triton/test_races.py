"""Kernels at sizes that fill a GPU: the same bits at every run, and the numbers of plain torch.

Matrix units run while operands of the next product are being written. If a compiler orders the two wrongly, small
sizes may still come out right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, record, use_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NODES, ARITY = 16384, 16
WIDTHS = [(32, 64), (64, 64), (128, 64), (64, 128), (128, 128)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def large_graph() -> tuple[FactorGraph, int | None]:
    """Scopes at random: variables have any number of factors."""
    scopes = torch.rand(NODES, 64, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :ARITY] * (NODES // 64)
    return FactorGraph(NODES, {"a": FactorGroup((scopes + torch.arange(NODES)[:, None]) % NODES)}).to("cuda"), None


def many_samples() -> tuple[FactorGraph, int | None]:
    """A chain with pairs and windows, shared by many samples."""
    pairs = torch.tensor([[i, i + 1] for i in range(29)])
    windows = torch.tensor([list(range(i, i + 8)) for i in range(23)])
    return FactorGraph(30, {"pair": FactorGroup(pairs), "budget": FactorGroup(windows)}).to("cuda"), 1024


def problem(make: Callable[[], Any], width: int, out: int, aggregate: str) -> tuple[nn.Module, list[Any]]:
    graph, batch = make()
    torch.manual_seed(0)
    names = {name: graph.incidence(name) for name in graph.groups}
    sizes = dict.fromkeys(names, 64), dict.fromkeys(names, 3)
    layer = FGNNLayer(64, *sizes, out, width=width, aggregate=aggregate).cuda()
    lead = () if batch is None else (batch,)
    f = torch.randn(*lead, graph.num_variables, 64, device="cuda")
    gs = {name: torch.randn(*lead, x.num_factors, 64, device="cuda") for name, x in names.items()}
    edges = {name: torch.randn(x.num_edges, 3, device="cuda") for name, x in names.items()}
    return record(layer, False), [graph, f, gs, edges]


def results(layer: nn.Module, inputs: list[Any], dtype: torch.dtype, backend: str | None) -> list[Tensor]:
    with use_backend(backend), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        f, gs = layer(*inputs)
    return [f.float(), *[g.float() for g in gs.values()]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("aggregate", ["max", "sum"])
@pytest.mark.parametrize(("width", "out"), WIDTHS)
@pytest.mark.parametrize("make", [large_graph, many_samples])
def test_forward_gives_the_same_bits_at_every_run(
    make: Any, width: int, out: int, aggregate: str, dtype: torch.dtype
) -> None:
    layer, inputs = problem(make, width, out, aggregate)
    with torch.no_grad():
        exact = results(layer, inputs, torch.float32, "torch")
        first = results(layer, inputs, dtype, None)
        again = [results(layer, inputs, dtype, None) for _ in range(6)]
    for x, y in zip(first, exact, strict=True):
        assert float((x - y).norm() / y.norm()) < 0.02
    for other in again:
        assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "out"), WIDTHS)
@pytest.mark.parametrize("make", [large_graph, many_samples])
def test_backward_gives_the_gradients_of_plain_torch(make: Any, width: int, out: int, dtype: torch.dtype) -> None:
    layer, inputs = problem(make, width, out, "sum")
    leaves = [inputs[1], *inputs[2].values()]
    for x in leaves:
        x.requires_grad_()
    wanted = [*leaves, *layer.parameters()]

    def gradients(dtype: torch.dtype, backend: str | None) -> tuple[Tensor, ...]:
        ys = results(layer, inputs, dtype, backend)
        ups = [torch.randn(y.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) for y in ys]
        return torch.autograd.grad(ys, wanted, ups)

    exact = gradients(torch.float32, "torch")
    for _ in range(3):
        for x, y in zip(gradients(dtype, None), exact, strict=True):
            assert float((x - y).norm() / y.norm()) < (0.1 if dtype == torch.bfloat16 else 0.03)
