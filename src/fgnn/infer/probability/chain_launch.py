"""The passes of `chain` on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fgnn.infer.probability.chain_kernels import chain_backward, chain_forward, chain_shared
from fgnn.runtime.triton_support import power_of_two

_ENTRIES = 256  # of a table that a warp holds
_PROGRAMS = 1024  # that fill a GPU


def forward(unary: Tensor, values: Tensor, order: Tensor, dtype: torch.dtype, keep: bool) -> tuple[Tensor, Tensor]:
    """log Z without the constant (B,), and the forward messages (B, N, k) if ``keep``."""
    models, n, k = unary.shape
    log_z = torch.empty(models, dtype=torch.float64, device=unary.device)
    messages = torch.empty((models, n, k) if keep else (0, 0, 0), dtype=dtype, device=unary.device)
    options = _options(order, k, dtype)
    with torch.cuda.device_of(unary):
        chain_forward[(models,)](
            unary, values, order, messages, log_z, n, k, SHARED=len(values) < models, KEEP=keep, **options
        )
    return log_z, messages


def backward(unary: Tensor, values: Tensor, order: Tensor, messages: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of ``(weight * log_z).sum()`` for the unaries and for the tables, those of all models if shared."""
    models, n, k = unary.shape
    shared, dtype = len(values) < models, messages.dtype
    options = _options(order, k, dtype)
    d_unary = torch.empty_like(unary)
    d_values = torch.empty_like(values)
    right, norm = (torch.empty_like(messages), messages.new_empty(models, n)) if shared else (messages, messages)
    with torch.cuda.device_of(unary):
        chain_backward[(models,)](
            unary, values, order, messages, weight, d_unary, d_values, right, norm, n, k, SHARED=shared, **options
        )
    if not shared:
        return d_unary, d_values
    parts = max(1, min(models, _PROGRAMS // (n - 1)))
    each = -(-models // parts)
    partial = torch.empty(parts, *values.shape[1:], dtype=dtype, device=unary.device)
    with torch.cuda.device_of(unary):
        chain_shared[(n - 1, parts)](
            values, order, messages, weight, right, norm, partial, models, n, k, each, **options
        )
    return d_unary, partial.sum(0, keepdim=True)


def _options(order: Tensor, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """The compile-time arguments that the kernels share."""
    side = power_of_two(k)
    kind = tl.float64 if dtype == torch.float64 else tl.float32
    warps = min(16, max(1, side * side // _ENTRIES))
    return {"ORDERED": len(order) > 0, "BK": side, "KIND": kind, "num_warps": warps}
