"""A terrain model from labelled ground: a grid of heights, and the height of every point above ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ground_surface import GroundSurface
from fgnn.points.thin import lowest_per_voxel
from fgnn.points.tiles import TileStore

# Ground points beyond one per voxel of this side do not change the surface visibly, and cost time.
_VOXEL = 0.5
# Width of the border that is treated by both tiles, against rounding of coordinates.
_OVERLAP = 1e-3
# Most cells of a terrain model.
_MOST_CELLS = 1 << 30


@dataclass(frozen=True, eq=False)
class Terrain:
    """Heights of the ground on a grid, rows from north to south, NaN where there is none."""

    heights: NDArray[np.float32]  # shape: (rows, columns), the values at the centres of the cells
    west: float
    north: float
    cell: float


def above_ground(store: TileStore, ground: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The height of every point above the triangulated ground, NaN where there is none, on disk.

    Args:
        ground: Which points are ground, by slot of the store.
    """
    heights: NDArray[np.float32] = store.new_map("above_ground", np.float32, (store.valid,))
    reach = store.half / 2 + _OVERLAP
    for spot in store.spots():
        tile = store.load(spot)
        wanted = (np.abs(tile.xyz[:, :2]) <= reach).all(1)
        if wanted.any():
            surface = _surface(tile.xyz[np.asarray(ground[tile.slots])])
            heights[tile.slots[wanted]] = tile.xyz[wanted, 2] - surface.at(tile.xyz[wanted, :2])
    return heights


def terrain(store: TileStore, ground: NDArray[np.bool_], cell: float = 1.0) -> Terrain:
    """Interpolate the ground to a grid aligned with multiples of ``cell``.

    Cells get a height inside the triangulation of a tile's ground, and where the scan has points.
    """
    if not cell > 0:
        raise ValueError(f"Expected a positive cell (got {cell})")
    west, south = (float(np.floor(v / cell) * cell) for v in store.origin[:2])
    columns, rows = (
        int(np.ceil((store.origin[a] + store.shape[a] * store.half - low) / cell)) for a, low in ((0, west), (1, south))
    )
    if rows * columns > _MOST_CELLS:
        raise ValueError(f"Expected at most {_MOST_CELLS:,} cells (got {rows} x {columns}); use a larger cell")
    north = south + rows * cell
    grid: NDArray[np.float32] = store.new_map("terrain", np.float32, (rows, columns))
    grid[:] = np.nan
    for spot in store.spots():
        tile = store.load(spot)
        surface = _surface(tile.xyz[np.asarray(ground[tile.slots])])
        if surface.empty or not len(tile.xyz):
            continue
        centre = store.origin[:2] + np.array(spot.centre)
        # cells whose centres lie in the tile's central half
        low = np.ceil((centre - store.half / 2 - (west, south)) / cell - 0.5).astype(int)
        high = np.ceil((centre + store.half / 2 - (west, south)) / cell - 0.5).astype(int)
        i, j = np.meshgrid(
            *(np.arange(max(0, a), min(b, n)) for a, b, n in zip(low, high, (columns, rows), strict=True))
        )
        i, j = i.ravel(), j.ravel()
        at = np.column_stack([west + (i + 0.5) * cell - centre[0], south + (j + 0.5) * cell - centre[1]])
        values, inside = surface.inside(at.astype(np.float32))
        point = np.floor((tile.xyz[:, :2] + centre - (west, south)) / cell).astype(np.int64)
        inside |= np.isin(i * rows + j, point[:, 0] * rows + point[:, 1])
        grid[rows - 1 - j[inside], i[inside]] = values[inside] + np.float32(store.origin[2])
    return _trimmed(Terrain(grid, west, north, cell))


def _surface(ground: NDArray[np.float32]) -> GroundSurface:
    return GroundSurface(ground[lowest_per_voxel(ground, _VOXEL)[0]])


def _trimmed(model: Terrain) -> Terrain:
    """Without empty rows and columns at the edges."""
    known = ~np.isnan(model.heights)
    if not known.any():
        return model
    rows, columns = np.flatnonzero(known.any(1)), np.flatnonzero(known.any(0))
    heights = model.heights[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return Terrain(heights, model.west + columns[0] * model.cell, model.north - rows[0] * model.cell, model.cell)
