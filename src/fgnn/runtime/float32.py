"""How products of float32 matrices are computed on a GPU."""

from __future__ import annotations

import torch


def allows_tf32() -> bool:
    """Whether products of float32 matrices on a GPU may round to TF32, by either of torch's interfaces for it."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")  # the older getter raises where both were used
