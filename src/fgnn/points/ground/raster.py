"""Rasters of lowest points, and their openings with diamonds, shared by the morphological filters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fgnn.points.heights import lowest_raster

# Cells with points whose mean fills an empty cell.
_NEAREST = 8
# Most cells of a raster: one stray point far away must not exhaust memory.
MOST_CELLS = 1 << 26


@dataclass(frozen=True, eq=False)
class Raster:
    """The lowest point of each cell, and the cell of each point."""

    lowest: NDArray[np.float64]  # shape: (rows, columns), infinite where there is no point
    row: NDArray[np.int64]  # shape: (N,)
    column: NDArray[np.int64]  # shape: (N,)

    @classmethod
    def of(cls, xyz: NDArray[np.float64], cell: float, aligned: bool = False) -> Raster:
        """The raster of some points; ``aligned`` with multiples of a cell, else with the lowest x and y."""
        low = xyz[:, :2].min(0)
        position = (xyz[:, :2] - (np.floor(low / cell) * cell if aligned else low)) / cell
        if np.prod(position.max(0) + 1) > MOST_CELLS:
            raise ValueError(f"Expected at most {MOST_CELLS:,} cells of {cell} (got {position.max(0).round()} a side)")
        row, column = position.astype(np.int64).T
        return cls(lowest_raster(row, column, xyz[:, 2]), row, column)

    @cached_property
    def filled(self) -> NDArray[np.float64]:
        """The lowest points, with empty cells filled."""
        return fill(self.lowest, np.isinf(self.lowest))

    def of_points(self, chosen: NDArray[np.bool_]) -> Raster:
        """The same raster, for some of the points."""
        return Raster(self.lowest, self.row[chosen], self.column[chosen])

    def at(self, surface: NDArray[np.float64]) -> NDArray[np.float64]:
        """The value of a surface in the cell of each point.  # shape: (N,)"""
        return np.asarray(surface[self.row, self.column])


def fill(surface: NDArray[np.float64], hole: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fill holes with the mean of the eight nearest other cells."""
    from scipy.spatial import cKDTree

    if not hole.any() or hole.all():
        return surface
    known = np.argwhere(~hole)
    k = min(_NEAREST, len(known))
    _, index = cKDTree(known).query(np.argwhere(hole), k=k)
    values = surface[~hole]  # in the order of argwhere
    filled = surface.copy()
    filled[hole] = values[index.reshape(-1, k)].mean(1)
    return filled


def eroded(surface: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """The lowest value within ``radius`` steps along rows and columns; cells outside do not count."""
    from fgnn.points.ground.erosion import erode

    return erode(np.ascontiguousarray(surface, np.float64), radius)


def dilated(surface: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """The highest value within ``radius`` steps along rows and columns."""
    return -eroded(-surface, radius)
