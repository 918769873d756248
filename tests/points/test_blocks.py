"""Blocks equal those of the protocol, point for point."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from fgnn.data.s3dis import Room
from fgnn.data.scenes import make_room
from fgnn.points.blocks import count_votes, covering_blocks, overlapping_blocks, sampled_blocks


def blocks_by_the_book(room: Room, stride: float, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The protocol in plain loops."""
    np_random = np.random.RandomState(seed)
    xyz = room.xyz - room.xyz.min(0)
    limit = xyz.max(0)
    out = []
    nx = ceil((limit[0] - 1.0) / stride) + 1
    ny = ceil((limit[1] - 1.0) / stride) + 1
    for i in range(nx):
        for j in range(ny):
            x0, y0 = i * stride, j * stride
            cond = (xyz[:, 0] >= x0) & (xyz[:, 0] <= x0 + 1.0) & (xyz[:, 1] >= y0) & (xyz[:, 1] <= y0 + 1.0)
            n = int(cond.sum())
            if n < 100:
                continue
            where = np.nonzero(cond)[0]
            if n > 4096:
                pick = np_random.choice(n, 4096)
            elif n < 4096:
                pick = np.concatenate([np.arange(n), np_random.choice(n, 4096 - n)])
            else:
                pick = np.arange(n)
            chosen = where[pick]
            p = xyz[chosen]
            f = np.zeros((4096, 9))
            f[:, 0] = p[:, 0] - (p[:, 0].min() + 0.5)
            f[:, 1] = p[:, 1] - (p[:, 1].min() + 0.5)
            f[:, 2] = p[:, 2]
            f[:, 3:6] = room.rgb[chosen]
            f[:, 6:9] = p / limit
            out.append((f.astype(np.float32), room.label[chosen]))
    return out


@pytest.mark.parametrize("stride", [0.5, 1.0])
@pytest.mark.parametrize("density", [400.0, 6000.0])
def test_blocks_are_those_of_the_protocol(stride: float, density: float) -> None:
    room = make_room(seed=3, density=density)
    expected = blocks_by_the_book(room, stride, seed=7)
    blocks = list(sampled_blocks(room.xyz, room.rgb, room.label, stride, seed=7))
    assert len(blocks) == len(expected) > 4
    for block, (features, label) in zip(blocks, expected, strict=True):
        np.testing.assert_array_equal(block.features, features)
        np.testing.assert_array_equal(block.label, label)


def test_covering_blocks_score_every_point_once() -> None:
    room = make_room(seed=1, density=1500.0)
    times = np.zeros(len(room.xyz), dtype=int)
    for block in covering_blocks(room.xyz, room.rgb, room.label):
        assert block.features.shape == (4096, 9)
        times[np.unique(block.index)] += 1
    assert (times == 1).all()


def test_overlapping_blocks_reach_every_point() -> None:
    room = make_room(seed=2, density=600.0)
    votes = np.zeros((len(room.xyz), 13), dtype=np.int64)
    for block in overlapping_blocks(room.xyz, room.rgb, room.label):
        votes = count_votes(votes, block.index, block.label)
    assert (votes.sum(1) > 0).all()
    np.testing.assert_array_equal(votes.argmax(1), room.label)  # every vote was the truth


def test_votes_equal_a_count_by_hand() -> None:
    rng = np.random.default_rng(0)
    index, predicted = rng.integers(0, 20, 200), rng.integers(0, 5, 200)
    by_hand = np.zeros((20, 5), dtype=np.int64)
    for i, p in zip(index, predicted, strict=True):
        by_hand[i, p] += 1
    np.testing.assert_array_equal(count_votes(np.zeros((20, 5), dtype=np.int64), index, predicted), by_hand)
