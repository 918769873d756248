"""The simple morphological filter, a classical ground filter to compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.points.heights import fill_holes, lowest_raster

_SMOOTHING = 8  # passes over filled cells


def morphological_ground(
    xyz: NDArray[np.float64],
    cell: float = 1.0,
    slope: float = 0.15,
    window: float = 18.0,
    threshold: float = 0.5,
    scalar: float = 1.25,
) -> NDArray[np.bool_]:
    """Mask of ground points, after Pingel, Clarke and McBride (2013).

    The raster of lowest points is opened with discs of growing radius; cells that an opening lowers by more than
    ``slope`` times the radius are not ground. The rest is interpolated to a surface, and points within ``threshold``
    plus ``scalar`` times the local slope of it are ground.

    Args:
        xyz: Finite points, (P, 3).
        cell: Side of a cell of the raster.
        window: The largest radius, in the units of the coordinates.
    """
    from scipy.ndimage import grey_opening, map_coordinates

    if not len(xyz):
        return np.zeros(0, np.bool_)
    position = ((xyz[:, :2] - xyz[:, :2].min(0)) / cell).T  # shape: (2, P), in cells
    raster = lowest_raster(position[0], position[1], xyz[:, 2])
    shape, empty = raster.shape, np.isinf(raster)
    raster = fill_holes(raster, empty, _SMOOTHING)
    # pits: cells that a small opening of the negated raster lowers steeply are stray low points
    flipped = -raster
    pits = flipped - grey_opening(flipped, footprint=_disc(1), mode="nearest") > 5.0 * cell
    opened, standing = raster, np.zeros(shape, np.bool_)
    for radius in range(1, max(1, round(window / cell)) + 1):
        previous, opened = opened, grey_opening(opened, footprint=_disc(radius), mode="nearest")
        standing |= previous - opened > slope * radius * cell
    surface = fill_holes(raster, empty | pits | standing, _SMOOTHING)
    steep = np.hypot(*np.gradient(surface, cell)) if min(shape) > 1 else np.zeros(shape)
    centred = np.clip(position - 0.5, 0, np.array(shape)[:, None] - 1)
    height = np.abs(xyz[:, 2] - map_coordinates(surface, centred, order=1, mode="nearest"))
    tolerance = threshold + scalar * map_coordinates(steep, centred, order=1, mode="nearest")
    return np.asarray(height <= tolerance)


def _disc(radius: int) -> NDArray[np.bool_]:
    span = np.arange(-radius, radius + 1)
    return np.asarray(span[:, None] ** 2 + span[None] ** 2 <= radius**2)
