"""Exact k nearest neighbours on the CPU by a grid of cells, in compiled loops."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.points.cells import Cells, sort_into_cells
from fgnn.runtime.jit import compiled

Array = NDArray[Any]

# Clouds with a cell of more points, or with queries more cells away, are left to a tree.
_MOST_IN_A_CELL, _FARTHEST = 256, 1e6
# Distances are compared in float32: what is nearer than the sides of the ring by this share surely is.
_SURELY = 1 - 1e-5


def search(points: Array, queries: Array, k: int, exclude: bool) -> list[tuple[Array, Array] | None]:
    """For each cloud indices and squared distances, both (M, k), ordered by (distance, index).

    None for clouds that are left to a tree.

    Args:
        points: (B, N, 3) float32, and ``queries`` (B, M, 3).
        exclude: Leave out the point with the number of the query.
    """

    def one(cloud: int) -> tuple[Array, Array] | None:
        exact = points[cloud].astype(np.float64)
        across = np.argsort(exact.min(0) - exact.max(0))  # cells lie in the plane of the two longest sides
        x, y, z = np.ascontiguousarray(points[cloud].T[across])
        cells, at = sort_into_cells(x, y, z), np.ascontiguousarray(queries[cloud])
        away = np.abs(at[:, across[:2]].astype(np.float64) - (cells.left, cells.low)).max(initial=0.0)
        if np.diff(cells.begin).max() > _MOST_IN_A_CELL or away > _FARTHEST * cells.side:
            return None
        index, distance = np.empty((len(at), k), np.int64), np.empty((len(at), k), np.float32)
        _search(cells, points[cloud][cells.order], at, across, exclude, index, distance)
        return index, distance

    threads = min(len(points), torch.get_num_threads())
    if threads == 1:
        return [one(cloud) for cloud in range(len(points))]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(len(points))))


@compiled
def _visit(xyz: Array, order: Array, first: int, end: int, p: Array, skip: int, near: Array, far: Array) -> None:
    """Put points among the nearest so far, ordered by (distance, index)."""
    k = len(far)
    for i in range(first, end):
        dx, dy, dz = p[0] - xyz[i, 0], p[1] - xyz[i, 1], p[2] - xyz[i, 2]
        distance, number = dx * dx + dy * dy + dz * dz, order[i]
        if distance > far[k - 1] or (distance == far[k - 1] and number > near[k - 1]) or number == skip:
            continue
        j = k - 1
        while j > 0 and (far[j - 1] > distance or (far[j - 1] == distance and near[j - 1] > number)):
            far[j], near[j] = far[j - 1], near[j - 1]
            j -= 1
        far[j], near[j] = distance, number


@compiled
def _search(g: Cells, xyz: Array, at: Array, across: Array, exclude: bool, index: Array, distance: Array) -> None:
    """Fill in the neighbours of each place among the points, sorted by cell; cells lie along two of the axes."""
    order, begin = g.order, g.begin
    for q in range(len(at)):
        p, near, far, skip = at[q], index[q], distance[q], q if exclude else -1
        far[:], near[:] = np.inf, len(order)
        u, v = float(p[across[0]]) - g.left, float(p[across[1]]) - g.low
        row, column = int(np.floor(u / g.side)), int(np.floor(v / g.side))
        # outside the grid, the rings around the place before the first one that meets it are empty
        ring = max(0, -row, row - g.rows + 1, -column, column - g.columns + 1)
        while True:
            top, bottom, left, right = row - ring, row + ring, column - ring, column + ring
            first, last = max(left, 0), min(right, g.columns - 1)
            for r in range(max(top, 0), min(bottom, g.rows - 1) + 1):
                start = r * g.columns
                if r in (top, bottom):
                    if first <= last:
                        _visit(xyz, order, begin[start + first], begin[start + last + 1], p, skip, near, far)
                    continue
                if left >= 0:
                    _visit(xyz, order, begin[start + left], begin[start + left + 1], p, skip, near, far)
                if right < g.columns:
                    _visit(xyz, order, begin[start + right], begin[start + right + 1], p, skip, near, far)
            gap = min(u - top * g.side, (bottom + 1) * g.side - u, v - left * g.side, (right + 1) * g.side - v)
            whole = top <= 0 and bottom >= g.rows - 1 and left <= 0 and right >= g.columns - 1
            if whole or far[-1] < gap * gap * _SURELY:
                break
            ring += 1
