"""``fgnn::typed``: messages where many items share each edge matrix, as one differentiable torch operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.kernels import typed_launch as launch
from fgnn.nn.kernels.rows_launch import gradients, outputs


def typed(
    dst: Tensor | None,
    src: Tensor,
    weight: Tensor,
    kinds: Sequence[Tensor],
    lists: Sequence[Tensor],
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
) -> Tensor:
    """See ``fgnn.nn.kernels.typed_launch.forward``; through the dispatcher only while compiling, for it is slow."""
    if torch.compiler.is_compiling():
        rounded = weight.to(src.dtype).contiguous()
        found: Tensor = _op(dst, src, rounded, kinds, lists, sizes, relu, maximum)[0]
    elif torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (dst, src, weight)):
        found = _Typed.apply(dst, src, weight, kinds, lists, sizes, relu, maximum)  # type: ignore[no-untyped-call]
    else:
        rounded = weight.to(src.dtype).contiguous()
        found, _ = launch.forward(dst, src, rounded, kinds, lists, sizes, relu, maximum)
    return found


class _Typed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dst: Tensor | None, src: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        rounded = weight.to(src.dtype).contiguous()
        out, arg = launch.forward(dst, src, rounded, *rest)
        ctx.save_for_backward(arg, dst, src, rounded)
        ctx.rest = rest  # indices of the structure: no gradient, no version to watch
        ctx.kept = weight.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[:3]
        found = launch.backward(grad, *ctx.saved_tensors, *ctx.rest, wants, ctx.kept)  # type: ignore[call-arg]
        return (*(g if wanted else None for g, wanted in zip(found, wants, strict=True)), *[None] * 5)


@torch.library.custom_op("fgnn::typed", mutates_args=())
def _op(
    dst: Tensor | None,
    src: Tensor,
    weight: Tensor,
    kinds: Sequence[Tensor],
    lists: Sequence[Tensor],
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
) -> tuple[Tensor, Tensor]:
    return launch.forward(dst, src, weight, kinds, lists, sizes, relu, maximum)


@_op.register_fake
def _(dst, src, weight, kinds, lists, sizes, relu, maximum):  # type: ignore[no-untyped-def]
    return outputs(src, weight, sizes[0], sizes[2], maximum)


@torch.library.custom_op("fgnn::typed_backward", mutates_args=())
def _op_backward(
    grad: Tensor,
    arg: Tensor,
    dst: Tensor | None,
    src: Tensor,
    weight: Tensor,
    kinds: Sequence[Tensor],
    lists: Sequence[Tensor],
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
    wants: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return launch.backward(grad, arg, dst, src, weight, kinds, lists, sizes, relu, maximum, wants)


@_op_backward.register_fake
def _(grad, arg, dst, src, weight, kinds, lists, sizes, relu, maximum, wants):  # type: ignore[no-untyped-def]
    return gradients((dst, src, weight), src, wants)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    dst, src, weight, kinds, lists, *rest = inputs
    ctx.save_for_backward(output[1], dst, src, weight, *kinds, *lists)
    ctx.num_kinds, ctx.rest = len(kinds), rest


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    arg, dst, src, weight, *more = ctx.saved_tensors
    kinds, lists = more[: ctx.num_kinds], more[ctx.num_kinds :]
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:3]]
    found = _op_backward(grad, arg, dst, src, weight, kinds, lists, *ctx.rest, wants)
    given = [g if wanted else None for g, wanted in zip(found, wants, strict=True)]
    return (*given, [None] * len(kinds), [None] * len(lists), None, None, None)


_op.register_autograd(_backward, setup_context=_keep)
