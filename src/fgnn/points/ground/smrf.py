"""The simple morphological filter (SMRF)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ground.raster import Raster, dilated, eroded, fill

# A cell that the inverted filter cuts off above this slope is a stray low point.
_PIT_SLOPE = 5.0


def smrf(
    xyz: NDArray[np.float64],
    cell: float = 1.0,
    slope: float = 0.15,
    window: float = 18.0,
    threshold: float = 0.5,
    scalar: float = 1.25,
) -> NDArray[np.bool_]:
    """Mask of ground points, after Pingel, Clarke and McBride (2013), with their single set of parameters.

    The raster of lowest points is opened with diamonds of growing radius. Cells that an opening lowers by more than
    ``slope`` times the radius are objects. The others make a surface, and points within ``threshold`` plus ``scalar``
    times its local slope of it are ground.

    Args:
        xyz: Finite points, (N, 3).
        cell: Side of a cell of the raster.
        window: The largest radius, in the units of the coordinates.
    """
    if not len(xyz):
        return np.zeros(0, np.bool_)
    return smrf_margin(xyz, Raster.of(xyz, cell), cell, slope, window, threshold, scalar) <= 0


def smrf_margin(
    xyz: NDArray[np.float64],
    raster: Raster,
    cell: float = 1.0,
    slope: float = 0.15,
    window: float = 18.0,
    threshold: float = 0.5,
    scalar: float = 1.25,
) -> NDArray[np.float64]:
    """By how much the distance of each point to the filtered surface is beyond what `smrf` allows.  # shape: (N,)"""
    lowest = raster.filled
    objects = _objects(lowest, slope * cell, max(1, int(np.ceil(window / cell))))
    pits = _objects(-lowest, _PIT_SLOPE * cell, 1)
    surface = fill(lowest, objects | pits | np.isinf(raster.lowest))
    steep = np.hypot(*np.gradient(surface, cell)) if min(surface.shape) > 1 else np.zeros(surface.shape)
    return np.asarray(np.abs(xyz[:, 2] - raster.at(surface)) - threshold - scalar * raster.at(steep))


def _objects(surface: NDArray[np.float64], rise: float, largest: int) -> NDArray[np.bool_]:
    """Cells that an opening lowers by more than ``rise`` times its radius, compared with the opening before."""
    found = np.zeros(surface.shape, np.bool_)
    previous = erosion = surface
    for radius in range(1, largest + 1):
        erosion = eroded(erosion, 1)
        opened = dilated(erosion, radius)
        found |= previous - opened > rise * radius
        previous = opened
    return found
