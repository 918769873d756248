"""A recorded module gives the module's results for new inputs, and runs unrecorded if a call differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, graphed
from tests.nn.graphs import features, uniform_graph


def _case(q: str, device: str = "cpu") -> tuple[FGNNLayer, Any, Any]:
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 8, q=q).to(device)  # type: ignore[arg-type]

    def inputs(seed: int) -> tuple[Any, ...]:
        f, gs, edges = features(graph, 2, widths, widths, batch=20, types=q == "table", seed=seed)
        moved = {k: g.float().to(device) for k, g in gs.items()}
        put = {k: EdgeTypes(t.to(device), 3) if q == "table" else t.float().to(device) for k, t in edges.items()}
        return f.float().to(device).requires_grad_(), moved, put

    return layer, graph.to(device), inputs


def test_without_a_gpu_the_module_runs() -> None:
    layer, graph, inputs = _case("basis")
    f, gs, edges = inputs(0)
    fast = graphed(layer, graph, f, gs, edges)
    assert not fast.recorded
    torch.testing.assert_close(fast(graph, f, gs, edges)[0], layer(graph, f, gs, edges)[0], rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("q", ["basis", "table"])
def test_a_recording_uses_new_inputs_and_parameters(q: str, half: bool) -> None:
    layer, graph, inputs = _case(q, "cuda")
    f, gs, edges = inputs(0)
    held, _ = layer(graph, f, gs, edges)  # its autograd graph ties the parameters to the default stream
    held.sum().backward(retain_graph=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        fast = graphed(layer, graph, f, gs, edges)
        assert fast.recorded
        for seed in (1, 2):
            with torch.no_grad():
                for p in layer.parameters():
                    p.mul_(1.1)
            f, gs, _ = inputs(seed)
            results = []
            for call in (layer, fast):
                layer.zero_grad()
                f.grad = None
                out, _ = call(graph, f, gs, edges)
                out.float().square().mean().backward()
                results.append([out.detach().clone(), f.grad.clone(), *(p.grad.clone() for p in layer.parameters())])
            for mine, other in zip(*results, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_shape_or_mode_runs_unrecorded() -> None:
    layer, graph, inputs = _case("table", "cuda")
    f, gs, edges = inputs(0)
    fast = graphed(layer, graph, f, gs, edges)
    few = f.detach()[:3], {k: g[:3] for k, g in gs.items()}
    torch.testing.assert_close(fast(graph, *few, edges)[0], layer(graph, *few, edges)[0])
    with torch.autocast("cuda", torch.bfloat16):
        assert fast(graph, f, gs, edges)[0].dtype == torch.bfloat16
    other = {k: EdgeTypes((t.index + 1) % 3, 3) for k, t in edges.items()}
    torch.testing.assert_close(fast(graph, f, gs, other)[0], layer(graph, f, gs, other)[0])
