"""CUDA kernels of messages in half precision: the values and gradients of a float64 loop, and of Triton's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
import torch

from fgnn.nn.backends.cuda import best_rows, options, row_gradients, winners
from fgnn.runtime.nvrtc import CompileError
from tests.nn.backends.triton.cases import Case, call, distance, draw, incidence_of, worst

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BOUND = {torch.float16: 3e-3, torch.bfloat16: 2e-2}
WIDE = Case(factors=300, arity=16, variables=257, n=64, m=64, terms=16)
CASES = [
    WIDE,
    replace(WIDE, towards="variable"),
    replace(WIDE, arity=4, terms=8),
    replace(WIDE, arity=8, terms=5),
    replace(WIDE, arity=9, n=32, m=24),
    replace(WIDE, arity=17, activation="identity"),
    replace(WIDE, arity=17, towards="variable", bounded=True),
    replace(WIDE, arity=30, ragged=True, terms=16),
    replace(WIDE, arity=200, ragged=True, factors=40, variables=400),  # more edges than slots
    replace(WIDE, factors=900, arity=2, variables=5, towards="variable"),  # hubs
    replace(WIDE, factors=50, q="own", batch=3),
    replace(WIDE, factors=50, q="own", batch=3, ragged=True, towards="variable"),
    replace(WIDE, factors=33, batch=5, arity=7),
    replace(WIDE, n=128, m=200, factors=100),
    replace(WIDE, n=8, m=8, terms=1),
    replace(WIDE, n=200, m=72, terms=11, ragged=True),
    replace(WIDE, per_edge=True, ragged=True),
    replace(WIDE, kind="sum"),
    replace(WIDE, kind="sum", ragged=True, arity=30, towards="variable", terms=7),
]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradients_match_float64(case: Case, dtype: torch.dtype) -> None:
    # a near tie may go to another edge in half precision, but integers are exact
    assert worst(replace(case, whole=True), "triton", dtype, "cuda") < BOUND[dtype]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cases have too few tiles for the kernel of winners to pay."""
    monkeypatch.setattr(winners, "pays", lambda x, plan: True)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_those_of_sums_over_all_edges(
    case: Case, dtype: torch.dtype, without: pytest.MonkeyPatch
) -> None:
    """With the winners of one forward kernel, both kinds of kernels sum the same terms."""
    incidence = incidence_of(case, "cuda")
    inputs = draw(case, incidence).to(dtype, "cuda")
    without.setattr(best_rows, "fits", lambda x, plan: False)
    value, found = call(case, incidence, inputs, "triton")
    for module in (row_gradients, winners):
        without.setattr(module, "fits", lambda *given: False)
    same, wanted = call(case, incidence, inputs, "triton")
    assert torch.equal(value, same)
    for x, y in zip(found, wanted, strict=True):
        assert distance(x, y.cpu().double()) < BOUND[dtype]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("case", [WIDE, CASES[1]], ids=str)
def test_deterministic_gradients_are_bitwise_repeatable(case: Case) -> None:
    incidence = incidence_of(case, "cuda")
    inputs = draw(case, incidence).to(torch.bfloat16, "cuda")
    _, first = call(case, incidence, inputs, "triton")
    _, second = call(case, incidence, inputs, "triton")
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert worst(replace(case, whole=True), "triton", torch.bfloat16, "cuda") < BOUND[torch.bfloat16]


def test_the_kernels_serve_these_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    served = []
    for module in (best_rows, row_gradients, winners):
        fits = module.fits
        monkeypatch.setattr(module, "fits", lambda *given, fits=fits: served.append(fits(*given)) or served[-1])
    incidence = incidence_of(WIDE, "cuda")
    call(WIDE, incidence, draw(WIDE, incidence).to(torch.bfloat16, "cuda"), "triton")
    if torch.cuda.get_device_capability() == (9, 0):
        assert served == [True, True, True]


@pytest.mark.usefixtures("deterministic")
def test_new_threads_launch_kernels_that_another_has_loaded() -> None:
    incidence = incidence_of(WIDE, "cuda")
    inputs = draw(WIDE, incidence).to(torch.bfloat16, "cuda")
    wanted = call(WIDE, incidence, inputs, "triton")
    found: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    thread = Thread(target=lambda: found.append(call(WIDE, incidence, inputs, "triton")))
    thread.start()
    thread.join()
    assert torch.equal(found[0][0], wanted[0])
    assert all(torch.equal(x, y) for x, y in zip(found[0][1], wanted[1], strict=True))


def test_without_a_compiler_that_knows_the_instructions_triton_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object) -> None:
        raise CompileError("NVRTC error 5: no such architecture")

    monkeypatch.setattr(options, "CudaKernel", refuse)
    for cached in (options._capable, options._compiles):
        cached.cache_clear()
    try:
        with pytest.warns(UserWarning, match="no such architecture"):
            assert worst(replace(WIDE, whole=True), "triton", torch.bfloat16, "cuda") < BOUND[torch.bfloat16]
    finally:
        for cached in (options._capable, options._compiles):
            cached.cache_clear()
