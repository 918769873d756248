"""The operators of a half-layer and of linear layers: valid schema, shapes and gradients, equal to plain operations."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, use_backend
from fgnn.nn.backends import dense, half_operator, step_operator, steps
from fgnn.nn.backends.dense import DenseCall
from fgnn.nn.backends.steps import Step
from fgnn.nn.half_layer import Output
from tests.nn.graphs import features, ragged_graph, uniform_graph

TRITON = find_spec("triton") is not None and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1")
CHECKS = ["test_schema", "test_autograd_registration", "test_faketensor"]


def recorded(layer: FGNNLayer, graph: Any, f: Tensor, gs: Any, edges: Any) -> tuple[list[Any], list[Tensor]]:
    """The operator's arguments and results, for every call of a layer that is not compiled."""
    calls: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(half_operator, "compiled", lambda: True)
        real = step_operator.operator
        patch.setattr(step_operator, "operator", lambda *args: calls.append(args) or real(*args))
        new_f, new_gs = layer(graph, f, gs, edges)
    return calls, [new_f, *new_gs.values()]


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("make", [uniform_graph, ragged_graph])
@pytest.mark.parametrize(
    ("q", "aggregate"), [("basis", "max"), ("dense", "softmax"), ("table", "sum"), ("dense", "max"), ("basis", "mean")]
)
def test_the_operator_equals_the_function_of_autograd(q: Any, aggregate: str, make: Any, batch: int | None) -> None:
    graph = make()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q=q, aggregate=aggregate, bias=True, activation="relu").double()
    f, gs, t = features(graph, 2, widths, widths, batch=batch or 1, types=q == "table")
    if batch is None:
        f, gs = f[0], {name: g[0] for name, g in gs.items()}
    edges: Any = {name: EdgeTypes(x, 3) for name, x in t.items()} if q == "table" else t
    leaves = [f.requires_grad_(), *(g.requires_grad_() for g in gs.values()), *layer.parameters()]
    wanted_f, wanted_gs = layer(graph, f, gs, edges)
    calls, results = recorded(layer, graph, f, gs, edges)
    assert len(calls) == 2
    for args in calls:
        torch.library.opcheck(step_operator.operator, args, test_utils=CHECKS)
    wanted = [wanted_f, *wanted_gs.values()]
    torch.testing.assert_close(results, wanted, rtol=0, atol=0)
    ups = [torch.randn(x.shape, dtype=x.dtype) for x in wanted]
    found, expected = (torch.autograd.grad(xs, leaves, ups, allow_unused=True) for xs in (results, wanted))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.zeros(1) if one is None else one, torch.zeros(1) if other is None else other)


def _as_step(call: DenseCall, operands: list[Tensor]) -> list[Tensor]:
    first, rest = operands[: call.features], operands[call.features :]
    return steps.take(Step("dense", dense.encode(call), (), 1.0, first, rest), dense.sizes(call, operands))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_equal_plain_operations(bias: bool, residual: bool, relu: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    sizes = ((2, 3), (2, 7))
    xs = [torch.randn(*lead, 4, generator=rng) for lead in sizes]
    weights = [torch.randn(5, 4, generator=rng) for _ in sizes]
    biases = [torch.randn(5, generator=rng) for _ in sizes] if bias else []
    rests = [torch.randn(*lead, 5, generator=rng) for lead in sizes] if residual else []
    leaves = [x.requires_grad_() for x in (*xs, *rests, *weights, *biases)]
    call = DenseCall(2, bias, residual, relu, torch.float32, False)
    ways = [lambda: dense.dense(call, leaves), lambda: _as_step(call, leaves)]
    places, after = " ".join(map(str, range(call.features))), f"{call.features} {len(leaves) - call.features}"
    text = f"1 -1 -2;dense {dense.encode(call)}:2::{places}:{after}"
    torch.library.opcheck(step_operator.operator, (leaves, [0], [1.0], text), test_utils=CHECKS)
    wanted = []
    for k, x in enumerate(xs):
        y = torch.nn.functional.linear(x, weights[k], biases[k] if bias else None)
        y = y.relu() if relu else y
        wanted.append(rests[k] + y if residual else y)
    expected = torch.autograd.grad(torch.stack([y.square().sum() for y in wanted]).sum(), leaves)
    for way in ways:
        found = way()
        torch.testing.assert_close(found, wanted)
        gradients = torch.autograd.grad(torch.stack([y.square().sum() for y in found]).sum(), leaves)
        torch.testing.assert_close(gradients, expected)
        one = torch.autograd.grad(way()[1].sum(), weights, allow_unused=True)
        assert one[0] is None or not one[0].any()


def test_halves_of_another_kind_run_one_by_one() -> None:
    """As do those with a hook, which sees its own half alone."""
    graph = uniform_graph()
    widths = dict.fromkeys(graph.groups, 3)
    layer = FGNNLayer(2, widths, widths, 4)
    f, gs, edges = features(graph, 2, widths, widths, dtype=torch.float32)
    wanted, _ = layer(graph, f, gs, edges)
    seen: list[Tensor] = []
    name = next(iter(graph.groups))
    half = layer.variable_to_factor[name]
    with half.register_forward_hook(lambda module, args, out: seen.append(out)):
        found, new_gs = layer(graph, f, gs, edges)
    assert torch.equal(found, wanted)
    assert torch.equal(seen[0], new_gs[name])
    half.output = Output(4, activation="relu")  # type: ignore[assignment]
    _, changed = layer(graph, f, gs, edges)
    torch.testing.assert_close(changed[name], new_gs[name].relu())


@pytest.mark.skipif(not TRITON, reason="needs a CUDA device or Triton's interpreter")
@pytest.mark.parametrize("where", [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("q", ["basis", "dense"])
def test_the_kernels_equal_plain_torch(q: Any, half: bool, by_position: bool, compiled: bool, where: str) -> None:
    if (where == "cuda") != torch.cuda.is_available():
        pytest.skip("for the other device")
    graph = uniform_graph().to(where)
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q=q, bias=True, activation="relu", aggregate="sum").to(where)
    f, gs, t = features(graph, 2, widths, widths, batch=2, dtype=torch.float32)
    f, gs = f.to(where), {name: g.to(where) for name, g in gs.items()}
    arity = {name: graph.incidence(name).arity or 1 for name in graph.groups}
    edges = {name: (x[: arity[name]] if by_position else x).to(where) for name, x in t.items()}
    found = []
    for backend in ("torch", "triton"):
        layer.zero_grad()
        with use_backend(backend), torch.autocast(where, torch.float16, enabled=half and backend == "triton"):
            if compiled and backend == "triton":
                results = recorded(layer, graph, f, gs, edges)[1]
            else:
                new_f, new_gs = layer(graph, f, gs, edges)
                results = [new_f, *new_gs.values()]
        torch.stack([x.float().square().sum() for x in results]).sum().backward()
        found.append([*(x.detach() for x in results), *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert float((other.float() - one).norm() / one.norm().clamp_min(1e-6)) < (2e-2 if half else 1e-4)
