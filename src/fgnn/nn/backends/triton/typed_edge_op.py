"""``fgnn::typed``: messages where many items share each edge matrix, as one differentiable operation; its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.triton.config import cdiv, dtype_of, precision_of, splits_of, typed_tile
from fgnn.nn.backends.triton.edge_row_op import gradients, outputs, segment_sum


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
    """See `launch_forward`; through the dispatcher only while compiling, for it is slow."""
    if torch.compiler.is_compiling():
        rounded = weight.to(src.dtype).contiguous()
        found: Tensor = _op(dst, src, rounded, kinds, lists, sizes, relu, maximum)[0]
    elif torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (dst, src, weight)):
        found = _Typed.apply(dst, src, weight, kinds, lists, sizes, relu, maximum)  # type: ignore[no-untyped-call]
    else:
        rounded = weight.to(src.dtype).contiguous()
        found, _ = launch_forward(dst, src, rounded, kinds, lists, sizes, relu, maximum)
    return found


class _Typed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dst: Tensor | None, src: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        rounded = weight.to(src.dtype).contiguous()
        out, arg = launch_forward(dst, src, rounded, *rest)
        ctx.save_for_backward(arg, dst, src, rounded)
        ctx.rest = rest  # indices of the structure: no gradient, no version to watch
        ctx.kept = weight.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[:3]
        found = launch_backward(grad, *ctx.saved_tensors, *ctx.rest, wants, ctx.kept)  # type: ignore[call-arg]
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
    return launch_forward(dst, src, weight, kinds, lists, sizes, relu, maximum)


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
    return launch_backward(grad, arg, dst, src, weight, kinds, lists, sizes, relu, maximum, wants)


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


# ---- launches -------------------------------------------------------------------------------------------------


def launch_forward(
    dst: Tensor | None,
    src: Tensor,
    weight: Tensor,
    kinds: Sequence[Tensor],
    lists: Sequence[Tensor],
    sizes: Sequence[int],
    relu: bool,
    maximum: bool,
) -> tuple[Tensor, Tensor]:
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum).

    Args:
        dst: (B, D, n) or None.
        src: (B, S, n).
        weight: (T, m, n).
        kinds: See ``Layout.typed``; none where the type is the place.
        lists: source (E,), ptr (D + 1,), and where the edges of each destination and then of each source begin in
            the walk (D + S + 1,); only the first where the type is the place.
        sizes: D, A where the type is the place (else 0), and the largest number of edges of one destination.
    """
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    count, arity, _ = sizes
    batch, sources, n = src.shape
    _, m, _ = weight.shape
    out, arg = outputs(src, weight, count, sizes[2], maximum)
    items, nodes = (batch * count, 1) if arity else (batch, count)
    tile = typed_tile("forward", n, m, items, src.dtype, src.device)
    if out.numel():
        kernels.typed_forward[(cdiv(items, tile.lines) * nodes, cdiv(m, tile.columns))](
            dst, src, None if arity else kinds[0], weight, lists[0], None if arity else lists[1], out, arg, items,
            count, sources, N=n, M=m, A=arity, BI=tile.lines, BN=tile.inner, BM=tile.columns, BY_ITEM=arity > 0,
            **_flags(dst, src, relu, maximum), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, arg


def launch_backward(
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
    kept: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients at dst, src and W (of dtype ``kept``, by default W's); an empty tensor for one not wanted."""
    count, arity, _ = sizes
    grad = grad.contiguous()
    d_dst, d_src, d_weight = gradients((dst, src, weight), src, wants)
    if not grad.numel() or not lists[0].numel():
        return d_dst.zero_(), d_src.zero_(), d_weight.zero_()
    flags = _flags(dst, src, relu, maximum)
    items = src.shape[0] * count if arity else src.shape[0]
    if arity and (wants[0] or wants[1]):
        d_src = _places(grad, arg, dst, src, weight, lists[0], sizes, flags, wants, d_dst, d_src)
    elif wants[0] or wants[1]:
        _nodes(grad, arg, dst, src, weight, kinds, lists, wants, d_dst, d_src, flags)
    if wants[2]:
        d_weight = _weight(grad, arg, dst, src, weight, kinds, lists, sizes, items, flags).to(kept or weight.dtype)
    return d_dst, d_src, d_weight


def _nodes(
    grad: Tensor, arg: Tensor, dst: Tensor | None, src: Tensor, weight: Tensor, kinds: Sequence[Tensor],
    lists: Sequence[Tensor], wants: Sequence[bool], d_dst: Tensor, d_src: Tensor, flags: dict[str, Any],
) -> None:  # fmt: skip
    """The gradient at the nodes of both sides, each summed over its own list of edges: no atomics, one order."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    batch, sources, n = src.shape
    count, m = grad.shape[1], weight.shape[1]
    first = 0 if wants[0] else count
    nodes = (count if wants[0] else 0) + (sources if wants[1] else 0)
    tile = typed_tile("nodes", n, m, batch, src.dtype, src.device)
    kernels.typed_nodes[(cdiv(batch, tile.lines) * nodes, cdiv(n, tile.inner))](
        dst, src, weight, kinds[3], lists[2], grad, arg, d_dst, d_src, batch, count, sources, first, nodes,
        N=n, M=m, BI=tile.lines, BN=tile.inner, BM=tile.columns, AHEAD=n <= tile.inner and m <= tile.columns, **flags,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _places(
    grad: Tensor, arg: Tensor, dst: Tensor | None, src: Tensor, weight: Tensor, source: Tensor, sizes: Sequence[int],
    flags: dict[str, Any], wants: Sequence[bool], d_dst: Tensor, d_src: Tensor,
) -> Tensor:  # fmt: skip
    """Where the type is the place: dst's gradient into ``d_dst``; returns src's."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    count, arity, _ = sizes
    batch, sources, n = src.shape
    m, items, edges = weight.shape[1], batch * count, source.shape[0]
    atomic = not torch.are_deterministic_algorithms_enabled()
    tile = typed_tile("places", n, m, items, src.dtype, src.device)
    shape = (batch, sources if atomic else edges, n) if wants[1] else (0,)
    at_src = src.new_zeros(shape, dtype=torch.float32) if atomic else src.new_empty(shape, dtype=torch.float32)
    kernels.places_backward[(cdiv(items, tile.lines), cdiv(n, tile.inner))](
        dst, src, weight, source, grad, arg, d_dst, at_src, items, count, sources, edges, N=n, M=m, A=arity,
        BI=tile.lines, BN=tile.inner, BM=tile.columns, NEED_DST=wants[0], NEED_SRC=wants[1], ATOMIC=atomic,
        **flags, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if wants[1] and not atomic:
        order = torch.argsort(source, stable=True)
        counts = torch.bincount(source, minlength=sources)
        segment_sum(at_src, order, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), d_src)
        return d_src
    return at_src.to(src.dtype)


def _weight(
    grad: Tensor, arg: Tensor, dst: Tensor | None, src: Tensor, weight: Tensor, kinds: Sequence[Tensor],
    lists: Sequence[Tensor], sizes: Sequence[int], items: int, flags: dict[str, Any],
) -> Tensor:  # fmt: skip
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    count, arity, _ = sizes
    terms, m, n = weight.shape
    tile = typed_tile("weight", n, m, items, src.dtype, src.device)
    blocks = cdiv(n, tile.inner) * cdiv(m, tile.columns)
    steps = cdiv(items, tile.lines) * (1 if arity else cdiv(lists[0].shape[0], terms))
    splits = splits_of(terms * blocks, steps, weight.numel(), src.device, side_by_side=2)
    partial = src.new_empty((splits, *weight.shape), dtype=torch.float32)
    by_kind, kind_ptr = (None, None) if arity else kinds[1:3]
    kernels.typed_weight[(terms, splits, blocks)](
        dst, src, lists[0], by_kind, kind_ptr, grad, arg, partial, items, count, src.shape[1], terms, splits,
        N=n, M=m, A=arity, BI=tile.lines, BN=tile.inner, BM=tile.columns, BY_ITEM=arity > 0,
        **flags, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(0)


def _flags(dst: Tensor | None, src: Tensor, relu: bool, maximum: bool) -> dict[str, Any]:
    return {
        "RELU": relu,
        "HAS_DST": dst is not None,
        "MAX": maximum,
        "CT": dtype_of(src.dtype),
        "PREC": precision_of(src.dtype),
    }
