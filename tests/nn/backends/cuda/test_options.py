"""Which GPUs the CUDA kernels are for. No GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fgnn.nn.backends.cuda import options
from fgnn.runtime.nvrtc import CompileError

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(options, "_hopper", lambda device: True)
    options._compiles.cache_clear()
    yield
    options._compiles.cache_clear()


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def compile_it(*given: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(options, "CudaKernel", compile_it)


def test_a_compiler_that_refuses_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, CompileError("NVRTC error 5: no such architecture"))
    with pytest.warns(UserWarning, match="no such architecture"):
        assert not options._compiles(DEVICE)
    fail(monkeypatch, None)
    assert not options._compiles(DEVICE)


def test_what_may_pass_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, RuntimeError("CUDA: out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        options._compiles(DEVICE)
    fail(monkeypatch, None)
    assert options._compiles(DEVICE)
