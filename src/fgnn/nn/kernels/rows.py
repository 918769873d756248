"""``fgnn::rows``: messages over rows of edges as one differentiable torch operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.kernels import rows_launch as launch


def rows(
    dst: Tensor | None,
    src: Tensor,
    coef: Tensor,
    weight: Tensor,
    source: Tensor,
    edge: Tensor | None,
    table: Tensor,
    row_ptr: Tensor,
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
) -> Tensor:
    """See ``fgnn.nn.kernels.rows_launch.forward``; through the dispatcher only while compiling, for it is slow."""
    rest = (source, edge, table, row_ptr, sizes, relu, maximum)
    if torch.compiler.is_compiling():
        found: Tensor = _op(dst, src, coef, weight.to(src.dtype).contiguous(), *rest)[0]
    elif torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (dst, src, coef, weight)):
        found = _Rows.apply(dst, src, coef, weight, *rest)  # type: ignore[no-untyped-call]
    else:
        found, _ = launch.forward(dst, src, coef, weight.to(src.dtype).contiguous(), *rest)
    return found


class _Rows(torch.autograd.Function):
    """W comes in the precision it is kept in: its rounded copy and its gradient take no step of autograd's own."""

    @staticmethod
    def forward(ctx: Any, dst: Tensor | None, src: Tensor, coef: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        rounded = weight.to(src.dtype).contiguous()
        out, arg = launch.forward(dst, src, coef, rounded, *rest)
        ctx.save_for_backward(arg, dst, src, coef, rounded, *rest[:4])
        ctx.rest, ctx.kept = rest[4:], weight.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[:4]
        found = launch.backward(grad, *ctx.saved_tensors, *ctx.rest, wants, ctx.kept)  # type: ignore[call-arg]
        return (*(g if wanted else None for g, wanted in zip(found, wants, strict=True)), *[None] * 7)


@torch.library.custom_op("fgnn::rows", mutates_args=())
def _op(
    dst: Tensor | None,
    src: Tensor,
    coef: Tensor,
    weight: Tensor,
    source: Tensor,
    edge: Tensor | None,
    table: Tensor,
    row_ptr: Tensor,
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
) -> tuple[Tensor, Tensor]:
    return launch.forward(dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum)


@_op.register_fake
def _(dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum):  # type: ignore[no-untyped-def]
    return launch.outputs(src, weight, sizes[0], sizes[4], maximum)


@torch.library.custom_op("fgnn::rows_backward", mutates_args=())
def _op_backward(
    grad: Tensor,
    arg: Tensor,
    dst: Tensor | None,
    src: Tensor,
    coef: Tensor,
    weight: Tensor,
    source: Tensor,
    edge: Tensor | None,
    table: Tensor,
    row_ptr: Tensor,
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
    wants: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return launch.backward(
        grad, arg, dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum, wants
    )  # fmt: skip


@_op_backward.register_fake
def _(grad, arg, dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum, wants):  # type: ignore[no-untyped-def]
    return launch.gradients((dst, src, coef, weight), src, wants)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:8])
    ctx.rest = inputs[8:]


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:4]]
    found = _op_backward(grad, *ctx.saved_tensors, *ctx.rest, wants)
    return (*(g if wanted else None for g, wanted in zip(found, wants, strict=True)), *[None] * 7)


_op.register_autograd(_backward, setup_context=_keep)
