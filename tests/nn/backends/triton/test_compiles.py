"""Every kernel compiles for a GPU, and fits it: the compiler may refuse, or break, what the interpreter accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # with an empty cache of kernels
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_compile() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.nn.backends.triton.compiling"],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert run.stdout.endswith("compiled\n")
