"""Points left out by thinning follow their neighbours, and the triangulated ground."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn.data.scenes import make_terrain
from fgnn.points import Segmenter, segment_cloud
from fgnn.points.cloud import Cloud, HeldCloud
from fgnn.points.ground_surface import GroundSurface, Tolerance
from fgnn.points.spread import by_height, spread
from fgnn.points.tiles import TileStore


def test_heights_above_a_tilted_plane_are_exact() -> None:
    rng = np.random.default_rng(0)
    ground = rng.uniform(-10, 10, (200, 3)).astype(np.float32)
    ground[:, 2] = 0.3 * ground[:, 0] - 0.1 * ground[:, 1]
    points = rng.uniform(-5, 5, (50, 3)).astype(np.float32)
    expected = points[:, 2] - (0.3 * points[:, 0] - 0.1 * points[:, 1])
    np.testing.assert_allclose(points[:, 2] - GroundSurface(ground).at(points[:, :2]), expected, atol=1e-4)


def test_a_tilted_plane_has_its_slope_and_the_edges_of_its_triangles() -> None:
    x, y = np.meshgrid(np.arange(0, 20, 2.0), np.arange(0, 20, 2.0))
    ground = np.column_stack([x.ravel(), y.ravel(), 0.3 * x.ravel() - 0.4 * y.ravel()]).astype(np.float32)
    inside, outside = np.array([[7.3, 3.1]], np.float32), np.array([[30.0, 0.0]], np.float32)
    height, slope, edge = GroundSurface(ground).shape(np.concatenate([inside, outside]))
    np.testing.assert_allclose(height, [0.3 * 7.3 - 0.4 * 3.1, 0.3 * 18], rtol=1e-5)
    np.testing.assert_allclose(slope, [0.5, 0], rtol=1e-5)
    np.testing.assert_allclose(edge, [(2 + 2 + 8**0.5) / 3, 0], rtol=1e-5)


def test_heights_equal_those_of_scipys_interpolator() -> None:
    from scipy.interpolate import LinearNDInterpolator

    rng = np.random.default_rng(4)
    ground, at = rng.uniform(0, 50, (500, 3)).astype(np.float32), rng.uniform(-5, 55, (2000, 2)).astype(np.float32)
    expected = LinearNDInterpolator(ground[:, :2], ground[:, 2])(at)
    height, inside = GroundSurface(ground).inside(at)
    np.testing.assert_array_equal(inside, ~np.isnan(expected))
    slope = GroundSurface(ground).shape(at)[1]  # places are rounded to 2 µm
    assert (np.abs(height - expected)[inside] <= 1e-4 + 4e-6 * slope[inside]).all()


def test_the_tolerance_grows_with_slopes_and_edges_up_to_half_a_metre() -> None:
    tolerance = Tolerance(0.1, slope=0.5, edge=0.1)
    slope, edge = np.array([0, 0.2, 9, 9], np.float32), np.array([0, 1, 0, 5], np.float32)
    np.testing.assert_allclose(tolerance.at(slope, edge), [0.1, 0.3, 0.5, 0.5], atol=1e-6)  # a slope of 9 counts as 1
    np.testing.assert_allclose(Tolerance(2.0).at(slope, edge), 2.0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_little_ground_gives_no_height_or_the_nearest(count: int) -> None:
    height, inside = GroundSurface(np.zeros((count, 3), np.float32)).inside(np.full((4, 2), 2, np.float32))
    np.testing.assert_array_equal(height, np.full(4, 0.0 if count else np.nan))
    assert not inside.any()


def test_height_decides_on_ground() -> None:
    p = np.array([[0.1, 0.6, 0.3], [0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]], np.float32)
    found = by_height(p, np.array([0.1, 2.0, np.nan, 2.0], np.float32), ground=0, tolerance=0.3)
    assert found.argmax(1).tolist() == [0, 1, 0, 1]


def test_every_point_gets_a_label_and_labelled_ones_keep_theirs() -> None:
    cloud = make_terrain(3000, seed=1)
    with TileStore(HeldCloud(cloud), size=20.0) as store:
        votes = np.zeros((store.valid, 2), np.float32)
        votes[::5, 0] = 1.0
        votes[1::50, 1] = 3.0
        before = votes.copy()
        spread(store, votes)
        given = before.any(1)
        np.testing.assert_array_equal(votes[given], before[given])
        np.testing.assert_allclose(votes[~given].sum(1), 1, rtol=1e-5)


def test_threads_do_not_change_the_result() -> None:
    cloud = make_terrain(20000, seed=2)
    results = []
    for threads in (1, 3):
        with TileStore(HeldCloud(cloud), size=20.0) as store:
            votes = np.zeros((store.valid, 2), np.float32)
            votes[::3, 0], votes[1::40, 1] = 1.0, 2.0
            spread(store, votes, ground=0, threads=threads)
            results.append(votes)
    np.testing.assert_array_equal(*results)


def test_a_thinned_scan_is_labelled_as_a_dense_one() -> None:
    """With a rule that knows the truth, thinning costs little; without the surface it would cost far more."""
    rng = np.random.default_rng(3)
    xy = rng.uniform(0, 60, (40000, 2))
    house = (np.abs(xy - 30) < 8).all(1)
    z = 0.2 * xy[:, 0] + 6.0 * house + rng.normal(0, 0.02, len(xy))
    cloud = Cloud(np.column_stack([xy, z]), {})

    def by_position(features: np.ndarray) -> np.ndarray:
        x, y = features[..., 0], features[..., 1]  # of the tile's centre: only for one tile
        inside = (np.abs(x - (30 - 32)) < 8) & (np.abs(y - (30 - 32)) < 8)
        return np.stack([~inside, inside], axis=-1).astype(np.float32)

    rule = Segmenter(by_position, ("ground", "house"), size=64.0, points=1 << 14, thin=1.0, votes=1)
    wrong = (segment_cloud(cloud, rule).label == 1) != house
    assert wrong.mean() < 0.02
