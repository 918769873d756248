"""Heights above the surfaces that the lowest points suggest: context far beyond a point's neighbours.

A raster holds the lowest point of every cell; a morphological opening over a window removes whatever stands on it and
is narrower than the window. The height of a point above the opened raster is near 0 on level ground for windows of
every width; on a roof it jumps where the window outgrows the house. On a slope it grows with the window, so the
openings are done once more on what is left when a smooth surface through the widest opening is taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Rasters have at most this many cells a side: a tile with one stray point far away must not ask for more.
_MOST_CELLS = 512
# Points whose heights are found at a time: what is held for them stays in a core's cache.
_BLOCK = 4096

# Radii of the openings that tell what stands on the ground, in the units of the coordinates.
_RADII = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 14.0, 18.0)


def height_columns(windows: Sequence[float], slopes: Sequence[float] = ()) -> int:
    """How many columns `heights_above` gives."""
    return 2 * len(windows) + 3 + len(slopes) if windows else 0


def heights_above(
    xyz: NDArray[np.float32], windows: Sequence[float], slopes: Sequence[float] = (), cell: float = 1.0
) -> NDArray[np.float32]:
    """Heights of points above opened rasters of their lowest, and what a judge of heights must know besides.

    Args:
        xyz: Points of one tile, (P, 3), finite.
        windows: Widths of the openings, in the units of the coordinates, the narrowest first.
        slopes: For each a surface is made without what rises faster, as the simple morphological filter makes it.
        cell: Side of a cell; larger where the points are sparser than one a cell.

    Returns:
        (P, 2 len(windows) + 3 + len(slopes)), arcsinh of: the height above each opening; above each opening of the
        levelled raster; above the surface for each slope; above a closing with the first window (points far below
        their surroundings are strongly negative); the slope of the smooth surface; the typical spacing of the points.
    """
    if not len(xyz):
        return np.zeros((0, height_columns(windows, slopes)), np.float32)
    return Relief.of(xyz, windows, slopes, cell).heights(xyz)


@dataclass(frozen=True, eq=False)
class Relief:
    """The surfaces of one tile that heights are measured from."""

    low: tuple[np.float32, np.float32]
    step: float  # side of a cell
    spacing: float
    surfaces: NDArray[np.float32]  # shape: (rows, columns, S), the slope last

    @staticmethod
    def of(xyz: NDArray[np.float32], windows: Sequence[float], slopes: Sequence[float], cell: float = 1.0) -> Relief:
        """Surfaces from the points of a tile, of which there is one at least; see `heights_above`."""
        from scipy.ndimage import distance_transform_edt, gaussian_filter

        x, y, z = np.ascontiguousarray(xyz.T)  # whole columns: extremes along rows of three are slow to find
        low = x.min(), y.min()
        extent = x.max() - low[0], y.max() - low[1]
        spacing = float(np.sqrt(max(extent[0], cell) * max(extent[1], cell) / len(xyz)))
        step = max(cell, spacing, float(max(extent)) / _MOST_CELLS)
        row, column = ((values - least) / np.float32(step) for values, least in ((x, low[0]), (y, low[1])))
        shape = int(np.floor(row.max())) + 1, int(np.floor(column.max())) + 1
        lowest = np.full(shape[0] * shape[1], np.inf, np.float32)
        np.minimum.at(lowest, row.astype(np.int64) * shape[1] + column.astype(np.int64), z)
        raster = lowest.reshape(shape)
        empty = np.isinf(raster)
        if empty.any():  # the nearest cell that has a point
            near = distance_transform_edt(empty, return_distances=False, return_indices=True)
            raster = raster[tuple(near)]

        def openings(start: NDArray[np.float32]) -> list[NDArray[np.float32]]:
            made = [start]
            for window in windows:
                made.append(_opened(made[-1], _odd(window / step)))
            return made[1:]

        opened = openings(raster)
        smooth = gaussian_filter(opened[-1], sigma=max(1.0, windows[-1] / (4 * step)), mode="nearest")
        levelled = [surface + smooth for surface in openings(raster - smooth)]
        closed = -_opened(-opened[0], _odd(2 * windows[0] / step))
        steep = np.hypot(*np.gradient(smooth)) / step if min(shape) > 1 else np.zeros(shape, np.float32)
        bare = [_bare(raster, slope, step) for slope in slopes]
        surfaces = np.stack([*opened, *levelled, *bare, closed, steep.astype(np.float32)], axis=2)
        return Relief(low, step, spacing, surfaces)

    def heights(self, xyz: NDArray[np.float32], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The columns (P, S + 1) of points within the tile, into ``out`` where it is given."""
        columns = np.empty((len(xyz), self.surfaces.shape[2] + 1), np.float32) if out is None else out
        columns[:, -1] = np.arcsinh(np.float32(self.spacing))
        for start in range(0, len(xyz), _BLOCK):
            x, y, z = np.ascontiguousarray(xyz[start : start + _BLOCK].T)
            row, column = (
                (values - least) / np.float32(self.step) for values, least in zip((x, y), self.low, strict=True)
            )
            found = _between_cells(self.surfaces, row, column)
            sloping = found[:, -1].copy()
            # whole rows at once, the slope too, which is put back: rows of a few numbers each are slow
            np.subtract(np.repeat(z, found.shape[1]).reshape(found.shape), found, out=found)
            found[:, -1] = sloping
            columns[start : start + _BLOCK, :-1] = np.arcsinh(found, out=found)
        return columns


def _between_cells(
    surfaces: NDArray[np.float32], row: NDArray[np.float32], column: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Values (P, S) at places in cells, linear between the middles of cells; surfaces (rows, columns, S)."""
    from scipy.sparse import csr_array

    rows, width, depth = surfaces.shape

    def around(place: NDArray[np.float32], count: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        place = np.clip(place - np.float32(0.5), 0, np.float32(count - 1))
        low = place.astype(np.int32)
        share = place - low.astype(np.float32)
        return [(low, 1 - share), (np.minimum(low + 1, np.int32(count - 1)), share)]

    cell, weight = np.empty((len(row), 4), np.int32), np.empty((len(row), 4), np.float32)
    beside = around(column, width)
    for n, (i, a) in enumerate(around(row, rows)):
        for m, (j, b) in enumerate(beside):
            cell[:, 2 * n + m] = i * np.int32(width) + j
            weight[:, 2 * n + m] = a * b
    # a sparse matrix with four entries a row: its product is one pass, and sums in their order
    ends = np.arange(0, 4 * len(row) + 1, 4, dtype=np.int32)
    mixed = csr_array((weight.reshape(-1), cell.reshape(-1), ends), shape=(len(row), rows * width))
    return np.asarray(mixed @ surfaces.reshape(rows * width, depth))


def _opened(surface: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The grey opening with a square of an odd number of cells a side; at the edge only the cells there are count."""
    low = _lowest_near(surface, size)
    return -_lowest_near(-low, size)


def _lowest_near(surface: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The lowest value in the square of ``size`` cells around each cell, in steps that double the reach."""
    for _ in range(2):  # along one axis, then, turned, along the other
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
    """The raster without the cells that openings lower by more than ``slope`` times their radius, filled in."""
    from scipy.ndimage import distance_transform_edt, uniform_filter

    standing = np.zeros(raster.shape, np.bool_)
    last = raster
    for radius in _RADII:
        opened = _opened(last, _odd(2 * radius / step + 1))
        standing |= last - opened > slope * radius
        last = opened
    if not standing.any() or standing.all():
        return last if standing.all() else raster
    near = distance_transform_edt(standing, return_distances=False, return_indices=True)
    filled = raster[tuple(near)]
    for _ in range(4):
        filled = np.where(standing, uniform_filter(filled, 5, mode="nearest"), filled)
    return np.asarray(filled)


def _odd(cells: float) -> int:
    """A window of an odd number of cells, three at least."""
    return max(3, 2 * round((cells - 1) / 2) + 1)
