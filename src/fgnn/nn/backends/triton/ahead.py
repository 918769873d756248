"""The kernels that a network will launch, compiled in parallel before its first step.

Triton compiles a kernel where it is first launched, one after another: a minute for a network on a new machine. A step
whose launches are only noted finds out in a moment which kernels there will be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fgnn.runtime.cuda_launch import CudaBinary
from fgnn.runtime.kernel_launch import local

_met: set[Hashable] = set()  # of compile_once


def compile_ahead(run: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """Compile what ``run`` and its gradients launch; the number of kernels, 0 if that fails.

    Nothing is done where hooks would see a step that means nothing.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if hooks or any(p._backward_hooks for p in parameters):
        return 0

    def step() -> None:
        with torch.autograd.set_multithreading_enabled(False):  # gradients in this thread, whose launches are noted
            out = run()
            wanted = [p for p in parameters if p.requires_grad]
            if out.requires_grad and wanted:
                torch.autograd.grad(out, wanted, torch.zeros_like(out), allow_unused=True)

    return _compile_noted(step)


def compile_once(key: Hashable, device: torch.device, run: Callable[[], object]) -> None:
    """Compile what ``run`` launches on a GPU, the first time that this key is given."""
    if device.type == "cuda" and key not in _met:
        _met.add(key)
        with torch.cuda.device(device):
            _compile_noted(run)


def _compile_noted(run: Callable[[], object]) -> int:
    """Call ``run`` without launches, and compile those; the number of kernels, 0 if that fails.

    Its results mean nothing: it must not read them, nor change anything. Not while a CUDA graph is captured.
    """
    if torch.cuda.is_current_stream_capturing():
        return 0
    notes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    local.notes = notes
    try:
        run()
    except Exception:  # whatever it is, the first step shows it
        return 0
    finally:
        local.notes = None
    try:
        return _compile(list(notes.values()))
    except Exception:  # kernels that are missing are compiled where they are launched
        return 0


def _compile(notes: list[tuple[Any, ...]]) -> int:
    from triton.runtime._async_compile import AsyncCompileMode

    device = torch.cuda.current_device()
    cuda = [kernel for kernel, *_ in notes if isinstance(kernel, CudaBinary)]

    def load(kernel: Any) -> None:  # also compiles what launches it, with the C compiler
        torch.cuda.set_device(device)
        kernel._init_handles()

    def load_cuda(binary: CudaBinary) -> None:
        torch.cuda.set_device(device)
        binary.load()

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = [pool.submit(load_cuda, binary) for binary in cuda]
        with AsyncCompileMode(pool, ignore_errors=True):
            found = [
                kernel.run(*args, grid=grid, warmup=True, **options)
                for kernel, grid, args, options in notes
                if not isinstance(kernel, CudaBinary)
            ]
        for one in waiting:
            one.result()
        kernels = [getattr(kernel, "kernel", kernel) if hasattr(kernel, "result") else kernel for kernel in found]
        list(pool.map(load, [kernel for kernel in kernels if kernel is not None]))
    return len(notes)
