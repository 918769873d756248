"""``fgnn::rows``: messages over rows of edges as one differentiable torch operation, and its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.triton.config import (
    block,
    cdiv,
    dtype_of,
    precision_of,
    rows_tile,
    splits_of,
    weight_terms,
)
from fgnn.runtime.triton_support import power_of_two

_LINEAR_WIDTH = 64


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
    """See `launch_forward`; through the dispatcher only while compiling, for it is slow."""
    rest = (source, edge, table, row_ptr, sizes, relu, maximum)
    if torch.compiler.is_compiling():
        found: Tensor = _op(dst, src, coef, weight.to(src.dtype).contiguous(), *rest)[0]
    elif torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (dst, src, coef, weight)):
        found = _Rows.apply(dst, src, coef, weight, *rest)  # type: ignore[no-untyped-call]
    else:
        found, _ = launch_forward(dst, src, coef, weight.to(src.dtype).contiguous(), *rest)
    return found


class _Rows(torch.autograd.Function):
    """W comes in the precision it is kept in: its rounded copy and its gradient take no step of autograd's own."""

    @staticmethod
    def forward(ctx: Any, dst: Tensor | None, src: Tensor, coef: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        rounded = weight.to(src.dtype).contiguous()
        out, arg = launch_forward(dst, src, coef, rounded, *rest)
        ctx.save_for_backward(arg, dst, src, coef, rounded, *rest[:4])
        ctx.rest, ctx.kept = rest[4:], weight.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[:4]
        found = launch_backward(grad, *ctx.saved_tensors, *ctx.rest, wants, ctx.kept)  # type: ignore[call-arg]
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
    return launch_forward(dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum)


@_op.register_fake
def _(dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum):  # type: ignore[no-untyped-def]
    return outputs(src, weight, sizes[0], sizes[4], maximum)


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
    return launch_backward(
        grad, arg, dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum, wants
    )  # fmt: skip


@_op_backward.register_fake
def _(grad, arg, dst, src, coef, weight, source, edge, table, row_ptr, sizes, relu, maximum, wants):  # type: ignore[no-untyped-def]
    return gradients((dst, src, coef, weight), src, wants)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:8])
    ctx.rest = inputs[8:]


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:4]]
    found = _op_backward(grad, *ctx.saved_tensors, *ctx.rest, wants)
    return (*(g if wanted else None for g, wanted in zip(found, wants, strict=True)), *[None] * 7)


_op.register_autograd(_backward, setup_context=_keep)


# ---- launches -------------------------------------------------------------------------------------------------


def launch_forward(
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
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum).

    Args:
        dst: (B, D, n) or None.
        src: (B, S, n).
        coef: φ (E, T) or (B, E, T), or types (E,).
        weight: (T, m, n).
        source, edge, table, row_ptr: See ``Layout``.
        sizes: D, A, W, R and the largest number of edges of one destination.
    """
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    count, arity, width, per_sample, _ = sizes
    batch, sources, n = src.shape
    terms, m, _ = weight.shape
    total = batch * per_sample
    out, arg = outputs(src, weight, sizes[0], sizes[4], maximum)
    tile = rows_tile("forward", n, m, total * width, src.dtype, src.device)
    lines = max(tile.lines, width)
    direct = arity > 0
    made = out if direct else src.new_empty((total, m), dtype=torch.float32)
    place = arg if direct else src.new_empty((total, m) if maximum else (0,), dtype=torch.uint8)
    if total:
        grid = (cdiv(total, lines // width), cdiv(m, tile.columns))
        kernels.rows_forward[grid](
            dst, src, coef, weight, source, edge, table, made, place, per_sample, total, count, sources,
            source.shape[0], terms, **_flags(dst, src, coef, edge, relu, maximum),
            N=n, M=m, A=arity, W=width, BR=lines // width, BN=tile.inner, BM=tile.columns,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    if direct:
        return out, arg
    columns = block(m, _LINEAR_WIDTH)
    if maximum and out.numel():
        kernels.combine_rows[(cdiv(batch * count, 4), cdiv(m, columns))](
            made, place, row_ptr, out, arg, per_sample, count, batch * count, M=m, W=width, BD=4, BM=columns,
        )  # fmt: skip
    elif out.numel():
        segment_sum(made.view(batch, per_sample, m), None, row_ptr, out)
    return out, arg


def launch_backward(
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
    kept: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients at dst, src, φ and W (of dtype ``kept``, by default W's); an empty tensor for one not wanted."""
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    count, arity, width, per_sample, _ = sizes
    batch, sources, n = src.shape
    terms, m, _ = weight.shape
    edges = source.shape[0]
    total = batch * per_sample
    grad = grad.contiguous()
    want_dst, want_src, want_coef, want_weight = wants
    flags = _flags(dst, src, coef, edge, relu, maximum)
    atomic = not torch.are_deterministic_algorithms_enabled()
    made = gradients((dst, src, coef, weight), src, wants)
    d_dst, d_src, d_coef, d_weight = made
    if not total:
        return tuple(g.zero_() for g in made)
    if want_dst or want_src or want_coef:
        tile = rows_tile("backward", n, m, total * width, src.dtype, src.device)
        lines = max(tile.lines, width)
        blocks = cdiv(n, tile.inner)
        direct = arity > 0
        at_dst = d_dst if direct else src.new_empty((batch, per_sample, n) if want_dst else (0,), dtype=torch.float32)
        shape = (batch, sources if atomic else edges, n) if want_src else (0,)
        at_src = src.new_zeros(shape, dtype=torch.float32) if atomic else src.new_empty(shape, dtype=torch.float32)
        own = coef.dim() == 3
        whole = blocks == 1 and (own or batch == 1)  # then what the kernel writes is the gradient itself
        at_coef = src.new_empty(
            (blocks, batch, edges, terms) if want_coef else (0,),
            dtype=coef.dtype if whole and want_coef else torch.float32,
        )
        kernels.rows_backward[(cdiv(total, lines // width), blocks)](
            dst, src, coef, weight, source, edge, table, grad, arg, at_dst, at_src, at_coef, per_sample, total, count,
            sources, edges, batch * edges, **flags, T=terms, N=n, M=m, A=arity, W=width, BR=lines // width,
            BN=tile.inner, BM=tile.columns, BT=min(power_of_two(terms), 16) if want_coef else power_of_two(terms),
            NEED_DST=want_dst, NEED_SRC=want_src, ATOMIC=atomic, NEED_COEF=want_coef,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if want_dst and not direct:
            segment_sum(at_dst, None, row_ptr, d_dst)
        if want_src and atomic:
            d_src = at_src.to(src.dtype)
        elif want_src:
            order = torch.argsort(source, stable=True)
            counts = torch.bincount(source, minlength=sources)
            segment_sum(at_src, order, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), d_src)
        if want_coef:
            summed = at_coef[0] if blocks == 1 else at_coef.sum(0)
            d_coef = (summed if own else summed.sum(0) if batch > 1 else summed[0]).to(coef.dtype)
    if want_weight:
        d_weight = _weight(kernels, grad, arg, dst, src, coef, weight, source, edge, table, sizes, flags)
        d_weight = d_weight.to(kept or weight.dtype)
    return d_dst, d_src, d_coef, d_weight


def _weight(
    kernels: Any, grad: Tensor, arg: Tensor, dst: Tensor | None, src: Tensor, coef: Tensor, weight: Tensor,
    source: Tensor, edge: Tensor | None, table: Tensor, sizes: Sequence[int], flags: dict[str, Any],
) -> Tensor:  # fmt: skip
    count, arity, width, per_sample, _ = sizes
    batch, sources, n = src.shape
    terms, m, _ = weight.shape
    total = batch * per_sample
    tile = rows_tile("weight", n, m, total * width, src.dtype, src.device)
    lines = max(tile.lines, width)
    group = weight_terms(terms, src.dtype)
    blocks = cdiv(n, tile.inner) * cdiv(m, tile.columns)
    programs = cdiv(terms, group) * blocks
    splits = splits_of(programs, cdiv(total, lines // width), terms * m * n, src.device)
    partial = src.new_empty((splits, terms, m, n), dtype=torch.float32)
    kernels.rows_weight[(cdiv(terms, group), splits, blocks)](
        dst, src, coef, source, edge, table, grad, arg, partial, per_sample, total, count, sources, source.shape[0],
        terms, splits, **flags, N=n, M=m, A=arity, W=width, BR=lines // width, BN=tile.inner, BM=tile.columns,
        BT=group, AHEAD=src.dtype != torch.float32 and tile.warps == 8, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(0)


def outputs(src: Tensor, weight: Tensor, count: int, longest: int, maximum: bool) -> tuple[Tensor, Tensor]:
    """Room for (B, D, m) and, for a maximum, for the place that attained it among ``longest``."""
    shape = (src.shape[0], count, weight.shape[1])
    dtype = torch.uint8 if longest <= 256 else torch.int32
    return src.new_empty(shape), src.new_empty(shape if maximum else (0,), dtype=dtype)


def gradients(given: Sequence[Tensor | None], like: Tensor, wants: Sequence[bool]) -> Any:
    """Room for the gradient of each input, empty where it is not wanted."""
    return tuple(
        like.new_empty(0) if g is None or not wanted else g.new_empty(g.shape)
        for g, wanted in zip(given, wants, strict=True)
    )


def _flags(
    dst: Tensor | None, src: Tensor, coef: Tensor, edge: Tensor | None, relu: bool, maximum: bool
) -> dict[str, Any]:
    return {
        "RELU": relu,
        "HAS_DST": dst is not None,
        "HAS_EDGE": edge is not None,
        "TYPED": not coef.is_floating_point(),
        "OWN_COEF": coef.dim() == 3,
        "MAX": maximum,
        "CT": dtype_of(src.dtype),
        "PREC": precision_of(src.dtype),
    }


def segment_sum(values: Tensor, order: Tensor | None, ptr: Tensor, out: Tensor) -> None:
    """Sum entries (B, L, n) by node into (B, V, n)."""
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    batch, nodes, n = out.shape
    columns = block(n, _LINEAR_WIDTH)
    kernels.segment_sum[(cdiv(batch * nodes, 4), cdiv(n, columns))](
        values, order, ptr, out, values.shape[1], nodes, batch * nodes, N=n, BD=4, BN=columns,
        HAS_ORDER=order is not None,
    )  # fmt: skip
