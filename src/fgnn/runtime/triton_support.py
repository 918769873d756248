"""Whether Triton's kernels can run here."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from importlib.util import find_spec

import torch


@lru_cache
def can_launch(device: torch.device) -> bool:
    """Whether a device runs kernels, Triton is installed, and there is the C compiler that it starts them through."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def power_of_two(size: int) -> int:
    """The least one not below ``size``: what a side of a tile must be."""
    return 1 << max(size - 1, 0).bit_length()
