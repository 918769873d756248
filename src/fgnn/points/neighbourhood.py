"""The shape of the neighbourhood of each point: flat, upright, scattered; and what is above and below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Columns for each number of neighbours, and of `columns_around`.
SHAPE_COLUMNS, AROUND_COLUMNS = 5, 3
_BLOCK = 8192
_EPSILON = np.float32(1e-6)


def neighbourhood_shape(xyz: NDArray[np.float32], sizes: Sequence[int]) -> NDArray[np.float32]:
    """The shape of each point's nearest neighbours, itself included.

    With the eigenvalues :math:`l_1 \\ge l_2 \\ge l_3` of their covariance and the normal n, of l_3:

    Args:
        xyz: Points, (P, 3).
        sizes: Numbers of neighbours, ascending.

    Returns:
        (P, 5 len(sizes)), for each size: planarity :math:`(l_2 - l_3) / l_1`, scatter :math:`l_3 / l_1`, verticality
        :math:`1 - |n_z|`, the height over the neighbours' mean and the radius, both arcsinh.
    """
    from scipy.spatial import cKDTree

    out = np.zeros((len(xyz), SHAPE_COLUMNS * len(sizes)), np.float32)
    if len(xyz) < 3:
        return out
    largest = min(max(sizes), len(xyz))
    tree = cKDTree(xyz)
    for start in range(0, len(xyz), _BLOCK):
        block = xyz[start : start + _BLOCK]
        distance, index = tree.query(block, k=largest)
        offset = xyz[index] - block[:, None]  # shape: (p, k, 3)
        for n, size in enumerate(sizes):
            k = min(size, largest)
            columns = slice(SHAPE_COLUMNS * n, SHAPE_COLUMNS * (n + 1))
            out[start : start + _BLOCK, columns] = _shape(offset[:, :k], distance[:, k - 1].astype(np.float32))
    return out


def _shape(offset: NDArray[np.float32], radius: NDArray[np.float32]) -> NDArray[np.float32]:
    mean = offset.mean(1)
    centred = offset - mean[:, None]
    covariance = np.einsum("pki,pkj->pij", centred, centred) / np.float32(offset.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    l3, l2, l1 = np.maximum(values, 0).T
    l1 = l1 + _EPSILON
    upright = 1 - np.abs(vectors[:, 2, 0])
    return np.stack([(l2 - l3) / l1, l3 / l1, upright, np.arcsinh(-mean[:, 2]), np.arcsinh(radius)], axis=1)


def columns_around(xyz: NDArray[np.float32], cell: float = 1.0) -> NDArray[np.float32]:
    """What stands above and below a point, in the cell around it and its eight neighbours.

    Returns:
        (P, 3), arcsinh of the height of the highest point above this one and of this one above the lowest, and the
        logarithm of the number of points.
    """
    from scipy.ndimage import maximum_filter, minimum_filter, uniform_filter

    if not len(xyz):
        return np.zeros((0, AROUND_COLUMNS), np.float32)
    row, column = (((xyz[:, a] - xyz[:, a].min()) / np.float32(cell)).astype(np.int64) for a in (0, 1))
    shape = int(row.max()) + 1, int(column.max()) + 1
    at, z = row * shape[1] + column, xyz[:, 2]
    highest, lowest = (
        np.full(shape[0] * shape[1], -np.inf, np.float32),
        np.full(shape[0] * shape[1], np.inf, np.float32),
    )
    np.maximum.at(highest, at, z)
    np.minimum.at(lowest, at, z)
    count = np.bincount(at, minlength=len(highest)).astype(np.float32)
    high = maximum_filter(highest.reshape(shape), 3, mode="nearest").reshape(-1)[at]
    low = minimum_filter(lowest.reshape(shape), 3, mode="nearest").reshape(-1)[at]
    near = uniform_filter(count.reshape(shape), 3, mode="constant").reshape(-1)[at]
    return np.stack([np.arcsinh(high - z), np.arcsinh(z - low), np.log1p(9 * near)], axis=1)
