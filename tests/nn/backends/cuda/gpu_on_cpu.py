"""CUDA kernels that use warps and matrix units, on a CPU: built by a C++ compiler, every thread a fiber."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from fgnn.runtime.cuda_launch import CudaBinary

HEADER = Path(__file__).with_suffix(".h")
_FUNCTION = re.compile(r"^(?:template <[^>]*> )?__device__ __forceinline__ [^{;]*?\b(\w+)\([^{;]*\) \{", re.MULTILINE)
_DEADLOCK = "threads of a block wait for each other"


class Simulator:
    """Launches kernels as :func:`fgnn.runtime.cuda_launch.launch_cuda` does; each is built once.

    Args:
        folder: For what is built.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("g++") is None:
            pytest.skip("needs g++")
        self.folder = folder
        self._built: dict[str, ctypes.CDLL] = {}

    def launch(self, binary: CudaBinary, grid: tuple[int, int, int], args: Sequence[Tensor | int | None]) -> None:
        """Run all blocks of a grid, one after another; ``AssertionError`` if one does not come to an end."""
        given = [x.data_ptr() if isinstance(x, Tensor) else x or 0 for x in args]
        packed = binary._pack.pack(*given)
        code = self._library(binary).start((ctypes.c_uint32 * 3)(*grid), binary.threads, packed)
        assert code == 0, f"{binary.source.kernel}: {_DEADLOCK}"

    def _library(self, binary: CudaBinary) -> ctypes.CDLL:
        macros = [f"-D{name}={value}" for name, value in binary.defines.items()]
        key = str((binary.source.kernel, macros))
        if key not in self._built:
            stem = self.folder / f"kernel{len(self._built)}"
            entry = (
                'extern "C" int start(const u32* grid, int threads, const char* packed) '
                f"{{ return launch({binary.source.kernel}, grid, threads, packed); }}"
            )
            text = f'#include "{HEADER}"\n{without_assembly(binary.source.text())}\n{entry}\n'
            stem.with_suffix(".cpp").write_text(text)
            library = str(stem.with_suffix(".so"))
            options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", *macros]
            subprocess.run(["g++", *options, str(stem.with_suffix(".cpp")), "-o", library], check=True)
            self._built[key] = ctypes.CDLL(library)
        return self._built[key]


def without_assembly(source: str) -> str:
    """The source without its functions in assembly, which the header has too."""
    kept, at = [], 0
    for found in _FUNCTION.finditer(source):
        end = _end(source, found.end() - 1)
        if "asm" in source[found.end() : end]:
            kept.append(source[at : found.start()])
            at = end
    text = "".join([*kept, source[at:]])
    assert not re.search(r"\basm\b", text), "assembly outside of small functions"
    return text


def _end(source: str, brace: int) -> int:
    """Where the block that begins at this brace ends."""
    depth = 0
    for at in range(brace, len(source)):
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        if not depth:
            return at + 1
    raise AssertionError("a block without an end")
