"""A classical ground filter to compare with: the simple morphological filter, one set of parameters for all scans."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def morphological_ground(
    xyz: NDArray[np.float64],
    cell: float = 1.0,
    slope: float = 0.15,
    window: float = 18.0,
    threshold: float = 0.5,
    scalar: float = 1.25,
) -> NDArray[np.bool_]:
    """Which points are ground, by the steps of Pingel, Clarke and McBride (2013).

    The raster of lowest points is opened with discs of growing radius; a cell that an opening lowers by more than
    ``slope`` times the radius stands on the ground and is left out. What is left is filled in to a surface, and points
    within ``threshold`` of it, plus ``scalar`` times its slope there, are ground.

    Args:
        xyz: Finite points, (P, 3).
        cell: Side of a cell of the raster.
        window: The largest radius, in the units of the coordinates.
    """
    from scipy.ndimage import distance_transform_edt, grey_opening, map_coordinates, uniform_filter

    if not len(xyz):
        return np.zeros(0, np.bool_)
    low = xyz[:, :2].min(0)
    at = (xyz[:, :2] - low) / cell
    shape = tuple(int(n) + 1 for n in np.floor(at.max(0)))
    index = np.minimum(at.astype(np.int64), np.array(shape) - 1)
    lowest = np.full(shape[0] * shape[1], np.inf)
    np.minimum.at(lowest, index[:, 0] * shape[1] + index[:, 1], xyz[:, 2])
    raster = lowest.reshape(shape)
    empty = np.isinf(raster)

    def filled(values: NDArray[np.float64], hole: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Holes get the nearest value, smoothed: a cheap stand-in for solving a membrane."""
        if not hole.any() or hole.all():
            return values
        near = distance_transform_edt(hole, return_distances=False, return_indices=True)
        made = values[tuple(near)]
        for _ in range(8):
            made = np.where(hole, uniform_filter(made, 5, mode="nearest"), made)
        return np.asarray(made)

    raster = filled(raster, empty)
    # pits first: what a small opening of the upside-down raster lowers steeply is a stray low point
    flipped = -raster
    pits = flipped - grey_opening(flipped, footprint=_disc(1), mode="nearest") > 5.0 * cell
    last, standing = raster, np.zeros(shape, np.bool_)
    for radius in range(1, max(1, round(window / cell)) + 1):
        opened = grey_opening(last, footprint=_disc(radius), mode="nearest")
        standing |= last - opened > slope * radius * cell
        last = opened
    surface = filled(raster, empty | pits | standing)
    steep = np.hypot(*np.gradient(surface, cell)) if min(shape) > 1 else np.zeros(shape)
    place = np.clip(at.T - 0.5, 0, np.array(shape)[:, None] - 1)
    height = np.abs(xyz[:, 2] - map_coordinates(surface, place, order=1, mode="nearest"))
    slack = threshold + scalar * map_coordinates(steep, place, order=1, mode="nearest")
    return np.asarray(height <= slack)


def _disc(radius: int) -> NDArray[np.bool_]:
    span = np.arange(-radius, radius + 1)
    return np.asarray(span[:, None] ** 2 + span[None] ** 2 <= radius**2)
