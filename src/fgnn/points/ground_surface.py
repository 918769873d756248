"""The triangulated surface through ground points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fgnn.schema import Between

# No point is ground that is farther from the surface than this, in metres.
_FARTHEST = 0.5


@dataclass(frozen=True)
class Tolerance:
    """How far from the surface points are ground, in metres: farther on slopes, and between distant ground points.

    Args:
        base: On level ground.
        slope: More for a slope of 1; steeper ones count as 1.
        edge: More for each metre of the edges of the triangle.
    """

    base: Annotated[float, Between(0, 10)] = 0.3
    slope: Annotated[float, Between(0, 10)] = 0.0
    edge: Annotated[float, Between(0, 10)] = 0.0

    def at(self, slope: NDArray[np.float32], edge: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = self.base + self.slope * np.minimum(slope, 1) + self.edge * edge
        return np.asarray(np.clip(wide, 0, max(self.base, _FARTHEST)), np.float32)


class GroundSurface:
    """A triangulation of ground points, linear on each triangle; outside it, the height of the nearest point.

    Args:
        ground: Ground points, (G, 3).
    """

    def __init__(self, ground: NDArray[np.float32]) -> None:
        from fgnn.points.delaunay import LARGEST, triangulate

        self.empty = not len(ground)
        self._ground = ground.astype(np.float64)
        x, y, z = np.ascontiguousarray(self._ground.T)
        # a power of two: most coordinates in float32 are multiples of it, and remain exact
        extent = max(float(np.abs(a).max()) for a in (x, y)) if len(x) else 0.0
        self._step = 2.0 ** np.ceil(np.log2(extent)) / LARGEST if extent else 1.0
        self._x, self._y, self._z = np.round(x / self._step), np.round(y / self._step), z
        self._corner = self._twin = np.zeros(0, np.int32)
        if not self.empty:
            self._corner, self._twin = triangulate(self._x, self._y, self._z)

    def at(self, xy: NDArray[np.float32]) -> NDArray[np.float32]:
        """The height of the surface, NaN without ground.  # shape: (P, 2) -> (P,)"""
        return self.inside(xy)[0]

    def inside(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The height of the surface, and whether a triangle covers the place.  # shape: (P, 2) -> (P,), (P,)"""
        height, _, _, covered = self._at(xy)
        return height, covered

    def shape(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Height, slope and mean edge of the triangle; level and without edges outside.  # shape: (P,), (P,), (P,)"""
        return self._at(xy)[:3]

    def _at(
        self, xy: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        from scipy.spatial import cKDTree

        from fgnn.points.cells import sort_into_cells
        from fgnn.points.delaunay import interpolate

        if self.empty or not len(xy):
            zero = np.zeros(len(xy), np.float32)
            return np.full(len(xy), np.nan, np.float32), zero, zero, np.zeros(len(xy), np.bool_)
        x, y = np.round(np.ascontiguousarray(xy.T, np.float64) / self._step)
        height, slope, edge = np.zeros((3, len(xy)))
        covered = np.zeros(len(xy), np.bool_)
        if len(self._corner):
            order = sort_into_cells(x, y, x).order  # neighbours after each other: a walk starts from the last place
            height, slope, edge, covered = interpolate(self._x, self._y, self._z, self._corner, self._twin, x, y, order)
        if not covered.all():
            outside = ~covered
            height[outside] = self._ground[cKDTree(self._ground[:, :2]).query(xy[outside].astype(np.float64))[1], 2]
        slope, edge = slope / self._step, edge * self._step
        return height.astype(np.float32), slope.astype(np.float32), edge.astype(np.float32), covered
