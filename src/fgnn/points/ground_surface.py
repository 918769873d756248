"""The triangulated surface through ground points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class GroundSurface:
    """A triangulation of ground points, linear on each triangle; outside it, the height of the nearest point.

    Args:
        ground: Ground points, (G, 3).
    """

    def __init__(self, ground: NDArray[np.float32]) -> None:
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError, cKDTree

        self.empty = not len(ground)
        self._ground = ground
        self._linear: LinearNDInterpolator | None = None
        if not self.empty:
            self._tree = cKDTree(ground[:, :2])
            try:
                self._linear = LinearNDInterpolator(ground[:, :2], ground[:, 2])
            except QhullError:  # fewer than three points, or all on a line
                self._linear = None

    def at(self, xy: NDArray[np.float32]) -> NDArray[np.float32]:
        """The height of the surface, NaN without ground.  # shape: (P, 2) -> (P,)"""
        return self.inside(xy)[0]

    def inside(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The height of the surface, and whether a triangle covers the place.  # shape: (P, 2) -> (P,), (P,)"""
        if self.empty or not len(xy):
            return np.full(len(xy), np.nan, np.float32), np.zeros(len(xy), np.bool_)
        height = np.full(len(xy), np.nan) if self._linear is None else self._linear(xy)
        outside = np.isnan(height)
        if outside.any():
            height[outside] = self._ground[self._tree.query(xy[outside])[1], 2]
        return np.asarray(height, np.float32), ~outside
