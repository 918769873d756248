"""Kernels compiled at run time: what is said where they cannot be, and a launch where they can."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

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


class Driver:
    """Stands for CUDA's, in a thread without a context."""

    def __init__(self) -> None:
        self.entered, self.allowed = False, 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        if not self.entered:
            return nvrtc._NO_CONTEXT
        if attribute == nvrtc._MAX_DYNAMIC_SHARED:
            allowed = self.allowed
            time.sleep(0.001)  # others come between
            self.allowed = value if allowed == self.allowed else -1
        return 0

    def cuDeviceGet(self, *_: Any) -> int:
        return 0

    cuDevicePrimaryCtxRetain = cuDeviceGet

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.entered = True
        return 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> nvrtc.CudaKernel:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(nvrtc, "_compile", lambda source, options: b"")
    monkeypatch.setattr(nvrtc.CudaKernel, "_load", lambda self, binary, name: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    return nvrtc.CudaKernel("", "add", [], torch.device("cuda", 0))


def test_a_thread_without_a_context_gets_that_of_torch(kernel: nvrtc.CudaKernel) -> None:
    kernel.allow_shared(1000)
    assert kernel._driver.entered
    assert kernel._driver.allowed == 1000


def test_threads_allow_the_most_that_one_of_them_needs(kernel: nvrtc.CudaKernel) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(kernel.allow_shared, [100, 900, 300, 800, 200, 700, 500, 600]))
    assert kernel._driver.allowed == 900


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
