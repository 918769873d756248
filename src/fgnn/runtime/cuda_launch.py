"""Launches of CUDA kernels that Triton's take turns with: noted, recorded on tapes and replayed like those."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from threading import local as thread_local
from typing import Any

import torch
from torch import Tensor

from fgnn.runtime.kernel_launch import Launched, local
from fgnn.runtime.nvrtc import CudaKernel, CudaSource

Defines = tuple[tuple[str, str | int], ...]


class _Arguments(thread_local):
    """Where a thread puts the arguments of a launch, as the driver reads them."""

    def __init__(self) -> None:
        self.bytes = ctypes.create_string_buffer(4096)
        self.size = ctypes.c_size_t()
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
        self.extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self.bytes), 2, ctypes.addressof(self.size), 0)


_arguments = _Arguments()


class CudaBinary:
    """A CUDA kernel in the shape of Triton's compiled kernels: ``run`` takes addresses and numbers.

    It is compiled when it is loaded or first launched.

    Args:
        source: The kernel.
        defines: Its macros.
        device: The index of a GPU.
        threads: Threads of a block.
        shared: Bytes of dynamic shared memory of a block.
        arguments: Their types, in the notation of :mod:`struct`: P for a tensor or None, i for a number.
    """

    packed_metadata = function = 0  # as Triton's kernels have

    def __init__(
        self, source: CudaSource, defines: Defines, device: int, threads: int, shared: int, arguments: str
    ) -> None:
        self.source, self.defines, self.device = source, dict(defines), device
        self.threads, self.shared, self._pack = threads, shared, struct.Struct(arguments)
        self._kernel: CudaKernel | None = None

    def load(self) -> CudaKernel:
        """Compile the kernel, once."""
        if self._kernel is None:
            kernel = self.source.compiled(self.defines, torch.device("cuda", self.device))
            kernel.allow_shared(self.shared)
            self._kernel = kernel
        return self._kernel

    def run(self, x: int, y: int, z: int, stream: int, *given: Any) -> None:
        """Launch a grid of (x, y, z) blocks; the first five of ``given`` are what only Triton's kernels take."""
        here = _arguments
        self._pack.pack_into(here.bytes, 0, *[0 if a is None else a for a in given[5:]])
        here.size.value = self._pack.size
        (self._kernel or self.load()).launch(x, y, z, self.threads, self.shared, stream, here.extra)


@cache
def cuda_binary(
    source: CudaSource,
    defines: Defines,
    device: int,
    threads: int,
    shared: int,
    arguments: str,
) -> CudaBinary:
    """The same object for the same kernel."""
    return CudaBinary(source, defines, device, threads, shared, arguments)


def launch_cuda(binary: CudaBinary, grid: tuple[int, int, int], args: Sequence[Tensor | int | None]) -> None:
    """Launch a kernel on tensors of its device, aligned to 16 bytes."""
    if local.notes is not None:
        local.notes.setdefault((id(binary),), (binary, grid, (), {}))
        return
    tape = local.tape
    addresses = [x.data_ptr() if isinstance(x, Tensor) else x for x in args]
    with torch.cuda.device(binary.device):
        stream = torch.cuda.current_stream().cuda_stream
        binary.run(*grid, stream, None, None, None, None, None, *addresses)
    if tape is not None:
        tape.launched(Launched(grid, binary, (), binary.device), args)
