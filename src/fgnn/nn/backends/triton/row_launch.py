"""Launches of the kernels over rows of edges, for matrices that differ from edge to edge.

A plan's tensors are source (E,), edge (E,) or empty, table (4, R), row_ptr (D + 1,) and ptr (D + 1,); see ``Layout``.
Half precision has CUDA kernels of its own, see :mod:`fgnn.nn.backends.cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.cuda import best_rows, row_gradients, winners
from fgnn.nn.backends.triton.launch import Operands, Plan, atomic, segment_sum, source_gradient
from fgnn.nn.backends.triton.tile_sizes import Tile, block, cdiv, rows_tile, splits_of, weight_terms
from fgnn.runtime.kernel_launch import constants, launch
from fgnn.runtime.triton_support import power_of_two

_COMBINE_COLUMNS = 64


class _Launch:
    """The arguments that the kernels of one call share, for one choice of tile."""

    def __init__(self, kind: str, x: Operands, plan: Plan) -> None:
        batch, sources, n = x.src.shape
        m, sizes = x.weight.shape[1], plan.sizes
        source, edge, table, _, _ = plan.tensors
        assert x.coef is not None
        self.total = batch * sizes.rows
        self.tile: Tile = rows_tile(kind, n, m, self.total * sizes.width, x.src.dtype, x.src.device)
        self.rows = max(self.tile.lines, sizes.width) // sizes.width  # of one tile
        self.tiles = cdiv(self.total, self.rows)
        self.index = source, edge if edge.numel() else None, table
        self.counts = sizes.rows, self.total, sizes.destinations, sources, source.shape[0]
        self.x, self.plan = x, plan
        self.options: dict[str, Any] = {
            "W": sizes.width,
            "BR": self.rows,
            "HAS_EDGE": edge.numel() > 0,
            "TYPED": not x.coef.is_floating_point(),
            "OWN_COEF": x.coef.dim() == 3,
        }

    def start(self, kernel: Any, grid: tuple[int, ...], args: Sequence[Any], **more: Any) -> None:
        """Launch a kernel with these arguments and its own compile-time options."""
        launch(kernel, grid, args, self.plan.options(self.x, self.tile, **self.options, **more))


def forward(x: Operands, plan: Plan, places: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum)."""
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    batch = x.src.shape[0]
    terms, m, _ = x.weight.shape
    one = _Launch("forward", x, plan)
    out, arg = plan.outputs(x, places, plan.sizes.longest)
    whole = plan.sizes.arity > 0  # a row holds all edges of its destination
    value = out if whole else x.src.new_empty((one.total, m), dtype=torch.float32)
    place = arg if whole else x.src.new_empty((one.total, m) if plan.maximum else (0,), dtype=torch.uint8)
    if one.total and best_rows.fits(x, plan):
        best_rows.forward(x, plan, value, place)
    elif one.total:
        args = [*x, *one.index, value, place, *one.counts, terms]
        one.start(kernels.rows_forward, (one.tiles, cdiv(m, one.tile.columns)), args)
    if whole or not out.numel():
        return out, arg
    if plan.maximum:
        nodes, columns = batch * plan.sizes.destinations, block(m, _COMBINE_COLUMNS)
        args = [value, place, plan.tensors[3], out, arg, plan.sizes.rows, plan.sizes.destinations, nodes]
        options = constants(M=m, W=plan.sizes.width, BD=4, BM=columns)
        launch(kernels.combine_rows, (cdiv(nodes, 4), cdiv(m, columns)), args, options)
    else:
        segment_sum(value.view(batch, plan.sizes.rows, m), None, plan.tensors[3], out)
    return out, arg


def backward(grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool]) -> list[Any]:
    """Gradients at the operands, at W as shares (splits, T, m, n) of a sum; None or empty if they are not wanted."""
    if not x.src.shape[0] * plan.sizes.rows:
        return x.zeros(wants)
    grads = x.gradients(wants)
    if any(wants[:3]):
        grads[:3] = _edge_gradients(grad, arg, x, plan, wants, grads)
    if not wants[3]:
        return [*grads, None]
    weight_gradient = winners.weights if winners.fits(x, plan, grad, arg) else _weight_gradient
    return [*grads, weight_gradient(grad, arg, x, plan)]


def _edge_gradients(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], grads: list[Tensor]
) -> list[Tensor]:
    """The gradients at dst, src and φ."""
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    want_dst, want_src, want_coef = wants[:3]
    d_dst, d_src, d_coef = grads[:3]
    batch, _, n = x.src.shape
    terms, edges, coef = x.weight.shape[0], plan.tensors[0].shape[0], x.coef
    assert coef is not None
    one = _Launch("backward", x, plan)
    blocks = cdiv(n, one.tile.inner)
    whole = plan.sizes.arity > 0
    by_row = d_dst if whole else x.src.new_empty((batch, plan.sizes.rows, n) if want_dst else 0, dtype=torch.float32)
    by_source = x.source_buffer(edges, want_src)
    final = blocks == 1 and (coef.dim() == 3 or batch == 1)  # the kernel writes φ's gradient itself, not parts of it
    by_block = x.src.new_empty(
        (blocks, batch, edges, terms) if want_coef else 0, dtype=coef.dtype if final and want_coef else torch.float32
    )
    if row_gradients.fits(x, plan, grad, arg):
        outs = [out if want else None for out, want in zip((by_row, by_source, by_block), wants, strict=False)]
        row_gradients.launch(grad, arg, x, plan, outs)
    else:
        one.start(
            kernels.rows_backward, (one.tiles, blocks),
            [*x, *one.index, grad, arg, by_row, by_source, by_block, *one.counts, batch * edges],
            T=terms, BT=min(power_of_two(terms), 16) if want_coef else power_of_two(terms),
            NEED_DST=want_dst, NEED_SRC=want_src, ATOMIC=atomic(), NEED_COEF=want_coef,
        )  # fmt: skip
    if want_dst and not whole:
        segment_sum(by_row, None, plan.tensors[3], d_dst)
    if want_src:
        d_src = source_gradient(by_source, plan.tensors[0], d_src)
    if want_coef:
        summed = by_block[0] if blocks == 1 else by_block.sum(0)
        d_coef = (summed if coef.dim() == 3 else summed.sum(0) if batch > 1 else summed[0]).to(coef.dtype)
    return [d_dst, d_src, d_coef]


def _weight_gradient(grad: Tensor, arg: Tensor, x: Operands, plan: Plan) -> Tensor:
    from fgnn.nn.backends.triton import edge_row_kernels as kernels

    terms, m, n = x.weight.shape
    one = _Launch("weight", x, plan)
    tile, group = one.tile, weight_terms(terms, x.src.dtype)
    blocks = cdiv(n, tile.inner) * cdiv(m, tile.columns)
    splits = splits_of(cdiv(terms, group) * blocks, one.tiles, x.weight.numel(), x.src.device)
    partial = x.src.new_empty((splits, terms, m, n), dtype=torch.float32)
    one.start(
        kernels.rows_weight, (cdiv(terms, group), splits, blocks),
        [*x[:3], *one.index, grad, arg, partial, *one.counts, terms, splits],
        BT=group, AHEAD=x.src.dtype != torch.float32 and tile.warps == 8,
    )  # fmt: skip
    return partial
