"""All variants of the CUDA kernels compile for Hopper, keep their products running, and lose no additions."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from fgnn.nn.backends.cuda import best_rows, row_gradients, winners
from fgnn.runtime.nvrtc import CudaSource
from tests.nn.backends.cuda.hazards import hazards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed"),
]
SHORT = {"ARG": "unsigned char", "DST": "unsigned short", "COEF": "unsigned short", "VALUE": "unsigned short"}
FLAGS = ("HALF", "RELU", "HAS_DST", "HAS_EDGE", "OWN_COEF")
SPILLS = 128  # bytes, at most


def compiled(kernel: CudaSource, folder: Path, macros: dict[str, str | int]) -> tuple[Path, str]:
    """The machine code, and what the compiler says."""
    source, binary = folder / f"{kernel.kernel}.cu", folder / f"{kernel.kernel}.cubin"
    source.write_text(kernel.text())
    options = [f"-D{name}={value}" for name, value in macros.items()]
    hopper = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    run = subprocess.run(
        ["nvcc", *hopper, *options, str(source), "-o", str(binary)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{macros}: {run.stderr}"
    assert "Potential Performance Loss" not in run.stderr, f"{macros}: products wait for each other"
    spilled = [int(word.split()[0]) for word in run.stderr.split(", ") if word.endswith("bytes spill stores")]
    assert max(spilled) <= SPILLS, f"{macros}: {spilled} bytes"
    return binary, run.stderr


def flags(k: int) -> dict[str, str | int]:
    """The k-th choice of the flags that all kernels have."""
    return {name: k >> i & 1 for i, name in enumerate(FLAGS)}


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("k", range(0, 32, 3))
def test_rows_forward(tmp_path: Path, width: int, k: int) -> None:
    wide: dict[str, str | int] = {"VALUE": "float", "VALUE_FLOAT": 1} if k % 2 else {"VALUE_FLOAT": 0}
    binary, _ = compiled(best_rows.KERNEL, tmp_path, {**SHORT, **flags(k), "MAX": 1, "W": width, **wide})
    assert not hazards(disassembled(binary))


@pytest.mark.parametrize(("maximum", "coef"), product([0, 1], [0, 1]))
@pytest.mark.parametrize(("width", "terms", "k"), [(4, 16, 5), (8, 16, 14), (16, 16, 31), (16, 1, 7), (4, 5, 22)])
def test_row_gradients(tmp_path: Path, width: int, terms: int, k: int, maximum: int, coef: int) -> None:
    outs = {"DST_FLOAT": 0, "COEF_FLOAT": 0, "ATOMIC": k % 2, "NEED_COEF": coef}
    macros = {**SHORT, **flags(k), **outs, "MAX": maximum, "W": width, "TERMS": terms}
    binary, _ = compiled(row_gradients.KERNEL, tmp_path, macros)
    # 32 for dh and 32 for dφ: ptxas 13.0 has moved such additions beyond the product that overwrites what they read
    code = disassembled(binary)
    added = code.count("FFMA")
    assert added >= terms * (64 if coef else 32), f"{macros}: {added} additions"
    assert not hazards(code)


def disassembled(binary: Path) -> str:
    """Machine code as text, by CUDA's tool or the one that Triton brings."""
    tool = shutil.which("cuobjdump")
    spec = find_spec("triton")
    if tool is None and spec is not None and spec.origin is not None:
        tool = str(Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump")
    if tool is None:
        pytest.skip("needs cuobjdump")
    return subprocess.run([tool, "--dump-sass", str(binary)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("places", ["unsigned char", "int"])
@pytest.mark.parametrize("k", range(0, 32, 5))
def test_winner_weights(tmp_path: Path, places: str, k: int) -> None:
    compiled(winners.KERNEL, tmp_path, {**flags(k), "MAX": 1, "ARG": places, "SHARED": winners._SHARED})
