"""A small linear layer in half precision, or two at once: one launch forward, two backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.triton.config import block, cdiv, dtype_of, precision_of, processors, roomy

# Widths up to here are held by one program; wider layers compute enough to be left to the libraries.
WIDEST = 128


@dataclass(frozen=True, eq=False)
class Rows:
    """One layer's input and parameters: x (..., k), Θ (m, k), and β (m,) or None, of any precision."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None


def linear_fused(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
    """σ(x Θᵀ + β) in ``dtype``; σ is ReLU or nothing."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        found: Tensor = _Linear.apply(x, weight, bias, relu, dtype)  # type: ignore[no-untyped-call]
        return found
    return _forward(Rows(x.contiguous(), weight, bias), None, relu, dtype)[0]


def linear_pair(
    x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor, weight2: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x Θᵀ + β and x₂ Θ₂ᵀ, which have as many columns, by one launch."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, x2, weight2)):
        a, b = _Pair.apply(x, weight, bias, x2, weight2, dtype)  # type: ignore[no-untyped-call]
        return a, b
    a, b = _forward(Rows(x.contiguous(), weight, bias), Rows(x2.contiguous(), weight2), False, dtype)
    return a, b


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        (y,) = _forward(Rows(x, weight, bias), None, relu, dtype)
        ctx.save_for_backward(x, weight, bias, y if relu else None)
        ctx.dtype = dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, y = ctx.saved_tensors
        wants = (*ctx.needs_input_grad[:3], False, False)
        return (*_backward(Rows(x, weight, bias), None, y, grad, None, ctx.dtype, wants)[:3], None, None)


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor, weight2: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x, x2 = x.contiguous(), x2.contiguous()
        a, b = _forward(Rows(x, weight, bias), Rows(x2, weight2), False, dtype)
        ctx.save_for_backward(x, weight, bias, x2, weight2)
        ctx.dtype = dtype
        return a, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad2: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, x2, weight2 = ctx.saved_tensors
        wants = ctx.needs_input_grad[:5]
        first, second = Rows(x, weight, bias), Rows(x2, weight2)
        return (*_backward(first, second, None, grad, grad2, ctx.dtype, wants), None)


def _forward(first: Rows, second: Rows | None, relu: bool, dtype: torch.dtype) -> list[Tensor]:
    """The results of one layer or two, in ``dtype``."""
    from fgnn.nn.backends.triton.linear_kernels import linear_forward

    layers = [first] if second is None else [first, second]
    m = first.weight.shape[0]
    out = [layer.x.new_empty((*layer.x.shape[:-1], m), dtype=dtype) for layer in layers]
    lines = _lines(m, *(layer.weight.shape[1] for layer in layers))
    tiles = sum(cdiv(y.numel() // m, lines) for y in out)
    if tiles:
        linear_forward[(tiles,)](
            first.x, first.weight.contiguous(), first.bias, out[0], out[0].numel() // m, *_second(second, out),
            **_sizes(first, second, lines, dtype), RELU=relu, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out


def _backward(
    first: Rows,
    second: Rows | None,
    y: Tensor | None,
    grad: Tensor,
    grad2: Tensor | None,
    dtype: torch.dtype,
    wants: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients at x, Θ, β, and at x and Θ of the second layer; None for those not wanted, or not there."""
    from fgnn.nn.backends.triton.linear_kernels import linear_backward

    m, k = first.weight.shape
    k2 = 0 if second is None else second.weight.shape[1]
    grad = grad.reshape(-1, m)
    grad2 = None if grad2 is None else grad2.reshape(-1, m)
    rows, rows2 = grad.shape[0], 0 if grad2 is None else grad2.shape[0]
    need_weight = wants[1] or wants[2] or wants[4]
    d_x = torch.empty_like(first.x) if wants[0] else None
    d_x2 = torch.empty_like(second.x) if wants[3] and second is not None else None
    lines = _lines(m, k, k2 or k)
    shares = max(1, min(cdiv(max(rows, rows2), lines), (1 if k2 else 2) * processors(grad.device)))
    ends = [m * k, m * k + (0 if first.bias is None else m)]
    partial = grad.new_empty((shares, ends[1] + m * k2), dtype=torch.float32) if need_weight else None
    strides2 = (0, 0) if grad2 is None else (grad2.stride(0), grad2.stride(1))
    linear_backward[(shares * (2 if k2 else 1),)](
        # the compiler wants a pointer also where nothing is written through it
        first.x, first.weight.contiguous(), y, grad, d_x, grad if partial is None else partial, rows, *grad.stride(),
        *((None, None) if second is None else (second.x, second.weight.contiguous())), grad2, d_x2, rows2, *strides2,
        shares, **_sizes(first, second, lines, dtype), RELU=y is not None, NEED_X=d_x is not None,
        NEED_X2=d_x2 is not None, NEED_WEIGHT=need_weight, num_warps=8 if lines < 128 else 4,
        num_stages=2 if roomy(grad.device) else 1,
    )  # fmt: skip
    if partial is None:
        return d_x, None, None, d_x2, None
    total = partial.sum(0)
    d_weight = total[: ends[0]].view(m, k).to(first.weight.dtype)
    d_bias = None if first.bias is None else total[ends[0] : ends[1]].to(first.bias.dtype)
    d_weight2 = None if second is None else total[ends[1] :].view(m, k2).to(second.weight.dtype)
    return d_x, d_weight, d_bias, d_x2, d_weight2


def _second(second: Rows | None, out: list[Tensor]) -> tuple[Any, ...]:
    if second is None:
        return None, None, None, 0
    return second.x, second.weight.contiguous(), out[1], out[1].numel() // out[1].shape[-1]


def _sizes(first: Rows, second: Rows | None, lines: int, dtype: torch.dtype) -> dict[str, Any]:
    m, k = first.weight.shape
    k2 = 0 if second is None else second.weight.shape[1]
    return {
        "K": k,
        "K2": k2,
        "M": m,
        "BR": lines,
        "BK": block(k, WIDEST),
        "BK2": block(k2, WIDEST),
        "BM": block(m, WIDEST),
        "HAS_BIAS": first.bias is not None,
        "CT": dtype_of(dtype),
        "PREC": precision_of(dtype),
    }


def _lines(m: int, *inner: int) -> int:
    """Rows of a tile: fewer where Θ takes many registers, more where a row is short."""
    size = block(m, WIDEST) * max(block(k, WIDEST) for k in inner)
    return 64 if size > 64 * 64 else 128 if size > 32 * 32 else 256
