"""CUDA kernels without a GPU: built for the CPU by a C++ compiler, with one thread a block."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from fgnn.runtime.nvrtc import Compile, CudaSource, Launch

# What CUDA has and C++ has not.
PRELUDE = """
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __ldg(p) (*(p))
#define __syncthreads()
static struct { int x; } threadIdx, blockIdx, gridDim = {1};
"""


def compiler(kernel: CudaSource, folder: Path, prelude: str, options: Sequence[str] = ()) -> Compile:
    """The kernel itself where there is a GPU, else what builds it for the CPU, once for the same macros."""
    if torch.cuda.is_available():
        return kernel
    if shutil.which("g++") is None:
        pytest.skip("needs a GPU or g++")
    kept: dict[str, Launch] = {}

    def build(defines: Mapping[str, str | int], device: torch.device) -> Launch:
        macros = [f"-D{k}={v}" for k, v in {**defines, "THREADS": 1}.items()]
        if str(macros) not in kept:
            stem = folder / f"kernel{len(kept)}"
            source = kernel.text().replace("extern __shared__ double memory[]", "static double memory[1 << 14]")
            stem.with_suffix(".cpp").write_text(PRELUDE + prelude + source)
            kept[str(macros)] = _build(kernel.kernel, stem, [*options, *macros])
        return kept[str(macros)]

    return build


def _build(name: str, stem: Path, options: Sequence[str]) -> Launch:
    library = str(stem.with_suffix(".so"))
    always = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w"]
    subprocess.run(["g++", *always, *options, str(stem.with_suffix(".cpp")), "-o", library], check=True)
    function: Callable[..., None] = getattr(ctypes.CDLL(library), name)
    return lambda blocks, threads, shared, arguments: function(*arguments)
