"""Kernels compiled at run time: what is said where they cannot be, and a launch where they can."""

from __future__ import annotations

import ctypes

import pytest
import torch

from fgnn.runtime import nvrtc


def test_a_machine_without_a_gpu_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not nvrtc.can_compile()


def test_a_missing_compiler_is_named_and_is_no_error_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", _no_library)
    nvrtc._library.cache_clear()
    try:
        assert not nvrtc.can_compile()
        with pytest.raises(RuntimeError, match=r"99\.7"):
            nvrtc._library()
    finally:
        nvrtc._library.cache_clear()


def _no_library(name: str) -> None:
    raise OSError(name)


@pytest.mark.gpu
def test_a_kernel_adds_and_a_wrong_one_is_reported() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    source = 'extern "C" __global__ void add(float* x, float y) { x[blockIdx.x * SIZE + threadIdx.x] += y; }'
    kernel = nvrtc.CudaKernel(source, "add", ["-DSIZE=32"], device)
    x = torch.zeros(64, device=device)
    kernel(2, 32, 0, [ctypes.c_void_p(x.data_ptr()), ctypes.c_float(1.5)])
    assert bool((x == 1.5).all())
    with pytest.raises(RuntimeError, match="identifier"):
        nvrtc.CudaKernel(source, "add", [], device)
