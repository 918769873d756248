"""One switch for bitwise reproducible results."""

from __future__ import annotations

import os

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class deterministic:
    """Make training and solving bitwise reproducible on a CPU and on one GPU, from now on or in a ``with`` block.

    Operations of torch use their deterministic form, or raise if they have none. Kernels of this package sum in a fixed
    order instead of by atomics. cuBLAS keeps one workspace, which requires the call before the first use of the GPU.
    Equal results need equal seeds, versions, device and number of threads, and no time limit.

    Args:
        on: False switches it off.

    Example:
        >>> with deterministic():
        ...     torch.are_deterministic_algorithms_enabled()
        True
    """

    def __init__(self, on: bool = True) -> None:
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
            os.environ.get(_WORKSPACE),
        )
        if on:
            os.environ.setdefault(_WORKSPACE, ":4096:8")
            torch.backends.cudnn.benchmark = False  # its choice of algorithm depends on timing
        torch.use_deterministic_algorithms(on)

    def __enter__(self) -> deterministic:
        return self

    def __exit__(self, *_: object) -> None:
        enabled, warn_only, benchmark, workspace = self._before
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
