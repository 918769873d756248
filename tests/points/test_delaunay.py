"""Triangulations against Qhull's, on exact coordinates; lines, grids, circles and points at the same place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull, Delaunay

from fgnn.points.delaunay import LARGEST, interpolate, triangulate


def triangles(xy: np.ndarray, z: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.ascontiguousarray(xy.T)
    return triangulate(x, y, np.zeros(len(xy)) if z is None else z)


def check(xy: np.ndarray) -> None:
    """Triangles are anticlockwise, fit together, cover the hull once and use every place once."""
    corner, twin = triangles(xy)
    a, b, c = xy[corner.reshape(-1, 3)].transpose(1, 0, 2)
    area = (b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0]
    assert (area > 0).all()
    assert area.sum() == pytest.approx(2 * ConvexHull(xy).volume)
    assert len(np.unique(corner)) == len(np.unique(xy, axis=0))
    edge = np.flatnonzero(twin >= 0)
    following = np.where(np.arange(len(corner)) % 3 == 2, -2, 1) + np.arange(len(corner))
    np.testing.assert_array_equal(twin[twin[edge]], edge)
    np.testing.assert_array_equal(corner[edge], corner[following[twin[edge]]])


@pytest.mark.parametrize("count", [3, 4, 10, 300, 5000])
def test_triangles_are_those_of_qhull(count: int) -> None:
    rng = np.random.default_rng(count)
    xy = np.round(rng.uniform(-LARGEST, LARGEST, (count, 2)))
    found, expected = (np.sort(t.reshape(-1, 3), axis=1) for t in (triangles(xy)[0], Delaunay(xy).simplices))
    assert set(map(tuple, found)) == set(map(tuple, expected))


def test_degenerate_points_are_triangulated() -> None:
    grid = np.stack(np.meshgrid(np.arange(-9.0, 20), np.arange(-5.0, 8)), axis=-1).reshape(-1, 2)
    line = np.column_stack([np.arange(40.0), 2 * np.arange(40.0)])
    turn = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    for xy in (
        grid,
        np.concatenate([grid, grid[::3]]),  # twice at the same place
        np.concatenate([line[5:], line[:9], [[3.0, 7.0]]]),  # all on a line but one
        np.round(LARGEST * np.column_stack([np.cos(turn), np.sin(turn)])),
    ):
        check(xy)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_points_on_a_line_have_no_triangles(count: int) -> None:
    assert len(triangles(np.column_stack([np.arange(count), 3 * np.arange(count)]).astype(float))[0]) == 0
    assert len(triangles(np.ones((count, 2)))[0]) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-6, 6), st.integers(-6, 6)), min_size=3, max_size=40))
def test_any_points_on_a_small_lattice(points: list[tuple[int, int]]) -> None:
    xy = np.array(points, float)
    if np.linalg.matrix_rank(xy - xy[0]) == 2:
        check(xy)


def test_the_lowest_of_points_at_the_same_place_counts() -> None:
    xy = np.array([[0, 0], [4, 0], [0, 4], [4, 4], [0, 0], [4, 4], [4, 4]], float)
    z = np.array([3.0, 1.0, 1.0, 5.0, 2.0, 7.0, 4.0])
    corner, twin = triangles(xy, z)
    x, y = np.ascontiguousarray(xy.T)
    at = np.array([0.0, 4.0])
    height, _, _, inside = interpolate(x, y, z, corner, twin, at, at, np.arange(2))
    assert inside.all()
    np.testing.assert_array_equal(height, [2.0, 4.0])
