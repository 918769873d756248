"""Thinning keeps the lowest point of every voxel, whatever the order of the points."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn.points.thin import lowest_per_voxel


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 80), st.sampled_from([0.25, 0.64, 2.0]))
def test_each_voxel_keeps_its_lowest_point(seed: int, count: int, cell: float) -> None:
    rng = np.random.default_rng(seed)
    xyz = (rng.integers(-20, 20, (count, 3)) / 8).astype(np.float32)  # a coarse lattice: many ties
    keep, voxel = lowest_per_voxel(xyz, cell)
    groups: dict[tuple[int, ...], list[int]] = {}
    for n, cube in enumerate(map(tuple, np.floor(xyz / np.float32(cell)).astype(int).tolist())):
        groups.setdefault(cube, []).append(n)
    assert len(keep) == len(groups)
    for members in groups.values():
        assert len({int(voxel[n]) for n in members}) == 1
        chosen = int(keep[voxel[members[0]]])
        assert chosen in members
        assert tuple(xyz[chosen, [2, 0, 1]]) == min(tuple(xyz[n, [2, 0, 1]]) for n in members)


def test_the_order_of_the_points_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    xyz = rng.normal(0, 3, (500, 3)).astype(np.float32)
    order = rng.permutation(500)
    keep, _ = lowest_per_voxel(xyz, 0.64)
    again, _ = lowest_per_voxel(xyz[order], 0.64)
    np.testing.assert_array_equal(xyz[keep], xyz[order][again])


def test_no_points_give_no_voxels() -> None:
    keep, voxel = lowest_per_voxel(np.zeros((0, 3), np.float32), 1.0)
    assert len(keep) == len(voxel) == 0
