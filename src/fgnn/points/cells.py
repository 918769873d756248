"""Nearest points by a grid of square cells in the plane, in compiled loops.

In a scan of one point per voxel every cell has a few points: finding neighbours then takes a look at the cells around.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

Array = NDArray[Any]

# Points in a cell on average.
_PER_CELL = 2.0
# Added to squared distances in the plane, m², and to distances in space, m.
_SOFTEN, _NEAR = 0.25, 1e-3
# Keeps planes through points on a line from tilting.
_RIDGE = 0.05


class Cells(NamedTuple):
    """Points sorted by cell, row by row."""

    x: Array  # shape: (N,), and so y and z: the coordinates in this order
    y: Array
    z: Array
    order: Array  # shape: (N,), the number of each point as it was given
    begin: Array  # shape: (rows * columns + 1,), where the points of each cell begin
    rows: int
    columns: int
    left: float  # lowest x and y
    low: float
    side: float  # of a cell


def sort_into_cells(x: Array, y: Array, z: Array) -> Cells:
    """Sort points, at least one."""
    left, low = float(x.min()), float(y.min())
    width, depth = float(x.max()) - left, float(y.max()) - low
    side = max(float(np.sqrt(width * depth * _PER_CELL / len(x))), max(width, depth) * _PER_CELL / len(x), 1e-6)
    rows, columns = int(width / side) + 1, int(depth / side) + 1
    order, begin = _order(x, y, left, low, side, rows, columns)
    return Cells(x[order], y[order], z[order], order, begin, rows, columns, left, low, side)


@compiled
def _order(x: Array, y: Array, left: float, low: float, side: float, rows: int, columns: int) -> tuple[Array, Array]:
    """The points by cell, and where those of each cell begin."""
    cell = np.empty(len(x), np.int64)
    begin = np.zeros(rows * columns + 1, np.int64)
    for i in range(len(x)):
        cell[i] = int((x[i] - left) / side) * columns + int((y[i] - low) / side)
        begin[cell[i] + 1] += 1
    for c in range(rows * columns):
        begin[c + 1] += begin[c]
    free, order = begin.copy(), np.empty(len(x), np.int64)
    for i in range(len(x)):
        order[free[cell[i]]] = i
        free[cell[i]] += 1
    return order, begin


@compiled
def _visit(g: Cells, first: int, last: int, p: tuple[float, float, float], up: float, near: Array, far: Array) -> None:
    """Put points of a run of cells among the nearest found so far, at squared distances ``far``, ascending."""
    k = len(far)
    for i in range(g.begin[first], g.begin[last + 1]):
        dx, dy, dz = g.x[i] - p[0], g.y[i] - p[1], g.z[i] - p[2]
        distance = dx * dx + dy * dy + up * dz * dz
        if distance >= far[k - 1]:
            continue
        j = k - 1
        while j > 0 and far[j - 1] > distance:
            far[j], near[j] = far[j - 1], near[j - 1]
            j -= 1
        far[j], near[j] = distance, i


@compiled
def _nearest(g: Cells, p: tuple[float, float, float], up: float, near: Array, far: Array) -> None:
    """The points nearest to p, as many as ``near`` and ``far`` take; heights count ``up`` times."""
    far[:] = np.inf
    row, column = int(np.floor((p[0] - g.left) / g.side)), int(np.floor((p[1] - g.low) / g.side))
    # outside the grid, the rings around the place before the first one that meets it are empty
    ring = max(0, -row, row - g.rows + 1, -column, column - g.columns + 1)
    while True:
        top, bottom, first, last = row - ring, row + ring, max(column - ring, 0), min(column + ring, g.columns - 1)
        for r in range(max(top, 0), min(bottom, g.rows - 1) + 1):
            if r in (top, bottom):
                if first <= last:
                    _visit(g, r * g.columns + first, r * g.columns + last, p, up, near, far)
                continue
            if column - ring >= 0:
                _visit(g, r * g.columns + first, r * g.columns + first, p, up, near, far)
            if column + ring < g.columns:
                _visit(g, r * g.columns + last, r * g.columns + last, p, up, near, far)
        # beyond the ring everything is at least as far as its nearest side
        dx, dy = p[0] - g.left, p[1] - g.low
        gap = min(dx - top * g.side, (bottom + 1) * g.side - dx)
        gap = min(gap, dy - (column - ring) * g.side, (column + ring + 1) * g.side - dy)
        inside = top <= 0 and bottom >= g.rows - 1 and column - ring <= 0 and column + ring >= g.columns - 1
        if inside or far[-1] <= gap * gap:
            return
        ring += 1


@compiled
def nearest_values(g: Cells, values: Array, x: Array, y: Array, z: Array, k: int) -> Array:
    """The mean of the values of the k nearest points, weighted by inverse distance.  # shape: (N, C) -> (Q, C)"""
    out = np.zeros((len(x), values.shape[1]), np.float32)
    near, far, weight = np.zeros(k, np.int64), np.empty(k), np.empty(k)
    for q in range(len(x)):
        _nearest(g, (x[q], y[q], z[q]), 1.0, near, far)
        total = 0.0
        for j in range(k):
            weight[j] = 1 / (np.sqrt(far[j]) + _NEAR)
            total += weight[j]
        for j in range(k):
            row, share = g.order[near[j]], np.float32(weight[j] / total)
            for c in range(values.shape[1]):
                out[q, c] += share * values[row, c]
    return out


@compiled
def over_planes(g: Cells, x: Array, y: Array, z: Array, own: Array, k: int) -> tuple[Array, Array]:
    """Height of each place over the plane through the k nearest points in x and y, and the slope of that plane.

    Args:
        own: The number of the point that each place is, which does not count, or -1.
    """
    height, slope = np.zeros(len(x)), np.zeros(len(x))
    near, far, weight = np.zeros(k, np.int64), np.empty(k), np.empty(k)
    for q in range(len(x)):
        _nearest(g, (x[q], y[q], z[q]), 0.0, near, far)
        total = mx = my = mz = 0.0
        for j in range(k):
            i = near[j]
            weight[j] = 0.0 if g.order[i] == own[q] else 1 / (far[j] + _SOFTEN)
            total += weight[j]
            mx, my, mz = mx + weight[j] * g.x[i], my + weight[j] * g.y[i], mz + weight[j] * g.z[i]
        mx, my, mz = mx / total, my / total, mz / total
        xx = xy = yy = xz = yz = 0.0
        for j in range(k):
            i, w = near[j], weight[j] / total
            dx, dy, dz = g.x[i] - mx, g.y[i] - my, g.z[i] - mz
            xx, xy, yy, xz, yz = (
                xx + w * dx * dx,
                xy + w * dx * dy,
                yy + w * dy * dy,
                xz + w * dx * dz,
                yz + w * dy * dz,
            )
        ridge = _RIDGE * (xx + yy) + 1e-3
        xx, yy = xx + ridge, yy + ridge
        determinant = xx * yy - xy * xy
        a, b = (yy * xz - xy * yz) / determinant, (xx * yz - xy * xz) / determinant
        height[q], slope[q] = z[q] - mz + a * (mx - x[q]) + b * (my - y[q]), np.sqrt(a * a + b * b)
    return height, slope
