"""Rooms cut into 1 m × 1 m blocks of 4,096 points with the nine features of the S3DIS protocol.

The nine columns are x, y about the block's middle, z above the room's floor; colour in 0..1; and x, y, z over the
room's extent. "The block's middle" is the sampled points' lowest x and y plus half a block, as the protocol's first
implementation has it, not the block's corner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POINTS = 4096
SIZE = 1.0
FEWEST = 100


@dataclass(frozen=True, eq=False)
class Block:
    """One block: features and labels of its sampled points, and which points of the room they are."""

    features: NDArray[np.float32]  # shape: (P, 9)
    label: NDArray[np.int64]  # shape: (P,)
    index: NDArray[np.int64]  # shape: (P,)


def corners(limit: NDArray[np.float64], stride: float, size: float = SIZE) -> Iterator[tuple[float, float]]:
    """The low corners of the blocks of a room that reaches ``limit``: x outer, y inner; the last may overhang."""
    counts = [max(0, int(np.ceil((limit[axis] - size) / stride)) + 1) for axis in (0, 1)]
    for i in range(counts[0]):
        for j in range(counts[1]):
            yield i * stride, j * stride


def members(xyz: NDArray[np.float64], corner: tuple[float, float], size: float = SIZE) -> NDArray[np.int64]:
    """The points in a block of full height, closed at both ends: a point on a boundary is in both neighbours."""
    inside = np.ones(len(xyz), dtype=bool)
    for axis in (0, 1):
        inside &= (xyz[:, axis] >= corner[axis]) & (xyz[:, axis] <= corner[axis] + size)
    return np.nonzero(inside)[0]


def features(
    xyz: NDArray[np.float64], rgb: NDArray[np.floating], extent: NDArray[np.float64], size: float = SIZE
) -> NDArray[np.float32]:
    """The nine columns of sampled points whose room begins at the origin and reaches ``extent``."""
    out = np.empty((len(xyz), 9), dtype=np.float64)
    out[:, 0] = xyz[:, 0] - (xyz[:, 0].min() + size / 2)
    out[:, 1] = xyz[:, 1] - (xyz[:, 1].min() + size / 2)
    out[:, 2] = xyz[:, 2]
    out[:, 3:6] = rgb
    out[:, 6:9] = xyz / np.where(extent > 0, extent, 1.0)
    return out.astype(np.float32)


def sample_index(count: int, points: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """Exactly ``points`` of ``count``: drawn with replacement where there are more, repeats added where fewer."""
    if count == points:
        return np.arange(count)
    if count > points:
        return np.asarray(rng.choice(count, points), dtype=np.int64)
    return np.concatenate([np.arange(count), rng.choice(count, points - count)])


def sampled_blocks(
    xyz: NDArray[np.float64],
    rgb: NDArray[np.floating],
    label: NDArray[np.integer],
    stride: float,
    seed: int = 0,
    points: int = POINTS,
    fewest: int = FEWEST,
) -> Iterator[Block]:
    """Blocks of one room, each sampled to ``points``: stride 0.5 for training, 1.0 for the test ``pn-sampled``."""
    xyz, extent = _at_origin(xyz)
    rng = np.random.RandomState(seed)
    for corner in corners(extent, stride):
        inside = members(xyz, corner)
        if len(inside) < fewest:
            continue
        chosen = inside[sample_index(len(inside), points, rng)]
        yield Block(features(xyz[chosen], rgb[chosen], extent), label[chosen].astype(np.int64), chosen)


def covering_blocks(
    xyz: NDArray[np.float64],
    rgb: NDArray[np.floating],
    label: NDArray[np.integer],
    seed: int = 0,
    points: int = POINTS,
) -> Iterator[Block]:
    """The test ``all-points``: stride 1.0, each block's points shuffled and cut into ⌈n/points⌉ padded pieces.

    A point on a boundary belongs to the block met first, so every point of the room is scored once: the entries of
    ``index`` that repeat within a block are padding and stand at its end.
    """
    xyz, extent = _at_origin(xyz)
    rng = np.random.RandomState(seed)
    free = np.ones(len(xyz), dtype=bool)
    for corner in corners(np.maximum(extent, SIZE), stride=SIZE):
        inside = members(xyz, corner)
        inside = inside[free[inside]]
        free[inside] = False
        if not len(inside):
            continue
        inside = rng.permutation(inside)
        for at in range(0, len(inside), points):
            piece = inside[at : at + points]
            chosen = piece[sample_index(len(piece), points, rng)] if len(piece) < points else piece
            yield Block(features(xyz[chosen], rgb[chosen], extent), label[chosen].astype(np.int64), chosen)


def overlapping_blocks(
    xyz: NDArray[np.float64],
    rgb: NDArray[np.floating],
    label: NDArray[np.integer],
    seed: int = 0,
    stride: float = 0.5,
    padding: float = 0.001,
    points: int = POINTS,
) -> Iterator[Block]:
    """The test ``voted``: overlapping padded blocks, the last pulled back inside, no fewest number of points.

    Unlike the other tests, x and y are taken about the middle of the block itself.
    """
    xyz, extent = _at_origin(xyz)
    rng = np.random.RandomState(seed)
    counts = [int(np.ceil(max(extent[axis] - SIZE, 0) / stride) + 1) for axis in (0, 1)]
    for j in range(counts[1]):
        for i in range(counts[0]):
            high = np.array([min(i * stride + SIZE, extent[0]), min(j * stride + SIZE, extent[1])])
            low = high - SIZE
            inside = np.nonzero(((xyz[:, :2] >= low - padding) & (xyz[:, :2] <= high + padding)).all(1))[0]
            if not len(inside):
                continue
            whole = -(-len(inside) // points) * points
            fill = rng.choice(inside, whole - len(inside), replace=whole - len(inside) > len(inside))
            order = rng.permutation(np.concatenate([inside, fill]))
            for at in range(0, whole, points):
                chosen = order[at : at + points]
                block = features(xyz[chosen], rgb[chosen], extent)
                block[:, :2] = xyz[chosen, :2] - (low + SIZE / 2)
                yield Block(block, label[chosen].astype(np.int64), chosen)


def count_votes(
    votes: NDArray[np.int64], index: NDArray[np.int64], predicted: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Add hard votes to (N, classes) counts, without a loop over points."""
    points, classes = votes.shape
    fresh = np.bincount(index * classes + predicted, minlength=points * classes)
    return votes + fresh.reshape(points, classes)


def _at_origin(xyz: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low = xyz - xyz.min(0)
    return low, low.max(0)
