"""A small linear layer in half precision as one differentiable operation: one launch forward, two backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.kernels.config import block, cdiv, dtype_of, precision_of, processors

# Widths up to here are held by one program; wider layers compute enough to be left to the libraries.
WIDEST = 128


def linear_fused(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
    """σ(x Θᵀ + β) in ``dtype``, from x (..., k), Θ (o, k) and β (o,) of any precision; σ is ReLU or nothing."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        found: Tensor = _Linear.apply(x, weight, bias, relu, dtype)  # type: ignore[no-untyped-call]
        return found
    return _forward(x, weight, bias, relu, dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        y = _forward(x, weight, bias, relu, dtype)
        ctx.save_for_backward(x, weight, bias, y if relu else None)
        ctx.dtype = dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, y = ctx.saved_tensors
        return (*_backward(x, weight, bias, y, grad, ctx.dtype, ctx.needs_input_grad), None, None)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
    from fgnn.nn.kernels.linear_kernels import linear_forward

    x, weight = x.contiguous(), weight.contiguous()
    o, k = weight.shape
    out = x.new_empty((*x.shape[:-1], o), dtype=dtype)
    rows = x.numel() // k
    if rows:
        lines = 64 if _wide(o, k) else 128
        linear_forward[(cdiv(rows, lines),)](
            x, weight, bias, out, rows, K=k, M=o, BR=lines, BK=block(k, WIDEST), BM=block(o, WIDEST), RELU=relu,
            HAS_BIAS=bias is not None, CT=dtype_of(dtype), PREC=precision_of(dtype), num_warps=4, num_stages=1,
        )  # fmt: skip
    return out


def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor | None, grad: Tensor, dtype: torch.dtype, wants: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    from fgnn.nn.kernels.linear_kernels import linear_backward

    weight = weight.contiguous()
    o, k = weight.shape
    grad = grad.reshape(-1, o)
    rows = grad.shape[0]
    need_weight = wants[1] or wants[2]
    d_x = torch.empty_like(x) if wants[0] else None
    wide = _wide(o, k)
    lines = 64 if wide else 128
    shares = max(1, min(cdiv(rows, lines), 2 * processors(x.device)))
    entries = o * k + (o if bias is not None else 0)
    partial = x.new_empty((shares, entries), dtype=torch.float32) if need_weight else None
    linear_backward[(shares,)](
        x, weight, y, grad, d_x, partial, rows, grad.stride(0), grad.stride(1), K=k, M=o, BR=lines,
        BK=block(k, WIDEST), BM=block(o, WIDEST), RELU=y is not None, HAS_BIAS=bias is not None,
        NEED_X=d_x is not None, NEED_WEIGHT=need_weight, CT=dtype_of(dtype), PREC=precision_of(dtype),
        num_warps=8 if wide else 4, num_stages=2,
    )  # fmt: skip
    if partial is None:
        return d_x, None, None
    total = partial.sum(0)
    d_weight = total[: o * k].view(o, k).to(weight.dtype)
    return d_x, d_weight, None if bias is None else total[o * k :].to(bias.dtype)


def _wide(o: int, k: int) -> bool:
    """Whether Θ takes so many registers that tiles have half as many rows."""
    return block(o, WIDEST) * block(k, WIDEST) > 64 * 64
