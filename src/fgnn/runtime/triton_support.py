"""The one rule for whether Triton kernels can run on a device."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch

# The oldest GPUs that Triton supports.
_CAPABILITY = (8, 0)
# Answers by device type and index. A plain dict, which torch.compile can trace.
_reasons: dict[tuple[str, int], str | None] = {}


def can_launch(device: torch.device) -> bool:
    """Whether a device is a GPU that runs Triton kernels; never the CPU interpreter."""
    return device.type == "cuda" and why_unavailable(device) is None


def why_unavailable(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on a device; None if they can. A CPU can under ``TRITON_INTERPRET=1``."""
    key = device.type, device.index or 0
    if key not in _reasons:
        _reasons[key] = _find_reason(*key)
    return _reasons[key]


# torch.compile calls it while tracing and keeps the answer: it cannot trace a search for packages.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_reason(kind: str, index: int) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    if kind == "cpu" and os.environ.get("TRITON_INTERPRET", "0") == "1":
        return None
    if kind != "cuda":
        return f"no kernels for {kind}"
    if torch.cuda.get_device_capability(index) < _CAPABILITY:
        return "the GPU is older than compute capability {}.{}".format(*_CAPABILITY)
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler: none found in CC or on the path"
    return None


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size``, as tile sides must be."""
    return 1 << max(size - 1, 0).bit_length()
