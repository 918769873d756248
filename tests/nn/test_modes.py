"""Layers under autocast and no_grad, saved and loaded, and with a forced backend."""

from __future__ import annotations

import io

import pytest
import torch

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, build, use_backend
from tests.nn.graphs import features, ragged_graph, uniform_graph


def setup(q: str = "basis", **options: object):  # type: ignore[no-untyped-def]
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q=q, **options)
    inputs = features(graph, 2, widths, widths, batch=5, types=q == "table", dtype=torch.float32)
    return graph, layer, inputs


@pytest.mark.parametrize("q", ["dense", "basis", "table"])
@pytest.mark.parametrize("aggregate", ["max", "sum", "softmax"])
def test_autocast(q: str, aggregate: str) -> None:
    graph, layer, (f, gs, edges) = setup(q, aggregate=aggregate)
    expected, _ = layer(graph, f, gs, edges)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, made = layer(graph, f, gs, edges)
    assert found.dtype == torch.bfloat16
    assert made["pair"].dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("q", ["dense", "basis", "table"])
def test_without_gradients_the_result_is_the_same(q: str) -> None:
    graph, layer, (f, gs, edges) = setup(q)
    with torch.no_grad():
        alone, _ = layer(graph, f, gs, edges)
    assert not alone.requires_grad
    assert torch.equal(alone, layer(graph, f, gs, edges)[0])
    with torch.inference_mode():
        assert torch.equal(layer(graph, f, gs, edges)[0], alone)


def test_parameters_are_saved_and_loaded() -> None:
    graph = ragged_graph()
    widths = dict.fromkeys(graph.groups, 3)
    nets = [build("FGNN(4) - FC(2)", variable_in=2, factor_in=widths, edge_in=widths, norm="batch") for _ in range(2)]
    file = io.BytesIO()
    torch.save(nets[0].state_dict(), file)
    file.seek(0)
    nets[1].load_state_dict(torch.load(file, weights_only=True))
    f, gs, edges = features(graph, 2, widths, widths, dtype=torch.float32)
    one, other = (net.eval()(graph, f, gs, edges) for net in nets)
    assert torch.equal(one, other)


def test_a_backend_can_be_forced() -> None:
    graph, layer, (f, gs, edges) = setup()
    with use_backend("torch"):
        assert layer.backend == "torch"
        layer(graph, f, gs, edges)
    with pytest.raises(ValueError, match="Expected a backend among"), use_backend("abacus"):
        pass


@pytest.mark.parametrize("q", ["basis", "dense", "table"])
def test_backward_may_be_called_inside_autocast(q: str) -> None:
    graph = FactorGraph(5, {"a": FactorGroup([[0, 1], [1, 2], [1, 3], [1, 4]])})
    layer = FGNNLayer(4, {"a": 4}, {"a": 2}, 8, q=q)  # type: ignore[arg-type]
    f, g = torch.randn(3, 5, 4), torch.randn(3, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(graph, f, {"a": g}, {"a": torch.eye(2)})
        out.float().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
