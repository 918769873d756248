"""Label the points that thinning left out: from the labelled points near them, and by their height above ground."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ahead import in_order
from fgnn.points.ground_surface import GroundSurface, Tolerance
from fgnn.points.tiles import Tile, TileStore

# Points labelled on their own whose probabilities are averaged.
_NEAREST = 3
# Cells a side of the blocks that are triangulated, and of the border around them.
_INNER, _BORDER = 6, 1
_CHUNK = 1 << 20


def spread(
    store: TileStore,
    votes: NDArray[np.float32],
    ground: int | None = None,
    tolerance: Tolerance = Tolerance(),  # noqa: B008 (frozen)
    threads: int = 1,
) -> None:
    """Fill in the rows of ``votes`` that are zero, in place.

    A point takes the mean of its three nearest labelled points, by inverse distance. With a class ``ground``, it is
    ground if it lies within the tolerance of the triangulated surface through the labelled ground, and only then.

    Args:
        store: The scan.
        votes: Class probabilities summed over tiles, (slots, K).
        ground: The class of ground, if there is one.
        tolerance: In metres, as the scan.
        threads: Blocks of the scan treated at once.
    """
    labelled: NDArray[np.bool_] = store.new_map("labelled", np.bool_, (len(votes),))
    for start in range(0, len(votes), _CHUNK):
        labelled[start : start + _CHUNK] = votes[start : start + _CHUNK].any(1)

    def fill(block: tuple[Tile, NDArray[np.bool_]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        tile, inner = block
        known = np.asarray(labelled[tile.slots])
        wanted = ~known & inner
        if not wanted.any() or not known.any():
            return tile.slots[:0], votes[:0]
        own = votes[tile.slots[known]]
        near = _nearest(tile.xyz[known], own / own.sum(1, keepdims=True), tile.xyz[wanted])
        if ground is not None:
            flat = own.argmax(1) == ground
            height, slope, edge = GroundSurface(tile.xyz[known][flat]).shape(tile.xyz[wanted, :2])
            near = by_height(near, tile.xyz[wanted, 2] - height, ground, tolerance.at(slope, edge))
        return tile.slots[wanted], near

    with ThreadPoolExecutor(threads, thread_name_prefix="fgnn-spread") as pool:
        for slots, near in in_order(pool, fill, store.blocks(_INNER, _BORDER, labelled), threads):
            votes[slots] = near


def _nearest(xyz: NDArray[np.float32], values: NDArray[np.float32], at: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values at the nearest points, weighted by inverse distance.  # shape: (P, K), (Q, 3) -> (Q, K)"""
    from fgnn.points.cells import nearest_values, sort_into_cells

    x, y, z = np.ascontiguousarray(at.T, np.float64)
    cells = sort_into_cells(*np.ascontiguousarray(xyz.T, np.float64))
    return nearest_values(cells, values, x, y, z, min(_NEAREST, len(xyz)))


def by_height(
    probabilities: NDArray[np.float32],
    height: NDArray[np.float32],
    ground: int,
    tolerance: NDArray[np.float32] | float,
) -> NDArray[np.float32]:
    """Make points near the surface ground, and others the likeliest other class.  # shape: (P, K)"""
    # neither where the height is unknown
    return with_ground(probabilities, np.abs(height) <= tolerance, np.abs(height) > tolerance, ground)


def with_ground(
    probabilities: NDArray[np.float32], yes: NDArray[np.bool_], no: NDArray[np.bool_], ground: int
) -> NDArray[np.float32]:
    """Make the points ``yes`` ground, and those of ``no`` the likeliest other class.  # shape: (P, K)"""
    out = probabilities.copy()
    best = out.argmax(1)
    low = yes & (best != ground)
    out[low, ground], out[low, best[low]] = probabilities[low, best[low]], probabilities[low, ground]
    high = no & (best == ground)
    out[high, ground] = 0
    empty = high & ~out.any(1)
    out[empty] = 1e-6 * (np.arange(out.shape[1]) != ground)
    return out
