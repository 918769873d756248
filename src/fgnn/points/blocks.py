"""Rooms cut into 1 m × 1 m blocks of 4,096 points with the nine features of the S3DIS protocol.

The nine columns are x and y relative to the block's centre and z above the floor; colour in 0..1; and x, y, z over the
room's extent. As in the protocol's first implementation, the centre is the lowest x and y of the sampled points plus
half a block, not the centre of the block itself.
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
    """One block: features and labels of its sampled points, and their indices in the room."""

    features: NDArray[np.float32]  # shape: (P, 9)
    label: NDArray[np.int64]  # shape: (P,)
    index: NDArray[np.int64]  # shape: (P,)


class _Room:
    """A room moved to the origin."""

    def __init__(self, xyz: NDArray[np.float64], rgb: NDArray[np.floating], label: NDArray[np.integer]) -> None:
        self.xyz, self.rgb, self.label = xyz - xyz.min(0), rgb, label
        self.extent = self.xyz.max(0)

    def cells(self, stride: float, limit: NDArray[np.float64]) -> Iterator[NDArray[np.int64]]:
        """Points of each block up to ``limit``, x outer, y inner; points on a boundary are in both blocks."""
        counts = [max(0, int(np.ceil((limit[axis] - SIZE) / stride)) + 1) for axis in (0, 1)]
        for i in range(counts[0]):
            for j in range(counts[1]):
                inside = np.ones(len(self.xyz), dtype=bool)
                for axis, low in ((0, i * stride), (1, j * stride)):
                    inside &= (self.xyz[:, axis] >= low) & (self.xyz[:, axis] <= low + SIZE)
                yield np.nonzero(inside)[0]

    def block(self, chosen: NDArray[np.int64], low: NDArray[np.float64] | None = None) -> Block:
        """The block of these points; its low corner is by default the lowest x and y among them."""
        xyz = self.xyz[chosen]
        features = np.empty((len(xyz), 9), dtype=np.float64)
        features[:, :2] = xyz[:, :2] - ((xyz[:, :2].min(0) if low is None else low) + SIZE / 2)
        features[:, 2] = xyz[:, 2]
        features[:, 3:6] = self.rgb[chosen]
        features[:, 6:9] = xyz / np.where(self.extent > 0, self.extent, 1.0)
        return Block(features.astype(np.float32), self.label[chosen].astype(np.int64), chosen)


def _resampled(index: NDArray[np.int64], points: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """Exactly ``points`` of the indices: drawn with replacement if there are more, padded with repeats if fewer."""
    if len(index) > points:
        return index[rng.choice(len(index), points)]
    if len(index) < points:
        return np.concatenate([index, index[rng.choice(len(index), points - len(index))]])
    return index


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
    room, rng = _Room(xyz, rgb, label), np.random.RandomState(seed)
    for inside in room.cells(stride, room.extent):
        if len(inside) >= fewest:
            yield room.block(_resampled(inside, points, rng))


def covering_blocks(
    xyz: NDArray[np.float64],
    rgb: NDArray[np.floating],
    label: NDArray[np.integer],
    seed: int = 0,
    points: int = POINTS,
) -> Iterator[Block]:
    """The test ``all-points``: stride 1.0, each block's points shuffled and split into ⌈n/points⌉ padded pieces.

    A point on a boundary belongs to the first block, so every point of the room is scored once: entries of ``index``
    that repeat within a block are padding at its end.
    """
    room, rng = _Room(xyz, rgb, label), np.random.RandomState(seed)
    free = np.ones(len(xyz), dtype=bool)
    for inside in room.cells(SIZE, np.maximum(room.extent, SIZE)):
        inside = inside[free[inside]]
        free[inside] = False
        order = rng.permutation(inside) if len(inside) else inside
        for start in range(0, len(order), points):
            yield room.block(_resampled(order[start : start + points], points, rng))


def overlapping_blocks(
    xyz: NDArray[np.float64],
    rgb: NDArray[np.floating],
    label: NDArray[np.integer],
    seed: int = 0,
    stride: float = 0.5,
    padding: float = 0.001,
    points: int = POINTS,
) -> Iterator[Block]:
    """The test ``voted``: overlapping padded blocks, the last shifted inside the room, with no minimum of points.

    Unlike in the other tests, x and y are relative to the centre of the block itself.
    """
    room, rng = _Room(xyz, rgb, label), np.random.RandomState(seed)
    plane, extent = room.xyz[:, :2], room.extent[:2]
    counts = [int(np.ceil(max(length - SIZE, 0) / stride) + 1) for length in extent]
    for j in range(counts[1]):
        for i in range(counts[0]):
            high = np.minimum(np.array([i, j]) * stride + SIZE, extent)
            low = high - SIZE
            inside = np.nonzero(((plane >= low - padding) & (plane <= high + padding)).all(1))[0]
            if not len(inside):
                continue
            missing = -len(inside) % points
            fill = rng.choice(inside, missing, replace=missing > len(inside))
            order = rng.permutation(np.concatenate([inside, fill]))
            for start in range(0, len(order), points):
                yield room.block(order[start : start + points], low)


def count_votes(
    votes: NDArray[np.int64], index: NDArray[np.int64], predicted: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Add hard votes to (N, classes) counts."""
    points, classes = votes.shape
    return votes + np.bincount(index * classes + predicted, minlength=points * classes).reshape(points, classes)
