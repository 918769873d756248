"""Heights above the ground around a point: context far beyond its neighbours.

A raster holds the lowest point of every cell; a morphological opening removes whatever is narrower than its window.
The height of a point above the opened raster is near 0 on level ground for every window; on a roof it jumps once the
window is wider than the house. On a slope it grows with the window, so the openings are repeated on the raster minus a
smooth surface through the widest opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Most cells per side of a raster, which bounds the cost of a stray point far away.
_MOST_CELLS = 512
# Points processed at a time, so that their rows stay in a core's cache.
_BLOCK = 4096

# Radii of the openings that find what stands on the ground, in the units of the coordinates.
_RADII = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 14.0, 18.0)


def height_columns(windows: Sequence[float], slopes: Sequence[float] = ()) -> int:
    """Number of columns of `heights_above`."""
    return 2 * len(windows) + 3 + len(slopes) if windows else 0


def heights_above(
    xyz: NDArray[np.float32], windows: Sequence[float], slopes: Sequence[float] = (), cell: float = 1.0
) -> NDArray[np.float32]:
    """Heights of points above opened rasters of the lowest points, and related columns.

    Args:
        xyz: Points of one tile, (P, 3), finite.
        windows: Widths of the openings in the units of the coordinates, ascending.
        slopes: One surface each, without what rises faster, as in the simple morphological filter.
        cell: Side of a cell; larger where there is less than one point per cell.

    Returns:
        (P, 2 len(windows) + 3 + len(slopes)), arcsinh of: the height above each opening; above each opening of the
        levelled raster; above the surface for each slope; above a closing with the first window (strongly negative for
        points far below their surroundings); the slope of the smooth surface; the typical spacing of the points.
    """
    if not len(xyz):
        return np.zeros((0, height_columns(windows, slopes)), np.float32)
    return Relief.of(xyz, windows, slopes, cell).heights(xyz)


@dataclass(frozen=True, eq=False)
class Relief:
    """The surfaces of one tile above which heights are measured."""

    low: tuple[np.float32, np.float32]
    step: float  # side of a cell
    spacing: float  # typical distance between points
    surfaces: NDArray[np.float32]  # shape: (rows, columns, S), the slope last

    @staticmethod
    def of(
        xyz: NDArray[np.float32],
        windows: Sequence[float],
        slopes: Sequence[float],
        cell: float = 1.0,
        pits: float | None = None,
    ) -> Relief:
        """The surfaces of a tile of at least one point; see `heights_above`.

        Args:
            pits: Fill cells that are deeper than this below all but one of their neighbours: stray low points.
        """
        from scipy.ndimage import gaussian_filter

        x, y, z = np.ascontiguousarray(xyz.T)  # min and max along strided columns are slow
        low = x.min(), y.min()
        extent = x.max() - low[0], y.max() - low[1]
        spacing = float(np.sqrt(max(extent[0], cell) * max(extent[1], cell) / len(xyz)))
        step = max(cell, spacing, float(max(extent)) / _MOST_CELLS)
        row, column = ((values - least) / np.float32(step) for values, least in ((x, low[0]), (y, low[1])))
        raster = lowest_raster(row, column, z)
        raster = fill_holes(raster, np.isinf(raster))
        if pits is not None:
            raster = fill_pits(raster, pits)

        def openings(surface: NDArray[np.float32]) -> list[NDArray[np.float32]]:
            """The surface opened with each window in turn."""
            surfaces = []
            for window in windows:
                surface = _opened(surface, _odd(window / step))
                surfaces.append(surface)
            return surfaces

        opened = openings(raster)
        smooth = gaussian_filter(opened[-1], sigma=max(1.0, windows[-1] / (4 * step)), mode="nearest")
        levelled = [surface + smooth for surface in openings(raster - smooth)]
        closed = -_opened(-opened[0], _odd(2 * windows[0] / step))
        steep = np.hypot(*np.gradient(smooth)) / step if min(raster.shape) > 1 else np.zeros(raster.shape, np.float32)
        bare = [_bare(raster, slope, step) for slope in slopes]
        surfaces = np.stack([*opened, *levelled, *bare, closed, steep.astype(np.float32)], axis=2)
        return Relief(low, step, spacing, surfaces)

    def heights(self, xyz: NDArray[np.float32], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The columns (P, S + 1) of points of the tile, written to ``out`` if given."""
        columns = np.empty((len(xyz), self.surfaces.shape[2] + 1), np.float32) if out is None else out
        columns[:, -1] = np.arcsinh(np.float32(self.spacing))
        for start in range(0, len(xyz), _BLOCK):
            x, y, z = np.ascontiguousarray(xyz[start : start + _BLOCK].T)
            row, column = (
                (values - least) / np.float32(self.step) for values, least in zip((x, y), self.low, strict=True)
            )
            values = _interpolate(self.surfaces, row, column)
            slope = values[:, -1].copy()
            # subtract contiguously and restore the slope: broadcasting over short rows is slow
            np.subtract(np.repeat(z, values.shape[1]).reshape(values.shape), values, out=values)
            values[:, -1] = slope
            columns[start : start + _BLOCK, :-1] = np.arcsinh(values, out=values)
        return columns


def lowest_raster(row: NDArray[Any], column: NDArray[Any], z: NDArray[Any]) -> NDArray[Any]:
    """The lowest z in each cell, infinite in empty cells; ``row`` and ``column`` are in cells, from 0."""
    shape = int(row.max()) + 1, int(column.max()) + 1
    lowest = np.full(shape[0] * shape[1], np.inf, z.dtype)
    np.minimum.at(lowest, row.astype(np.int64) * shape[1] + column.astype(np.int64), z)
    return lowest.reshape(shape)


def fill_holes(values: NDArray[Any], hole: NDArray[np.bool_], passes: int = 0) -> NDArray[Any]:
    """Give holes the value of the nearest cell and smooth them: a cheap substitute for solving a membrane."""
    from scipy.ndimage import distance_transform_edt, uniform_filter

    if not hole.any() or hole.all():
        return values
    near = distance_transform_edt(hole, return_distances=False, return_indices=True)
    filled = values[tuple(near)]
    for _ in range(passes):
        filled = np.where(hole, uniform_filter(filled, 5, mode="nearest"), filled)
    return np.asarray(filled)


def fill_pits(raster: NDArray[Any], depth: float) -> NDArray[Any]:
    """Raise cells that lie more than ``depth`` below the third lowest of the nine around them to that value."""
    from scipy.ndimage import rank_filter

    third = rank_filter(raster, rank=2, size=3, mode="nearest")
    return np.where(third - raster > depth, third, raster)


def _interpolate(
    surfaces: NDArray[np.float32], row: NDArray[np.float32], column: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Values (P, S) of surfaces (rows, columns, S) at positions in cells, bilinear between cell centres."""
    from scipy.sparse import csr_array

    rows, width, depth = surfaces.shape

    def around(position: NDArray[np.float32], count: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Index and weight of the two cell centres around each position along one axis."""
        position = np.clip(position - np.float32(0.5), 0, np.float32(count - 1))
        low = position.astype(np.int32)
        share = position - low.astype(np.float32)
        return [(low, 1 - share), (np.minimum(low + 1, np.int32(count - 1)), share)]

    cell, weight = np.empty((len(row), 4), np.int32), np.empty((len(row), 4), np.float32)
    columns = around(column, width)
    for n, (i, a) in enumerate(around(row, rows)):
        for m, (j, b) in enumerate(columns):
            cell[:, 2 * n + m] = i * np.int32(width) + j
            weight[:, 2 * n + m] = a * b
    # a sparse matrix with four entries per row: one pass, and a fixed order of summation
    ends = np.arange(0, 4 * len(row) + 1, 4, dtype=np.int32)
    mixed = csr_array((weight.reshape(-1), cell.reshape(-1), ends), shape=(len(row), rows * width))
    return np.asarray(mixed @ surfaces.reshape(rows * width, depth))


def _opened(surface: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Grey opening with a square of ``size`` cells (odd) per side; cells outside the raster do not count."""
    return -_eroded(-_eroded(surface, size), size)


def _eroded(surface: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The lowest value in the square of ``size`` cells around each cell, by doubling the reach."""
    for _ in range(2):  # along one axis, then, transposed, along the other
        count = surface.shape[0]
        half = min(size // 2, count - 1)
        wide = np.full((count + 2 * half, surface.shape[1]), np.inf, np.float32)
        wide[half : half + count] = surface
        reach, whole = 1, 2 * half + 1
        while 2 * reach <= whole:
            wide = np.minimum(wide[:-reach], wide[reach:])
            reach *= 2
        surface = np.minimum(wide[:count], wide[whole - reach : whole - reach + count]).T
    return surface


def _bare(raster: NDArray[np.float32], slope: float, step: float) -> NDArray[np.float32]:
    """The raster with holes, filled, where an opening lowers it by more than ``slope`` times the radius."""
    standing = np.zeros(raster.shape, np.bool_)
    surface = raster
    for radius in _RADII:
        opened = _opened(surface, _odd(2 * radius / step + 1))
        standing |= surface - opened > slope * radius
        surface = opened
    return surface if standing.all() else fill_holes(raster, standing, passes=4)


def _odd(cells: float) -> int:
    """The nearest odd number of cells, at least three."""
    return max(3, 2 * round((cells - 1) / 2) + 1)
