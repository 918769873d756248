"""Thin a cloud to one point per voxel, so that density does not matter beyond that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lowest_per_voxel(xyz: NDArray[np.float32], cell: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lowest point of each voxel; the order of the points does not matter.

    Args:
        xyz: Points, (P, 3).
        cell: Side of a voxel; the voxels are aligned with the origin.

    Returns:
        The chosen points (R,), sorted by voxel, and for every point the position of its voxel among them (P,).
    """
    key = voxel_keys(xyz, cell)
    # ties in height go to the smallest x, then y: the choice depends on the points alone
    order = np.lexsort((xyz[:, 1], xyz[:, 0], xyz[:, 2], key))
    ordered = key[order]
    first = np.ones(len(key), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    voxel = np.empty(len(key), np.int64)
    voxel[order] = np.cumsum(first) - 1
    return order[first], voxel


def voxel_keys(xyz: NDArray[np.float32], cell: float) -> NDArray[np.int64]:
    """A number for each point, equal for points of the same voxel."""
    key = np.zeros(len(xyz), np.int64)
    for axis in range(3):
        index = np.floor(xyz[:, axis] / np.float32(cell)).astype(np.int64)
        index -= index.min() if len(index) else 0
        key = key * (int(index.max()) + 1 if len(index) else 1) + index
    return key
