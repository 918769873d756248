"""The larger of two tensors, entry by entry, in one pass each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.kernels.config import cdiv

_SIZE = 4096


def first_maximum(a: Tensor, b: Tensor) -> Tensor:
    """max(a, b) of one shape and type; on a tie a is taken, and gets the gradient."""
    found: Tensor = _FirstMaximum.apply(a, b)  # type: ignore[no-untyped-call]
    return found


class _FirstMaximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        from fgnn.nn.kernels.maximum_kernels import maximum_forward

        a, b = a.contiguous(), b.contiguous()
        out, second = torch.empty_like(a), torch.empty_like(a, dtype=torch.int8)
        if a.numel():
            maximum_forward[(cdiv(a.numel(), _SIZE),)](a, b, out, second, a.numel(), SIZE=_SIZE, num_warps=4)
        ctx.save_for_backward(second)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        from fgnn.nn.kernels.maximum_kernels import maximum_backward

        (second,) = ctx.saved_tensors
        grad = grad.contiguous()
        d_a, d_b = torch.empty_like(grad), torch.empty_like(grad)
        if grad.numel():
            maximum_backward[(cdiv(grad.numel(), _SIZE),)](
                grad, second, d_a, d_b, grad.numel(), SIZE=_SIZE, num_warps=4
            )
        return d_a, d_b
