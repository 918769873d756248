"""The end of a half-layer in one pass: combine the aggregates of the groups, add the bias, apply ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.graph import tracing
from fgnn.nn.backends.choice import choose_backend
from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.triton.combine import PARTS

_NONE = 255  # no part gets the gradient of an entry


def combine(
    parts: Sequence[Tensor], bias: Tensor | None, empty: Tensor | None, *, maximum: bool, relu: bool
) -> Tensor | None:
    r"""Combine the aggregates x_k of several groups, entry by entry:

    .. math:: y = \sigma\Big(\max_k x_k + \beta\Big) \quad\text{or}\quad y = \sigma\Big(\sum_k x_k + \beta\Big)

    On a tie the earlier group gets the gradient; NaN propagates. As separate operations this takes seven passes over
    memory, and as many kernels for each of them.

    Args:
        parts: Each (..., D, m), of one dtype, which the result has too.
        bias: β (m,).
        empty: (D,) True for destinations without edges, where the result is zero.
        maximum: Maximum or sum.
        relu: Whether σ is ReLU.

    Returns:
        (..., D, m); None if the plain operations should run instead.
    """
    first = parts[0]
    if any(x.shape != first.shape or x.dtype != first.dtype for x in parts) or len(parts) >= _NONE:
        return None
    fused = len(parts) <= PARTS and choose_backend(device=first.device, dtype=first.dtype) == "triton"
    y: Tensor | None = None
    if compiled():
        y = _op(list(parts), bias, empty, maximum, relu, fused)[0]
    elif fused and not tracing():
        y = _Combine.apply(maximum, relu, empty, bias, *parts)  # type: ignore[no-untyped-call]
    return y


def forward(
    parts: Sequence[Tensor], bias: Tensor | None, empty: Tensor | None, maximum: bool, relu: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    """The result, and which part gets the gradient of each entry (for a sum 0: all of them)."""
    if fused and parts[0].numel():
        from fgnn.nn.backends.triton import combine as by_triton

        return by_triton.forward(parts, bias, empty, maximum, relu)
    total, which = parts[0], torch.zeros_like(parts[0], dtype=torch.uint8)
    for k, part in enumerate(parts[1:], 1):
        if maximum:
            wins = (part > total) | part.isnan()
            total, which = torch.where(wins, part, total), which.masked_fill_(wins, k)
        else:
            total = total + part
    y = total.clone() if bias is None else (total + bias).to(total.dtype)
    if relu:
        which = which.masked_fill_(y <= 0, _NONE)
        y = y.relu_()
    if empty is not None:
        y, which = y.masked_fill_(empty.unsqueeze(-1), 0), which.masked_fill_(empty.unsqueeze(-1), _NONE)
    return y, which


def backward(
    grad: Tensor, which: Tensor, parts: int, has_bias: bool, maximum: bool, fused: bool
) -> tuple[list[Tensor], Tensor]:
    """Gradients at the parts, and at the bias in float32 or better (empty without bias)."""
    if fused and grad.numel():
        from fgnn.nn.backends.triton import combine as by_triton

        return by_triton.backward(grad, which, parts, has_bias, maximum)
    passes = grad.masked_fill(which == _NONE, 0)
    d_bias = passes.new_empty(0, dtype=_wide(grad.dtype))
    if has_bias:
        d_bias = passes.flatten(0, -2).sum(0, dtype=_wide(grad.dtype))
    if not maximum or parts == 1:
        return [passes.clone() for _ in range(parts)], d_bias
    return [passes.masked_fill(which != k, 0) for k in range(parts)], d_bias


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maximum: bool, relu: bool, empty: Tensor | None, bias: Tensor | None, *parts: Tensor
    ) -> Tensor:
        y, which = forward(parts, bias, empty, maximum, relu, True)
        ctx.save_for_backward(which)
        ctx.maximum, ctx.parts, ctx.bias = maximum, len(parts), None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        d_parts, d_bias = backward(grad, which, ctx.parts, ctx.bias is not None, ctx.maximum, True)
        return None, None, None, None if ctx.bias is None else d_bias.to(ctx.bias), *d_parts


# ---- for torch.compile ---------------------------------------------------------------------------------------------


@torch.library.custom_op("fgnn::combine", mutates_args=())
def _op(
    parts: list[Tensor], bias: Tensor | None, empty: Tensor | None, maximum: bool, relu: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    y, which = forward(parts, bias, empty, maximum, relu, fused)
    return y.contiguous(), which.contiguous()


@_op.register_fake
def _(
    parts: list[Tensor], bias: Tensor | None, empty: Tensor | None, maximum: bool, relu: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    shape = parts[0].shape
    return parts[0].new_empty(shape), parts[0].new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("fgnn::combine_backward", mutates_args=())
def _op_backward(
    grad: Tensor, which: Tensor, parts: int, has_bias: bool, maximum: bool, fused: bool
) -> list[Tensor]:  # the gradient at the bias last
    d_parts, d_bias = backward(grad, which, parts, has_bias, maximum, fused)
    return [*(x.contiguous() for x in d_parts), d_bias]


@_op_backward.register_fake
def _(grad: Tensor, which: Tensor, parts: int, has_bias: bool, maximum: bool, fused: bool) -> list[Tensor]:
    d_bias = grad.new_empty(grad.shape[-1] if has_bias else 0, dtype=_wide(grad.dtype))
    return [*(grad.new_empty(grad.shape) for _ in range(parts)), d_bias]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    parts, bias, _, maximum, _, fused = inputs
    ctx.save_for_backward(output[1])
    ctx.options = len(parts), bias is not None, maximum, fused
    ctx.bias = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    (which,) = ctx.saved_tensors
    *d_parts, d_bias = _op_backward(grad, which, *ctx.options)
    return d_parts, None if ctx.bias is None else d_bias.to(ctx.bias), None, None, None, None


_op.register_autograd(_backward, setup_context=_save)
