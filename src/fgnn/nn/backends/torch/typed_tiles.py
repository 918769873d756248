"""Typed edges in plain torch: messages, aggregation and gradients of one tile after the other, in the cache of a CPU.

A tile holds some destinations with all their edges, sorted by type, so that the messages of a type are one product and
every aggregate is complete within its tile. Where graphs are small and batches large, samples are cut as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fgnn.graph import Block, EdgeTypes, Incidence, Side
from fgnn.nn.backends.torch.chunks import MIN_ROWS, EdgeInputs, cut, limit
from fgnn.nn.backends.torch.reduce import add_rows, reduce_block, sum_dtype

# Edges of a tile. Layers of all widths share tiles; samples are cut by width.
_EDGES = 1 << 14
# Tilings that are kept: both directions, with two graphs or two sizes.
_KEEP = 4


@dataclass(frozen=True, eq=False)
class Tile:
    """Some destinations and their edges, in rows sorted by type.

    Attributes:
        blocks: The destinations; edges of a block are rows of the tile.
        edges, factor, variable: (rows,) the edge of each row and its two ends.
        factors: The range of factors that the rows of each type run through in order; None if they do not.
        runs: (types, rows): one product each; several types if they are consecutive and have as many rows each.
    """

    blocks: tuple[Block, ...]
    edges: Tensor
    factor: Tensor
    variable: Tensor
    factors: slice | None
    runs: tuple[tuple[slice, slice], ...]

    def destination(self, towards: Side) -> Tensor:
        """The destination of each row.  # shape: (rows,)"""
        return self.factor if towards == "factor" else self.variable


def tiles(incidence: Incidence, types: EdgeTypes, towards: Side, size: int) -> list[Tile]:
    """All edges in tiles of about ``size``, kept with the types; what does not depend on them, with the edges."""
    size = min(size, incidence.num_edges)

    def make() -> list[Tile]:
        parts = incidence.recent("tiles", (towards, size), lambda: list(_cut(incidence, towards, size)), 2)
        return [_tile(edges, blocks, incidence, types) for edges, blocks in parts]

    return types.recent("tiles", (incidence.handle, towards, size), make, _KEEP)


def _cut(incidence: Incidence, towards: Side, size: int) -> Iterator[tuple[Tensor, list[tuple[Block, Tensor]]]]:
    """The edges of each tile, and its blocks with the places of their edges among them."""
    some: list[Block] = []
    everything = torch.arange(max(incidence.num_edges, incidence.num_destinations(towards)), device="cpu")
    for block in incidence.blocks(towards):
        edges = everything[: incidence.num_edges].view(block.rows, -1) if block.edges is None else block.edges.cpu()
        to = everything[: block.rows] if block.destinations is None else block.destinations.cpu()
        step = block.rows if size == incidence.num_edges else max(size // block.width, 1)
        for rows in cut(block.rows, step):
            padding = None if block.padding is None else block.padding[rows]
            if some and size < incidence.num_edges and sum(b.rows * b.width for b in some) + step * block.width > size:
                yield _numbered(some)
                some = []
            some.append(Block(to[rows], edges[rows], padding, rows.stop - rows.start, block.width))
    if some and size == incidence.num_edges:  # one tile
        yield everything[:size], [(block, block.edges) for block in some if block.edges is not None]
    elif some:
        yield _numbered(some)


def _numbered(blocks: Sequence[Block]) -> tuple[Tensor, list[tuple[Block, Tensor]]]:
    edges, places, count = [], [], 0
    for block in blocks:
        assert block.edges is not None
        if block.padding is None:
            live, number = block.edges.flatten(), torch.arange(block.edges.numel(), device="cpu")
        else:  # padding repeats an edge, and its place
            own = ~block.padding.cpu().flatten()
            live, number = block.edges.flatten()[own], own.cumsum(0) - 1
        edges.append(live)
        places.append((block, (number + count).view_as(block.edges)))
        count += len(live)
    return torch.cat(edges), places


def _tile(edges: Tensor, blocks: Sequence[tuple[Block, Tensor]], incidence: Incidence, types: EdgeTypes) -> Tile:
    device = incidence.variable.device
    kinds = types.index.cpu()[edges].numpy()
    # Short integers are sorted in one pass or two.
    order = torch.from_numpy(np.argsort(kinds.astype(np.min_scalar_type(types.num_types)), kind="stable"))
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device="cpu")
    own = tuple(
        replace(block, destinations=to.to(device), edges=rank[places].to(device))
        for block, places in blocks
        if (to := block.destinations) is not None
    )
    counts = np.bincount(kinds, minlength=types.num_types)
    values = np.flatnonzero(counts)
    runs = tuple(_runs(values.tolist(), counts[values].tolist()))
    edges = edges[order].to(device)
    factor = incidence.factor[edges]
    return Tile(own, edges, factor, incidence.variable[edges], _range(factor, len(values)), runs)


def _runs(kinds: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    if kinds[-1] - kinds[0] + 1 == len(kinds) and len(set(counts)) == 1:
        yield slice(kinds[0], kinds[-1] + 1), slice(0, sum(counts))
        return
    last = 0
    for kind, count in zip(kinds, counts, strict=True):
        yield slice(kind, kind + 1), slice(last, last + count)
        last += count


def _range(factor: Tensor, times: int) -> slice | None:
    """The factors of a tile, if a range of them is repeated so many times."""
    first, count = int(factor[0]), len(factor) // times
    same = torch.equal(factor, torch.arange(first, first + count, device=factor.device).repeat(times))
    return slice(first, first + count) if same else None


def forward(inputs: EdgeInputs, types: EdgeTypes, differentiate: bool) -> tuple[Tensor, Tensor | None]:
    """The aggregate (D, B, m), and for a maximum with ``differentiate`` the row in its tile that attains each entry."""
    weight, call = inputs.weight, inputs.call
    shape = (call.incidence.num_destinations(call.towards), inputs.batch, weight.shape[1])
    values = _by_sample(weight, shape)
    arg = weight.new_empty(shape, dtype=torch.long) if differentiate and call.aggregation.kind == "max" else None
    work = _Work(inputs, types)
    sums = call.aggregation.kind in ("sum", "mean")
    wide = sum_dtype(weight, call.incidence, call.towards) if sums else weight.dtype
    for bs in work.samples:
        some = weight.new_full((shape[0], bs.stop - bs.start, shape[2]), call.aggregation.neutral, dtype=wide)
        for tile in work.tiles:
            messages = work.messages(work.h(tile, bs), tile)
            if sums:
                add_rows(some, tile.destination(call.towards), messages.to(wide))
                continue
            for block in tile.blocks:
                reduced, rows = reduce_block(messages, block, call.aggregation, arg is not None)
                assert block.destinations is not None
                some.index_copy_(0, block.destinations, reduced)
                if arg is not None and rows is not None:
                    arg[:, bs].index_copy_(0, block.destinations, rows)
        values[:, bs] = some
    return values, arg


def backward(
    grad: Tensor, inputs: EdgeInputs, types: EdgeTypes, arg: Tensor | None, out: Tensor | None, wants: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, None, Tensor | None]:
    """Gradients at a, b, φ (there is none) and W; None for those not wanted. ``out`` is read for a softmax only."""
    weight, work = inputs.weight, _Work(inputs, types)
    parts = [x if want else None for x, want in zip((inputs.a, inputs.b), wants, strict=False)]
    found = [None if x is None else _by_sample(weight, x.shape) for x in parts]
    d_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)) if wants[3] else None
    wide = [sum_dtype(weight, inputs.call.incidence, side) for side in ("factor", "variable")]
    for bs in work.samples:
        size = bs.stop - bs.start
        sums = [
            None if x is None else weight.new_zeros((len(x), size, x.shape[2]), dtype=dtype)
            for x, dtype in zip(parts, wide, strict=True)
        ]
        for tile in work.tiles:
            h = work.h(tile, bs)
            up = work.upstream(grad, arg, out, h, tile, bs)
            if d_weight is not None:
                for kinds, rows in tile.runs:
                    d_weight[kinds] += torch.bmm(_by_type(up, kinds, rows).transpose(1, 2), _by_type(h, kinds, rows))
            if sums == [None, None]:
                continue
            d_node = work.back(up, h, tile)
            for total, at in zip(sums, (tile.edges if inputs.b is None else tile.factor, tile.variable), strict=True):
                if total is not None:
                    add_rows(total, at, d_node.to(total.dtype))
        for x, total in zip(found, sums, strict=True):
            if x is not None and total is not None:
                x[:, bs] = total
    return found[0], found[1], None, None if d_weight is None else d_weight.to(weight.dtype)


def _by_sample(like: Tensor, shape: Sequence[int]) -> Tensor:
    """(nodes, B, n) with samples first in memory, as the caller reads it."""
    return like.new_empty((shape[1], shape[0], shape[2])).transpose(0, 1)


class _Work:
    """The tiles of a call, its samples in chunks, and buffers for one tile and one chunk."""

    def __init__(self, inputs: EdgeInputs, types: EdgeTypes) -> None:
        self.inputs, weight, call = inputs, inputs.weight, inputs.call
        kinds, width, inner = weight.shape
        rows = max(limit(weight.device) // max(width, inner), kinds * MIN_ROWS, 1)  # edges times samples
        edges = max(_EDGES, kinds * MIN_ROWS // max(inputs.batch, 1))
        self.tiles = tiles(call.incidence, types, call.towards, edges)
        largest = max((len(tile.edges) for tile in self.tiles), default=1)
        self.samples = list(cut(inputs.batch, max(rows // largest, 1)))
        rows = largest * max((bs.stop - bs.start for bs in self.samples), default=0)
        self._inner, self._outer, self._back = (weight.new_empty(rows * size) for size in (inner, width, inner))
        self._transposed = weight.transpose(1, 2)

    def h(self, tile: Tile, bs: slice) -> Tensor:
        """σ(a_c + b_i) of a tile; the next call overwrites it.  # shape: (rows, Bc, n)"""
        inputs, a = self.inputs, self.inputs.a[:, bs]
        out = _view(self._inner, len(tile.edges), bs.stop - bs.start, a.shape[2])
        if inputs.b is None:
            torch.index_select(a, 0, tile.edges, out=out)
        else:
            torch.index_select(inputs.b[:, bs], 0, tile.variable, out=out)
            if tile.factors is None:
                out.add_(a.index_select(0, tile.factor))
            else:
                out.view(-1, *a[tile.factors].shape).add_(a[tile.factors])
        return out.relu_() if inputs.call.relu else out

    def messages(self, h: Tensor, tile: Tile) -> Tensor:
        """Q h; the next call overwrites it.  # shape: (rows, Bc, m)"""
        return _products(h, self._transposed, tile, self._outer)

    def back(self, up: Tensor, h: Tensor, tile: Tile) -> Tensor:
        """The gradient at σ's argument, from that at the messages.  # shape: (rows, Bc, n)"""
        grad = _products(up, self.inputs.weight, tile, self._back)
        if self.inputs.call.relu:
            torch.ops.aten.threshold_backward.grad_input(grad, h, 0, grad_input=grad)
        return grad

    def upstream(
        self, grad: Tensor, arg: Tensor | None, out: Tensor | None, h: Tensor, tile: Tile, bs: slice
    ) -> Tensor:
        """The gradient at each message.  # shape: (D, B, m) -> (rows, Bc, m)"""
        grad, call = grad[:, bs], self.inputs.call
        if arg is not None:
            spread = _view(self._outer, len(h), h.shape[1], grad.shape[2]).zero_()
            for block in tile.blocks:
                to = block.destinations
                assert to is not None
                spread.scatter_(0, arg[:, bs].index_select(0, to), grad.index_select(0, to))
            return spread
        target = tile.destination(call.towards)
        spread = grad.index_select(0, target)
        if out is not None:  # softmax: each edge's share
            share = self.messages(h, tile).sub_(out[:, bs].index_select(0, target))
            spread.mul_(share.mul_(call.aggregation.gamma).exp_())
        return spread


def _view(buffer: Tensor, *shape: int) -> Tensor:
    return buffer[: shape[0] * shape[1] * shape[2]].view(shape)


def _products(x: Tensor, matrices: Tensor, tile: Tile, buffer: Tensor) -> Tensor:
    """Each row times the matrix of its type, into the buffer.  # shape: (rows, Bc, i), (K, i, j) -> (rows, Bc, j)"""
    out = _view(buffer, len(x), x.shape[1], matrices.shape[2])
    for kinds, rows in tile.runs:
        torch.bmm(_by_type(x, kinds, rows), matrices[kinds], out=_by_type(out, kinds, rows))
    return out


def _by_type(x: Tensor, kinds: slice, rows: slice) -> Tensor:
    """Rows of a run by type.  # shape: (rows, Bc, i) -> (types, rows of each, i)"""
    return x[rows].view(kinds.stop - kinds.start, -1, x.shape[2])
