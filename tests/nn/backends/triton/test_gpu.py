"""The fused kernels on a GPU: value and gradients within the precision's bound, with ties and empty destinations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import fgnn
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import use_backend
from tests.nn.backends.triton.cases import Case, call, draw, incidence_of, worst

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BOUND = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
CASES = [
    Case(factors=300, arity=16, variables=257, n=64, m=64, terms=16),
    Case(factors=300, arity=16, variables=257, n=64, m=64, terms=16, towards="variable"),
    Case(factors=150, arity=21, variables=90, n=40, m=24, terms=5, ragged=True, kind="sum"),
    Case(factors=33, arity=6, variables=50, n=20, m=33, terms=3, ragged=True, towards="variable", q="own", batch=3),
    Case(factors=60, arity=8, variables=30, n=64, m=64, q="types", terms=6, batch=3),
    Case(factors=23, arity=8, variables=30, n=64, m=64, q="places", batch=70),
    Case(factors=23, arity=8, variables=30, n=64, m=64, q="phi", batch=70, towards="variable"),
    Case(factors=333, arity=5, variables=99, n=64, m=64, q="places"),
    Case(factors=40, arity=5, variables=30, n=150, m=200, terms=3),
    Case(factors=70, arity=5, variables=30, n=32, m=16, per_edge=True, ragged=True, towards="variable"),
    Case(n=1, m=1, terms=1),
]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradients_match_float64(case: Case, dtype: torch.dtype) -> None:
    # in half precision a near tie may go to another edge, so maxima use integers, which are exact in all precisions
    whole = dtype != torch.float32 and case.kind == "max"
    assert worst(replace(case, whole=whole), "triton", dtype, "cuda") < BOUND[dtype]


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[5]], ids=str)
def test_ties_go_to_the_first_edge(case: Case) -> None:
    assert worst(replace(case, whole=True), "triton", torch.float32, "cuda") < 5e-6


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=str)
def test_the_sum_in_half_precision(case: Case) -> None:
    assert worst(replace(case, kind="sum"), "triton", torch.bfloat16, "cuda") < 2e-2


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[5], CASES[7]], ids=str)
def test_tf32_if_torch_allows_it(case: Case) -> None:
    found = worst(replace(case, kind="sum"), "triton", torch.float32, "cuda")
    assert found < 2e-3


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[7]], ids=str)
def test_deterministic_gradients_are_bitwise_repeatable(case: Case) -> None:
    incidence = incidence_of(case, "cuda")
    inputs = draw(case, incidence).to(torch.float32, "cuda")
    _, first = call(case, incidence, inputs, "triton")
    _, second = call(case, incidence, inputs, "triton")
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert worst(case, "triton", torch.float32, "cuda") < 5e-6


def test_no_access_is_out_of_bounds() -> None:
    """Sizes off by one from the tiles, next to memory that holds NaN."""
    for case in (replace(CASES[0], factors=257, n=63, m=65, terms=7), replace(CASES[5], n=33, m=31, batch=65)):
        torch.full((64, 1 << 20), torch.nan, device="cuda")  # freed at once and reused by the next allocations
        assert worst(case, "triton", torch.float32, "cuda") < 5e-6


def _layer_and_inputs(device: str = "cuda"):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    scopes = torch.stack([torch.randperm(64)[:8] for _ in range(50)])
    graph = FactorGraph(64, {"p": FactorGroup(scopes)}).to(device)
    layer = fgnn.nn.FGNNLayer(variable_in=8, factor_in={"p": 4}, edge_in={"p": 3}, out=32, q="basis").to(device)
    f = torch.randn(64, 8, device=device)
    return layer, graph, f, {"p": torch.randn(50, 4, device=device)}, {"p": torch.randn(400, 3, device=device)}


def test_a_layer_chooses_the_kernels() -> None:
    layer, graph, f, g, t = _layer_and_inputs()
    assert layer.backend == "triton"
    found, _ = layer(graph, f, g, t)
    with use_backend("torch"):
        wanted, _ = layer(graph, f, g, t)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_layer_gives_the_same_and_so_do_its_gradients() -> None:
    layer, graph, f, g, t = _layer_and_inputs()
    wanted, _ = layer(graph, f, g, t)
    wanted.square().sum().backward()
    expected = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    found, _ = torch.compile(layer, fullgraph=True)(graph, f, g, t)
    found.square().sum().backward()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for x, y in zip([p.grad for p in layer.parameters() if p.grad is not None], expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)


def test_autocast_computes_in_its_dtype() -> None:
    layer, graph, f, g, t = _layer_and_inputs()
    wanted, _ = layer(graph, f, g, t)
    with torch.autocast("cuda", torch.bfloat16):
        found, _ = layer(graph, f, g, t)
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert ((found.float() - wanted).norm() / wanted.norm()).item() < 3e-2
