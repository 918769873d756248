"""``aggregate_messages`` by fused kernels: choose the kernel family, and run it as one differentiable operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.triton import row_launch, typed_launch
from fgnn.nn.backends.triton.launch import Operands, Plan, Sizes
from fgnn.nn.backends.triton.layout import layout_of

_FAMILIES: dict[str, Any] = {"rows": row_launch, "typed": typed_launch}
# From this many samples on, the items of one structure fill a tile.
_ITEMS = 16
# Most entries of Q if it is built once for all samples of a shared structure.
_SHARED_Q = 1 << 25


def aggregate_triton(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    batch = call.batch or 1
    layout = layout_of(call.incidence, call.towards, per_edge=b is None)
    dst, src = (None, a) if b is None else (a, b) if call.towards == "factor" else (b, a)
    dst = None if dst is None else _samples(dst, batch)
    src = _samples(src, batch)
    many, types, incidence = batch >= _ITEMS, call.types, call.incidence
    uniform = call.towards == "factor" and incidence.arity is not None and layout.destinations >= _ITEMS
    if not many and types is not None and uniform and types is incidence.positions:
        # the matrix depends on the place alone, and many factors share it
        family, coef, arity, index = "typed", None, layout.longest, [layout.source]
    elif many and phi is None:
        assert types is not None
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.typed(types)]
    elif many and phi is not None and phi.dim() == 2 and layout.edges * weight.shape[1] * weight.shape[2] <= _SHARED_Q:
        # Q once per structure: for its edges, not for edges times samples
        weight = (phi.to(src.dtype) @ weight.to(src.dtype).flatten(1)).view(-1, *weight.shape[1:])
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.one_each]
    else:
        coef = phi.to(src.dtype).contiguous() if phi is not None else types.index  # type: ignore[union-attr]
        family, arity, index = "rows", layout.arity, [layout.source, layout.edge, layout.table, layout.row_ptr]
    sizes = Sizes(layout.destinations, arity, layout.longest, layout.width, layout.rows)
    plan = Plan(family, index, sizes, call.relu, call.aggregation.kind == "max")
    out = aggregate_edges(Operands(dst, src, coef, weight), plan)
    return out.squeeze(0) if call.batch is None else out


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()


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
