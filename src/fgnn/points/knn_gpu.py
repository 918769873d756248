"""Launch the k-NN kernels: brute force for small clouds, a grid of cells for large ones."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.runtime.kernel_launch import constants, launch

_TILE, _BLOCK = 32, 32
_GRID_TILE = 16
_MOST_CELLS = 1 << 24
_MOST_AXIS = 1 << 10
# A tile that would visit more lines of cells visits all points instead.
_MOST_LINES = 1 << 12
# Tiles per launch, which bounds the memory for candidates.
_TILES = 1 << 13
# Distances must equal the CPU's bit for bit.
_EXACT = {"enable_fp_fusion": False}


def _classes(k: int, least: int) -> tuple[int, int]:
    """Classes of points in the first pass, and capacity for candidates of one query."""
    classes = max(least, 1 << (2 * k - 1).bit_length())
    return classes, max(64, 1 << (3 * k - 1).bit_length())


def by_tiles(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """Every query against every point of its cloud; (B, N, 3) and (B, M, 3)."""
    from fgnn.points import knn_kernels as kernels

    columns = points.transpose(1, 2).contiguous()
    targets = columns if queries is None else queries.transpose(1, 2).contiguous()
    batch, _, total = columns.shape
    count = targets.shape[2]
    tiles = -(-count // _TILE)
    classes, capacity = _classes(k, 128)
    keys, counts, index, distance = _buffers(points, batch * tiles * _TILE, capacity, (batch, count, k))
    options = {"K": k, "BQ": _TILE, "CAP": capacity, "SELF": not exclude, "num_warps": 4, **_EXACT}
    launch(
        kernels.nearest_brute, (tiles, batch), [columns, targets, keys, counts, index, distance, total, count],
        constants(BC=classes, BP=_BLOCK, **options),
    )  # fmt: skip
    launch(
        kernels.crowded, (tiles, batch), [columns, targets, None, None, counts, index, distance, total, count],
        constants(BP=64, GRID=False, **options),
    )  # fmt: skip
    return index, distance


def by_grid(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """One large cloud (N, 3): points are sorted by cell, and each tile of queries searches the cells around it."""
    from fgnn.points import knn_kernels as kernels

    origin, side, shape, cell = _cells(points, k)
    gx, gy, gz = shape
    flat = (cell[:, 2] * gy + cell[:, 1]) * gx + cell[:, 0]
    order = torch.argsort(flat)
    starts = torch.zeros(gx * gy * gz + 1, dtype=torch.int32, device=points.device)
    starts[1:] = torch.bincount(flat, minlength=gx * gy * gz).cumsum(0)
    columns = points[order].t().contiguous()
    targets = points if queries is None else queries
    target_cell = cell if queries is None else _cell_of(targets, origin, side, shape)
    path = _interleave(target_cell)
    path, rows = path.sort()
    tiles = _tiles(path >> 3)  # blocks of two by two by two cells
    targets, target_cell = targets[rows], target_cell[rows]
    lines = torch.cat([targets.t(), ((targets - origin) / side).t()]).contiguous()  # shape: (6, M)
    classes, capacity = _classes(k, 32)
    step = min(_TILES, tiles.numel() - 1)
    keys, counts, index, distance = _buffers(points, step * _GRID_TILE, capacity, (targets.shape[0], k))
    options = {"K": k, "BQ": _GRID_TILE, "CAP": capacity, "SELF": not exclude, **_EXACT}
    names, whole = order.to(torch.int32), points.t().contiguous()
    target_cell = target_cell.t().to(torch.int32).contiguous()
    for begin in range(0, tiles.numel() - 1, step):
        part = tiles[begin : begin + step + 1].contiguous()
        programs = (part.numel() - 1, 1)
        kernels.nearest_grid[programs](
            columns, names, lines, target_cell, rows, part, starts, keys, counts, index, distance, side.reshape(1),
            points.shape[0], targets.shape[0], gx, gy, gz, BP=classes, MOST=_MOST_LINES, num_warps=1, **options,
        )  # fmt: skip
        kernels.crowded[programs](
            whole, lines, rows, part, counts, index, distance, points.shape[0], targets.shape[0],
            BP=64, GRID=True, num_warps=4, **options,
        )  # fmt: skip
    return index, distance


def _tiles(block: Tensor) -> Tensor:
    """Cut queries, sorted by block, into tiles within one block; returns where each begins and the last ends."""
    _, size = torch.unique_consecutive(block, return_counts=True)
    count = (size + _GRID_TILE - 1) // _GRID_TILE
    first = torch.repeat_interleave(size.cumsum(0) - size, count)
    number = torch.arange(first.numel(), device=block.device)
    number = number - torch.repeat_interleave(count.cumsum(0) - count, count)  # of the tile in its block
    return torch.cat([first + number * _GRID_TILE, size.new_tensor([block.numel()])]).to(torch.int32)


def _buffers(points: Tensor, lines: int, capacity: int, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Buffers for keys, counters and the result."""
    keys = points.new_empty((lines, capacity), dtype=torch.int64)
    counts = points.new_empty((lines, 2), dtype=torch.int32)
    return keys, counts, points.new_empty(shape, dtype=torch.int64), points.new_empty(shape)


def _cells(points: Tensor, k: int) -> tuple[Tensor, Tensor, tuple[int, int, int], Tensor]:
    """Origin, side and shape of the grid, and the cell of each point: about k/2 points per occupied cell."""
    origin = points.amin(0)
    extent = (points.amax(0) - origin).double().cpu()
    longest = max(float(extent.max()), 1e-30)
    extent = extent.clamp_min(longest * 1e-6)
    wanted = max(k / 2, 4.0)
    x, y, z = extent.sort(descending=True).values.tolist()
    each = wanted / points.shape[0]
    side = max((x * y * z * each) ** (1 / 3), (x * y * each) ** 0.5, x * each)  # a solid, a surface or a line
    least = _least_side(extent.tolist(), longest)
    for attempt in range(4):
        side = max(side, least)
        shape = _shape(extent.tolist(), side)
        width = torch.tensor(side, device=points.device, dtype=points.dtype)
        cell = _cell_of(points, origin, width, shape)
        flat = (cell[:, 2] * shape[1] + cell[:, 1]) * shape[0] + cell[:, 0]
        filled = points.shape[0] / max(int((torch.bincount(flat) > 0).sum()), 1)
        if attempt == 3 or 0.5 * wanted <= filled <= 2 * wanted or (side == least and filled > wanted):
            break
        # scans lie on surfaces: points per cell grow with the square of its side
        side *= (wanted / filled) ** 0.5
    return origin, width, shape, cell


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
    """The cell of each point, clamped to the grid.  # shape: (N, 3) int64"""
    most = torch.tensor([s - 1 for s in shape], device=points.device)
    return torch.minimum(((points - origin) / side).floor().clamp_min(0).long(), most)


def _interleave(cell: Tensor) -> Tensor:
    """Morton codes: interleave the bits of x, y and z.  # shape: (N,)"""
    # spread ten bits three apart
    for shift, mask in ((16, 0x30000FF), (8, 0x300F00F), (4, 0x30C30C3), (2, 0x9249249)):
        cell = (cell | (cell << shift)) & mask
    return cell[:, 0] | (cell[:, 1] << 1) | (cell[:, 2] << 2)
