"""Aggregation over edges by either kernel family as one differentiable torch operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.triton import row_launch, typed_launch
from fgnn.nn.backends.triton.launch import Operands, Plan, Sizes

_FAMILIES: dict[str, Any] = {"rows": row_launch, "typed": typed_launch}


def aggregate_edges(x: Operands, plan: Plan) -> Tensor:
    """The aggregate at each destination.  # shape: (B, D, m)

    Only torch.compile goes through the dispatcher, which is slow.
    """
    if torch.compiler.is_compiling():
        index, sizes = list(plan.tensors), list(plan.sizes)
        out: Tensor = _op(*_rounded(x), plan.family, index, sizes, plan.relu, plan.maximum)[0]
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in x):
        out = _AggregateEdges.apply(*x, plan)  # type: ignore[no-untyped-call]
    else:
        out, _ = _FAMILIES[plan.family].forward(_rounded(x), plan)
    return out


def _rounded(x: Operands) -> Operands:
    """W in the precision of the features."""
    return Operands(x.dst, x.src, x.coef, x.weight.to(x.src.dtype).contiguous())


class _AggregateEdges(torch.autograd.Function):
    """Takes W in its own precision: rounding W and the gradient at W are not separate autograd nodes."""

    @staticmethod
    def forward(ctx: Any, dst: Tensor | None, src: Tensor, coef: Tensor | None, weight: Tensor, plan: Plan) -> Tensor:
        x = _rounded(Operands(dst, src, coef, weight))
        out, arg = _FAMILIES[plan.family].forward(x, plan)
        ctx.save_for_backward(arg, *x)
        ctx.plan, ctx.weight_dtype = plan, weight.dtype
        return out  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        arg, *x = ctx.saved_tensors
        wants = ctx.needs_input_grad[:4]
        run = _FAMILIES[ctx.plan.family].backward
        grads = run(grad.contiguous(), arg, Operands(*x), ctx.plan, wants, ctx.weight_dtype)
        return *_wanted(grads, wants), None


def _wanted(grads: Sequence[Tensor], wants: Sequence[bool]) -> list[Tensor | None]:
    return [g if wanted else None for g, wanted in zip(grads, wants, strict=True)]


# ---- the same for torch.compile, whose operations take no tuples ------------------------------------------------


@torch.library.custom_op("fgnn::aggregate_edges", mutates_args=())
def _op(
    dst: Tensor | None, src: Tensor, coef: Tensor | None, weight: Tensor, family: str, index: Sequence[Tensor],
    sizes: Sequence[int], relu: bool, maximum: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    plan = Plan(family, index, Sizes(*sizes), relu, maximum)
    return _FAMILIES[family].forward(Operands(dst, src, coef, weight), plan)  # type: ignore[no-any-return]


@_op.register_fake
def _(dst, src, coef, weight, family, index, sizes, relu, maximum):  # type: ignore[no-untyped-def]
    return Plan(family, index, Sizes(*sizes), relu, maximum).outputs(Operands(dst, src, coef, weight))


@torch.library.custom_op("fgnn::aggregate_edges_backward", mutates_args=())
def _op_backward(
    grad: Tensor, arg: Tensor, dst: Tensor | None, src: Tensor, coef: Tensor | None, weight: Tensor, family: str,
    index: Sequence[Tensor], sizes: Sequence[int], relu: bool, maximum: bool, wants: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    plan = Plan(family, index, Sizes(*sizes), relu, maximum)
    x = Operands(dst, src, coef, weight)
    return tuple(_FAMILIES[family].backward(grad.contiguous(), arg, x, plan, wants, weight.dtype))


@_op_backward.register_fake
def _(grad, arg, dst, src, coef, weight, family, index, sizes, relu, maximum, wants):  # type: ignore[no-untyped-def]
    return tuple(Operands(dst, src, coef, weight).gradients(wants))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, family, index, sizes, relu, maximum = inputs
    ctx.save_for_backward(output[1], *operands, *index)
    ctx.family, ctx.options = family, (sizes, relu, maximum)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    arg, dst, src, coef, weight, *index = ctx.saved_tensors
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:4]]
    grads = _op_backward(grad, arg, dst, src, coef, weight, ctx.family, index, *ctx.options, wants)
    return *_wanted(grads, wants), None, [None] * len(index), None, None, None


_op.register_autograd(_backward, setup_context=_save)
