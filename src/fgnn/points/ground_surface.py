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


def _along_strips(place: NDArray[np.float64]) -> NDArray[np.int64]:
    """An order of places in which neighbours follow each other: a search for triangles starts from the last found."""
    strip = np.floor(place[:, 1])
    return np.lexsort((np.where(strip % 2 == 0, place[:, 0], -place[:, 0]), strip))


class GroundSurface:
    """A triangulation of ground points, linear on each triangle; outside it, the height of the nearest point.

    Args:
        ground: Ground points, (G, 3).
    """

    def __init__(self, ground: NDArray[np.float32]) -> None:
        from scipy.spatial import Delaunay, QhullError, cKDTree

        self.empty = not len(ground)
        self._ground = ground.astype(np.float64)
        self._triangles: Delaunay | None = None
        if not self.empty:
            self._tree = cKDTree(self._ground[:, :2])
            try:
                self._triangles = Delaunay(self._ground[:, :2])
            except (QhullError, ValueError):  # fewer than three points, or all on a line
                self._triangles = None

    def at(self, xy: NDArray[np.float32]) -> NDArray[np.float32]:
        """The height of the surface, NaN without ground.  # shape: (P, 2) -> (P,)"""
        return self.inside(xy)[0]

    def inside(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The height of the surface, and whether a triangle covers the place.  # shape: (P, 2) -> (P,), (P,)"""
        height, triangle = self._heights(xy)
        return height, triangle >= 0

    def shape(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Height, slope and mean edge of the triangle; level and without edges outside.  # shape: (P,), (P,), (P,)"""
        height, triangle = self._heights(xy)
        slope, edge = np.zeros(len(xy), np.float32), np.zeros(len(xy), np.float32)
        covered = triangle >= 0
        if self._triangles is not None and covered.any():
            corners = self._ground[self._triangles.simplices]  # shape: (T, 3, 3)
            a, b = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
            normal = np.cross(a, b)
            steep = np.hypot(normal[:, 0], normal[:, 1]) / np.maximum(np.abs(normal[:, 2]), 1e-9)
            sides = np.stack([a, b, b - a])[..., :2]
            mean = np.hypot(sides[..., 0], sides[..., 1]).mean(0)
            slope[covered], edge[covered] = np.minimum(steep, 1e3)[triangle[covered]], mean[triangle[covered]]
        return height, slope, edge

    def _heights(self, xy: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The height of the surface, and the triangle at each place, -1 outside."""
        triangle = np.full(len(xy), -1, np.int64)
        if self.empty or not len(xy):
            return np.full(len(xy), np.nan, np.float32), triangle
        place, height = xy.astype(np.float64), np.empty(len(xy))
        if self._triangles is not None:
            order = _along_strips(place)
            triangle[order] = self._triangles.find_simplex(place[order])
        covered = triangle >= 0
        if self._triangles is not None and covered.any():
            found = triangle[covered]
            affine = self._triangles.transform[found]  # shape: (Q, 3, 2)
            first = np.einsum("qij,qj->qi", affine[:, :2], place[covered] - affine[:, 2])
            share = np.column_stack([first, 1 - first.sum(1)])  # barycentric coordinates
            height[covered] = (share * self._ground[self._triangles.simplices[found], 2]).sum(1)
            covered[covered] = np.isfinite(height[covered])  # not of triangles without area
            triangle[~covered] = -1
        if not covered.all():
            height[~covered] = self._ground[self._tree.query(place[~covered])[1], 2]
        return np.asarray(height, np.float32), triangle
