"""Kernels compiled ahead: a step is noted, not launched, and whatever fails is left to the first step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from fgnn.nn.backends.triton import ahead
from fgnn.runtime import kernel_launch
from fgnn.runtime.kernel_launch import constants, launch


class Kernel:
    """In place of a compiled kernel: adds one when it is launched."""

    device_caches: dict[int, Any] = {}  # noqa: RUF012
    arg_names = ("x", "SIZE")

    def __init__(self) -> None:
        self.launched = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **options: Any) -> Kernel:
            self.launched += 1
            return self  # the compiled kernel

        return run


class Twice(torch.autograd.Function):
    """Launches one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any) -> Tensor:
        launch(kernel, (1,), [x], constants(SIZE=1))
        ctx.kernel = kernel
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        launch(ctx.kernel, (1,), [grads[0]], constants(SIZE=2))
        return 2 * grads[0], None


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def step(kernel: Kernel, x: Tensor) -> Tensor:
    return Twice.apply(Twice.apply(x, kernel), kernel)  # type: ignore[no-any-return, no-untyped-call]


def test_a_step_is_noted_and_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(ahead, "_compile", lambda notes: seen.extend(notes) or len(notes))
    kernel, x = Kernel(), torch.ones(4, requires_grad=True)
    assert ahead.compile_ahead(lambda: step(kernel, x), [x]) == 2
    assert [options["SIZE"] for *_, options in seen] == [1, 2]
    assert not kernel.launched
    assert x.grad is None
    step(kernel, x)
    assert kernel.launched == 2


def test_what_fails_is_left_to_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such option")

    kernel, x = Kernel(), torch.ones(4, requires_grad=True)
    monkeypatch.setattr(ahead, "_compile", fail)
    assert ahead.compile_ahead(lambda: step(kernel, x), [x]) == 0
    assert ahead.compile_ahead(fail, [x]) == 0
    assert kernel_launch.local.notes is None


def test_hooks_see_no_step_that_means_nothing() -> None:
    kernel, x = Kernel(), torch.ones(4, requires_grad=True)
    seen: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: seen.append(y) or y, lambda y: y):
        assert ahead.compile_ahead(lambda: step(kernel, x), [x]) == 0
    x.register_hook(seen.append)
    assert ahead.compile_ahead(lambda: step(kernel, x), [x]) == 0
    assert not seen


def test_a_key_is_compiled_once_and_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(ahead, "_met", set())
    monkeypatch.setattr(ahead, "_compile", lambda notes: seen.extend(notes) or len(notes))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    kernel, x = Kernel(), torch.ones(4)
    for device in ("cpu", "cuda", "cuda"):
        ahead.compile_once("a pass", torch.device(device), lambda: step(kernel, x))
    assert len(seen) == 1
    assert not kernel.launched
