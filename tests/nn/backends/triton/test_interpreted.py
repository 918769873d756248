"""The fused kernels by Triton's interpreter on the CPU: the same source as on a GPU, against a plain loop."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if tuple(map(int, version("triton").split(".")[:2])) < (3, 9):
    pytest.skip("the interpreter of triton before 3.9 fails with NumPy 2.4", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter; test_gpu.py covers this on a GPU", allow_module_level=True)

import fgnn
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import aggregate_messages, use_backend
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import why_unsupported
from fgnn.nn.backends.triton import edge_mlp, layout, positions
from fgnn.nn.backends.triton.layout import layout_of
from fgnn.nn.backends.triton.positions import Positions
from fgnn.nn.norm import NodeBatchNorm
from tests.nn.backends.triton.cases import Case, draw, incidence_of, worst

ROWS = [
    Case(),
    Case(towards="variable"),
    Case(ragged=True),
    Case(ragged=True, towards="variable", q="own", batch=3, n=20, m=17),
    Case(arity=7, ragged=True, kind="sum", batch=2, activation="identity"),
    Case(arity=5, towards="variable", q="types", batch=3),
    Case(factors=3, arity=20, variables=33, terms=2, whole=True),
    Case(factors=12, arity=5, per_edge=True, batch=2),
    Case(ragged=True, towards="variable", per_edge=True),
    Case(factors=3, variables=12, towards="variable", n=130, m=140, terms=2),
    Case(factors=9, ragged=True, towards="variable", bounded=True, whole=True),
    Case(factors=9, towards="variable", bounded=True, per_edge=True, kind="sum", batch=2),
    Case(terms=1, n=1, m=1),
    Case(factors=0),
    Case(arity=0),
]
TYPED = [
    Case(factors=3, arity=3, q="types", batch=17),
    Case(factors=3, arity=3, variables=5, ragged=True, towards="variable", q="types", batch=17, kind="sum"),
    Case(factors=3, arity=3, variables=5, towards="variable", q="phi", batch=17, whole=True),
    Case(factors=20, q="places", whole=True),
    Case(factors=9, q="places", batch=2, kind="sum", activation="identity"),
]


@pytest.mark.parametrize("case", ROWS + TYPED, ids=str)
def test_value_and_gradients_equal_a_plain_loop(case: Case) -> None:
    assert worst(case, "triton", torch.float32) < 3e-6


LARGE = [
    Case(),
    Case(ragged=True, towards="variable", q="own", batch=3),
    Case(towards="variable", q="types", kind="sum"),
    Case(factors=20, q="places"),
    Case(factors=3, arity=3, variables=5, ragged=True, towards="variable", q="types", batch=17),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_structures_too_large_for_int32_have_the_same_results(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_INT32", 2)
    assert layout_of(incidence_of(case), case.towards).source.dtype == torch.int64
    assert worst(case, "triton", torch.float32) < 3e-6


HALF = [
    Case(),
    Case(ragged=True, towards="variable", q="own", batch=2),
    Case(factors=40, arity=5, variables=30, q="types", kind="sum", terms=9),
    Case(factors=3, arity=3, q="types", batch=17),
]


@pytest.mark.parametrize("case", HALF, ids=str)
def test_half_precision_is_within_its_bound(case: Case) -> None:
    assert worst(case, "triton", torch.float16) < 3e-3


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("case", [Case(), Case(towards="variable", ragged=True), Case(factors=20, q="places")], ids=str)
def test_without_atomics_the_gradients_are_the_same(case: Case) -> None:
    assert worst(case, "triton", torch.float32) < 3e-6


def test_nan_is_not_lost_in_a_maximum() -> None:
    case = Case(batch=2)
    incidence = incidence_of(case)
    inputs = draw(case, incidence)
    inputs.a[1, 2] = torch.nan
    assert inputs.phi is not None
    with use_backend("triton"):
        found = aggregate_messages(inputs.a, inputs.b, incidence, inputs.phi, inputs.weight, towards="factor")
    wrong = torch.isnan(found).all(-1)
    assert wrong[1, 2]
    assert int(wrong.sum()) == 1


def test_nan_is_not_lost_in_a_relu() -> None:
    make = torch.Generator().manual_seed(0)
    x, t = torch.randn(9, 4, generator=make), torch.randn(5, 3, generator=make)
    x[3, 1], t[2, 0] = torch.nan, torch.nan
    norm = NodeBatchNorm(4)
    with use_backend("triton"):
        y = norm(x, relu=True)
    assert torch.isnan(y).all(0).tolist() == [False, True, False, False]
    assert norm.norm.running_var is not None
    assert torch.isnan(norm.norm.running_var).tolist() == [False, True, False, False]
    net = [torch.randn(*shape, generator=make) for shape in ((16, 3), (16,), (4, 16), (4,))]
    ((phi, _),) = positions.forward([Positions(t, net, torch.randn(4, 2, 2, generator=make))], torch.float32)
    for found in (edge_mlp.forward(t, *net, torch.float32), phi):
        assert torch.isnan(found).all(1).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("hidden", [(), (16,), (8, 16)], ids=str)
@pytest.mark.parametrize("q", ["basis", "table"])
def test_a_layer_and_its_gradients_under_autocast_match_plain_torch(q: str, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    graph = FactorGraph(9, {"p": FactorGroup(torch.stack([torch.randperm(9)[:4] for _ in range(6)]))})
    options = {"hidden": hidden} if q == "basis" else {}
    layer = fgnn.nn.FGNNLayer(
        variable_in=3, factor_in={"p": 2}, edge_in={"p": 4}, out=8, q=q, aggregate="sum", bias=True, q_options=options
    )  # fmt: skip
    f, g = (torch.randn(17, 9, 3) / 4).requires_grad_(), {"p": torch.randn(17, 6, 2) / 4}
    t = {"p": torch.randn(6, 4, 4) / 2 if q == "basis" else torch.randint(0, 4, (6, 4))}

    def run(backend: str, half: bool) -> list[torch.Tensor]:
        layer.zero_grad()
        f.grad = None
        with use_backend(backend), torch.autocast("cpu", torch.float16, enabled=half):
            found, _ = layer(graph, f, g, t)
        found.float().square().sum().backward()
        return [found.detach().float(), f.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]

    wanted = run("torch", False)
    for mine, other in zip(run("triton", True), wanted, strict=True):
        assert mine.dtype == torch.float32
        assert float((mine - other).norm()) < 1e-2 * float(other.norm())


def test_a_compiled_layer_is_one_graph_and_gives_the_same() -> None:
    torch.manual_seed(0)
    graph = FactorGraph(9, {"p": FactorGroup(torch.stack([torch.randperm(9)[:4] for _ in range(6)]))})
    layer = fgnn.nn.FGNNLayer(variable_in=3, factor_in={"p": 2}, edge_in={"p": 2}, out=8, q="basis")
    f, g, t = torch.randn(17, 9, 3), {"p": torch.randn(17, 6, 2)}, {"p": torch.randn(6, 4, 2)}
    with use_backend("torch"):
        wanted, _ = layer(graph, f, g, t)
        wanted.square().sum().backward()
    gradients = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    with use_backend("triton"):
        found, _ = torch.compile(layer, backend="aot_eager", fullgraph=True)(graph, f, g, t)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    for p, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-4)


def test_unsupported_inputs_are_named() -> None:
    cpu = torch.device("cpu")
    assert "float64" in str(why_unsupported(cpu, torch.float64))
    assert "softmax" in str(why_unsupported(cpu, torch.float32, Aggregation("softmax")))
    case = Case()
    incidence = incidence_of(case)
    inputs = draw(case, incidence).to(torch.float64)
    assert inputs.phi is not None
    with pytest.raises(ValueError, match="float64"), use_backend("triton"):
        aggregate_messages(inputs.a, inputs.b, incidence, inputs.phi, inputs.weight, towards="factor")
