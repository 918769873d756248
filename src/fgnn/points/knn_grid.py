"""Launching the k-NN kernels: all points for small clouds, a grid of cells for large ones."""

from __future__ import annotations

import torch
from torch import Tensor

_TILE = 32
_GRID_TILE = 16
_MOST_CELLS = 1 << 24
_MOST_AXIS = 1 << 10
# Lines of cells one tile goes through before it takes all points instead.
_MOST_LINES = 1 << 12
# Distances are to be the CPU's, bit for bit.
_EXACT = {"enable_fp_fusion": False}


def _blocks(k: int) -> tuple[int, int]:
    """Classes of points in the first pass, and room for candidates of one query."""
    classes = max(64, 1 << (2 * k - 1).bit_length())
    return classes, 2 * classes if k > 32 else 64


def by_tiles(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """Every query against every point of its cloud; (B, N, 3) and (B, M, 3)."""
    from fgnn.points import knn_triton as kernels

    columns = points.transpose(1, 2).contiguous()
    asked = columns if queries is None else queries.transpose(1, 2).contiguous()
    batch, _, total = columns.shape
    count = asked.shape[2]
    classes, room = _blocks(k)
    keys = points.new_empty((batch * count, room), dtype=torch.int64)
    counts = points.new_zeros((batch * count, 2), dtype=torch.int32)
    kernels.nearest_brute[(-(-count // _TILE), batch)](
        columns, asked, keys, counts, total, count, K=k, BQ=_TILE, BP=classes, CAP=room, SELF=not exclude,
        num_warps=4, **_EXACT,
    )  # fmt: skip
    own = torch.arange(count, device=points.device, dtype=torch.int32)
    return _finish(columns, asked, own, keys, counts, k, classes, room, exclude, (batch, count))


def by_grid(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """One large cloud (N, 3): points sorted by cell, each tile of queries looks into the cells around it."""
    from fgnn.points import knn_triton as kernels

    origin, side, shape = _cells(points, k)
    cell = _cell_of(points, origin, side, shape)
    gx, gy, gz = shape
    flat = (cell[:, 2] * gy + cell[:, 1]) * gx + cell[:, 0]
    order = torch.argsort(flat)
    starts = torch.zeros(gx * gy * gz + 1, dtype=torch.int32, device=points.device)
    starts[1:] = torch.bincount(flat, minlength=gx * gy * gz).cumsum(0)
    columns = points[order].t().contiguous()
    asked = points if queries is None else queries
    where = cell if queries is None else _cell_of(asked, origin, side, shape)
    path = torch.argsort(_interleave(where))
    asked, where = asked[path], where[path]
    lines = torch.cat([asked.t(), ((asked - origin) / side).t()]).contiguous()  # shape: (6, M)
    count = asked.shape[0]
    classes, room = _blocks(k)
    keys = points.new_empty((count, room), dtype=torch.int64)
    counts = points.new_zeros((count, 2), dtype=torch.int32)
    own = path.to(torch.int32)
    kernels.nearest_grid[(-(-count // _GRID_TILE),)](
        columns, order.to(torch.int32), lines, where.t().to(torch.int32).contiguous(), own, starts, keys, counts,
        side.reshape(1), points.shape[0], count, gx, gy, gz, K=k, BQ=_GRID_TILE, BP=classes, CAP=room,
        SELF=not exclude, MOST=_MOST_LINES, num_warps=2, **_EXACT,
    )  # fmt: skip
    whole = points.t().contiguous()
    index, distance = _finish(whole, lines[:3], own, keys, counts, k, classes, room, exclude, (1, count))
    back = torch.empty_like(path)
    back[path] = torch.arange(count, device=points.device)
    return index[0][back], distance[0][back]


def _finish(
    columns: Tensor,
    asked: Tensor,
    own: Tensor,
    keys: Tensor,
    counts: Tensor,
    k: int,
    classes: int,
    room: int,
    exclude: bool,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The first k of the candidates, and the slow way for queries with too many."""
    from fgnn.points import knn_triton as kernels

    batch, count = shape
    index = keys.new_empty((batch, count, k))
    distance = columns.new_empty((batch, count, k))
    lines = max(512 // room, 1)
    kernels.select[(-(-keys.shape[0] // lines),)](
        keys, counts, index, distance, keys.shape[0], K=k, BL=lines, CAP=room, num_warps=4
    )
    kernels.crowded[(count, batch)](
        columns, asked, own, counts, index, distance, columns.shape[-1], count, K=k, BP=256, CAP=room,
        SELF=not exclude, num_warps=4, **_EXACT,
    )  # fmt: skip
    return index, distance


def _cells(points: Tensor, k: int) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
    """A corner, a side and the number of cells along each axis: about k/2 points in a cell that has any."""
    origin = points.amin(0)
    extent = (points.amax(0) - origin).double().cpu()
    longest = max(float(extent.max()), 1e-30)
    extent = extent.clamp_min(longest * 1e-6)
    wanted = max(k / 2, 4.0)
    side = max((float(extent.prod()) * wanted / points.shape[0]) ** (1 / 3), longest / (_MOST_AXIS - 2))
    for _ in range(4):
        side = max(side, _least_side(extent.tolist(), longest))
        shape = _shape(extent.tolist(), side)
        cell = _cell_of(points, origin, torch.tensor(side, device=points.device, dtype=points.dtype), shape)
        flat = (cell[:, 2] * shape[1] + cell[:, 1]) * shape[0] + cell[:, 0]
        filled = points.shape[0] / max(int(torch.unique(flat).numel()), 1)
        if 0.5 * wanted <= filled <= 2 * wanted:
            break
        # scans lie on surfaces: what is in a cell grows with the square of its side
        side *= (wanted / filled) ** 0.5
    side = max(side, _least_side(extent.tolist(), longest))
    return origin, torch.tensor(side, device=points.device, dtype=points.dtype), _shape(extent.tolist(), side)


def _least_side(extent: list[float], longest: float) -> float:
    """The smallest side that keeps the number of cells within bounds."""
    side = longest / (_MOST_AXIS - 2)
    while True:
        x, y, z = _shape(extent, side)
        if x * y * z <= _MOST_CELLS:
            return side
        side *= 1.1


def _shape(extent: list[float], side: float) -> tuple[int, int, int]:
    x, y, z = (int(length / side) + 1 for length in extent)
    return x, y, z


def _cell_of(points: Tensor, origin: Tensor, side: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The cell of each point, those outside in the nearest.  # shape: (N, 3) int64"""
    most = torch.tensor([s - 1 for s in shape], device=points.device)
    return torch.minimum(((points - origin) / side).floor().clamp_min(0).long(), most)


def _interleave(cell: Tensor) -> Tensor:
    """Morton's order: the bits of x, y and z in turn.  # shape: (N,)"""
    code = torch.zeros_like(cell[:, 0])
    for bit in range(10):
        for axis in range(3):
            code |= ((cell[:, axis] >> bit) & 1) << (3 * bit + axis)
    return code
