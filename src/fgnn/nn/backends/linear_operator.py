"""The linear layer, bias and ReLU included, as one operator for ``torch.compile``.

Generated code for every bias and ReLU of a network takes minutes to compile and runs no faster than the products it
surrounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fgnn.nn.backends.triton import linear as by_triton
from fgnn.nn.backends.triton.linear import Layers


def linear_compiled(layers: Layers, relu: bool, dtype: torch.dtype, fused: bool) -> list[Tensor]:
    """See :func:`fgnn.nn.backends.linear.linear_parts`; ``fused`` selects the kernel."""
    out: list[Tensor] = _op(*layers, relu, dtype, fused)
    return out


@torch.library.custom_op("fgnn::linear", mutates_args=())
def _op(
    x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor | None, weight2: Tensor | None,
    relu: bool, dtype: torch.dtype, fused: bool,
) -> list[Tensor]:  # fmt: skip
    layers = Layers(x, weight, bias, x2, weight2)
    if fused:
        contiguous = layers._replace(x=x.contiguous(), x2=None if x2 is None else x2.contiguous())
        return list(by_triton.forward(contiguous, relu, dtype))
    x, weight, bias, x2, weight2 = _rounded(layers, dtype)
    out = functional.linear(x, weight, bias)
    out = out.relu_() if relu else out
    return [out] if x2 is None or weight2 is None else [out, functional.linear(x2, weight2)]


@_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor | None, weight2: Tensor | None,
    relu: bool, dtype: torch.dtype, fused: bool,
) -> list[Tensor]:  # fmt: skip
    return [t.new_empty((*t.shape[:-1], weight.shape[0]), dtype=dtype) for t in (x, x2) if t is not None]


@torch.library.custom_op("fgnn::linear_backward", mutates_args=())
def _op_backward(
    grads: list[Tensor], y: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor | None,
    weight2: Tensor | None, dtype: torch.dtype, fused: bool, wants: list[bool],
) -> list[Tensor]:  # fmt: skip
    layers = Layers(x, weight, bias, x2, weight2)
    if fused:
        contiguous = layers._replace(x=x.contiguous(), x2=None if x2 is None else x2.contiguous())
        found: list[Tensor | None] = list(by_triton.backward(contiguous, y, tuple(grads), dtype, tuple(wants)))
    else:
        found = _gradients(layers, y, grads, dtype, wants)
    pairs = zip(found, wants, strict=True)
    return [g.contiguous() if g is not None and want else x.new_empty(0) for g, want in pairs]


@_op_backward.register_fake
def _(
    grads: list[Tensor], y: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor | None,
    weight2: Tensor | None, dtype: torch.dtype, fused: bool, wants: list[bool],
) -> list[Tensor]:  # fmt: skip
    given = (x, weight, bias, x2, weight2)
    return [
        t.new_empty(t.shape) if t is not None and want else x.new_empty(0) for t, want in zip(given, wants, strict=True)
    ]


def _rounded(layers: Layers, dtype: torch.dtype) -> Layers:
    return Layers._make(None if t is None else t.to(dtype) for t in layers)


def _gradients(
    layers: Layers, y: Tensor | None, grads: list[Tensor], dtype: torch.dtype, wants: list[bool]
) -> list[Tensor | None]:
    """Gradients at the operands in their own precision; None for those not wanted."""
    half = _rounded(layers, dtype)
    found: list[Tensor | None] = [None] * 5
    for grad, at, t, weight in ((grads[0], 0, half.x, half.weight), (grads[-1], 3, half.x2, half.weight2)):
        if t is None or weight is None:
            continue
        rows = grad.reshape(-1, grad.shape[-1])
        if at == 0 and y is not None:
            rows = torch.ops.aten.threshold_backward(rows, y.reshape(rows.shape), 0)
        if wants[at]:
            found[at] = (rows @ weight).view(t.shape)
        if wants[at + 1]:
            found[at + 1] = rows.T @ t.reshape(-1, t.shape[-1])
        if at == 0 and wants[2]:
            found[2] = rows.sum(0)
    return [None if g is None or t is None else g.to(t.dtype) for g, t in zip(found, layers, strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *layers, relu, dtype, fused = inputs
    ctx.save_for_backward(output[0] if relu else None, *layers)
    ctx.options = dtype, fused
    ctx.shapes = [(out.shape, out.dtype, out.device) for out in output]


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    y, *layers = ctx.saved_tensors
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:5]]
    whole = [
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, ctx.shapes, strict=True)
    ]
    found = _op_backward(whole, y, *layers, *ctx.options, wants)
    return *(g if want else None for g, want in zip(found, wants, strict=True)), None, None, None


_op.register_autograd(_backward, setup_context=_save)
