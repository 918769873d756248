"""The progressive morphological filter (PMF)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ground.raster import Raster, dilated, eroded


def pmf(
    xyz: NDArray[np.float64],
    cell: float = 1.0,
    slope: float = 1.0,
    window: float = 33.0,
    initial: float = 0.15,
    largest: float = 2.5,
) -> NDArray[np.bool_]:
    """Mask of ground points, after Zhang et al. (2003), with windows that double.

    The raster of lowest points is opened with windows of 3, 5, 9, 17, … cells, each on the result of the one before.
    A point is not ground if it is too high above an opening: by ``initial`` plus ``slope`` times the growth of the
    window, at most by ``largest``.

    Args:
        xyz: Finite points, (N, 3).
        cell: Side of a cell of the raster.
        window: The largest window, in cells.
    """
    ground = np.ones(len(xyz), np.bool_)
    if not len(xyz):
        return ground
    raster = Raster.of(xyz, cell)
    surface = raster.filled
    before, radius = 0.0, 1
    while 2 * radius + 1 <= window:
        width = 2 * radius + 1
        allowed = initial if radius == 1 else min(slope * (width - before) * cell + initial, largest)
        surface = dilated(eroded(surface, radius), radius)
        ground &= xyz[:, 2] - raster.at(surface) < allowed
        before, radius = width, 2 * radius
    return ground
