"""Heights above the surfaces that the lowest points suggest: context far beyond a point's neighbours.

A raster holds the lowest point of every cell; a morphological opening over a window removes whatever stands on it and
is narrower than the window. The height of a point above the opened raster is near 0 on level ground for windows of
every width; on a roof it jumps where the window outgrows the house. On a slope it grows with the window, so the
openings are done once more on what is left when a smooth surface through the widest opening is taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Rasters have at most this many cells a side: a tile with one stray point far away must not ask for more.
_MOST_CELLS = 512


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
    from scipy.ndimage import distance_transform_edt, gaussian_filter, grey_closing, grey_opening

    if not len(xyz):
        return np.zeros((0, height_columns(windows)), np.float32)
    low, extent = xyz[:, :2].min(0), np.ptp(xyz[:, :2], axis=0)
    spacing = float(np.sqrt(max(extent[0], cell) * max(extent[1], cell) / len(xyz)))
    step = max(cell, spacing, float(extent.max()) / _MOST_CELLS)
    at = (xyz[:, :2] - low) / np.float32(step)  # shape: (P, 2), in cells
    shape = tuple(int(n) + 1 for n in np.floor(at.max(0)))
    index = np.minimum(at.astype(np.int64), np.array(shape) - 1)
    lowest = np.full(shape[0] * shape[1], np.inf, np.float32)
    np.minimum.at(lowest, index[:, 0] * shape[1] + index[:, 1], xyz[:, 2])
    raster = lowest.reshape(shape)
    empty = np.isinf(raster)
    if empty.any():  # the nearest cell that has a point
        near = distance_transform_edt(empty, return_distances=False, return_indices=True)
        raster = raster[tuple(near)]

    def openings(start: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        made = [start]
        for window in windows:
            made.append(grey_opening(made[-1], size=_odd(window / step), mode="nearest"))
        return made[1:]

    opened = openings(raster)
    smooth = gaussian_filter(opened[-1], sigma=max(1.0, windows[-1] / (4 * step)), mode="nearest")
    levelled = [surface + smooth for surface in openings(raster - smooth)]
    closed = grey_closing(opened[0], size=_odd(2 * windows[0] / step), mode="nearest")
    steep = np.hypot(*np.gradient(smooth)) / step if min(shape) > 1 else np.zeros(shape, np.float32)
    bare = [_bare(raster, slope, step) for slope in slopes]
    surfaces = np.stack([*opened, *levelled, *bare, closed, steep.astype(np.float32)], axis=2)
    columns = np.empty((len(xyz), surfaces.shape[2] + 1), np.float32)
    columns[:, :-1] = _between_cells(surfaces, at)
    columns[:, :-2] = xyz[:, 2:] - columns[:, :-2]
    columns[:, -1] = spacing
    return np.arcsinh(columns)


def _between_cells(surfaces: NDArray[np.float32], at: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values (P, S) at places in cells, linear between the middles of cells; surfaces (rows, columns, S)."""
    rows, width, _ = surfaces.shape
    flat = surfaces.reshape(rows * width, -1)
    place = np.clip(at - np.float32(0.5), 0, np.array([rows - 1, width - 1], np.float32))
    low = np.floor(place).astype(np.int64)
    share = place - low.astype(np.float32)
    high = np.minimum(low + 1, [rows - 1, width - 1])
    out = np.zeros((len(at), flat.shape[1]), np.float32)
    for i, a in ((low[:, 0], 1 - share[:, 0]), (high[:, 0], share[:, 0])):
        for j, b in ((low[:, 1], 1 - share[:, 1]), (high[:, 1], share[:, 1])):
            out += flat[i * width + j] * (a * b)[:, None]
    return out


def _bare(raster: NDArray[np.float32], slope: float, step: float) -> NDArray[np.float32]:
    """The raster without the cells that openings lower by more than ``slope`` times their radius, filled in."""
    from scipy.ndimage import distance_transform_edt, grey_opening, uniform_filter

    standing = np.zeros(raster.shape, np.bool_)
    last = raster
    for radius in _RADII:
        opened = grey_opening(last, size=_odd(2 * radius / step + 1), mode="nearest")
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
