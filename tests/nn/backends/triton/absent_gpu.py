"""A GPU that is absent: kernels are compiled for it where they would be launched, and nothing runs.

What a call returns means nothing. Import this where ``TRITON_INTERPRET`` is not set.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from fgnn.nn.backends.triton import replay, tile_sizes
from fgnn.runtime import kernel_launch, triton_support

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024  # bytes that a program may use on it
_CHOICES = (tile_sizes.rows_tile, tile_sizes.typed_tile)


class Binary(NamedTuple):
    """A compiled kernel: the call that launched it first, registers of a thread, and bytes of spills and shared."""

    kernel: str
    call: str
    registers: int
    spilled: int
    shared: int


class AbsentGPU:
    """Compiles what is launched, and keeps what each kernel takes and what the compiler refuses.

    Attributes:
        call: What is being called, in words.
        binaries: By their hash.
        failed: What the compiler refuses, and what would not run or run wrongly.
    """

    call = ""

    def __init__(self) -> None:
        self.binaries: dict[str, Binary] = {}
        self.failed: list[str] = []

    # ---- what Triton asks of a driver before it compiles

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGET

    # ---- in place of a launch

    def compile(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any], run: Any) -> AbsentGPU:
        try:
            found = run(kernel, *args, grid=(1,), warmup=True, **options)
        except Exception as error:
            self.failed.append(f"{kernel.__name__} of {self.call}: {error!r:.200}")
            return self
        if found.hash not in self.binaries:
            one = Binary(kernel.__name__, self.call, *_usage(found), found.metadata.shared)
            self.binaries[found.hash] = one
            if one.shared > SHARED:
                self.failed.append(f"{one.kernel} of {one.call}: {one.shared} bytes of shared memory")
            if _overtakes(found.asm["ttgir"]):
                self.failed.append(f"{one.kernel} of {one.call}: registers of a running product are written")
        return self

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args: None  # launches of what was compiled


def _usage(binary: Any) -> tuple[int, int]:
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "cubin"
        cubin.write_bytes(binary.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", cubin]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


def _overtakes(code: str) -> bool:
    """Whether an iteration begins before products of the last one end that read an operand from registers."""
    in_registers = False
    for line in code.splitlines():
        if "ttng.warp_group_dot " in line:
            in_registers = ": tensor<" in line  # the type of the first operand
        elif "ttng.warp_group_dot_wait" in line and in_registers and "pendings = 0" not in line:
            return True
    return False


@contextmanager
def absent_gpu() -> Iterator[AbsentGPU]:
    """Calls on CPU tensors compile for compute capability 9.0. Structures of 128 edges already get large tiles."""
    gpu, run = AbsentGPU(), JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> AbsentGPU:
        return gpu.compile(kernel, args, options, run)

    driver.set_active(gpu)
    for choice in _CHOICES:
        choice.cache_clear()
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(replay, "_ATTEMPTS", 1),  # nothing is recorded
        patch.object(tile_sizes, "processors", lambda device: 1),
        patch.object(kernel_launch, "_compiled", {}),
        patch.object(torch.cuda, "current_device", lambda: 0),
        patch.dict(triton_support._reasons, {("cpu", 0): None}),
    ):
        yield gpu
