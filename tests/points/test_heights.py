"""Heights above opened surfaces separate roofs from ground, also on slopes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import grey_closing, grey_opening

from fgnn.points.heights import Relief, _opened, height_columns, heights_above
from fgnn.points.metrics import ground_score

WINDOWS = (3.0, 6.0, 12.0, 24.0)


def land(slope: float = 0.0, points: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A slope of 60 m by 60 m with a house of 10 m by 10 m, 5 m high; and the mask of ground points."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 60, (points, 2))
    house = ((xy > 25) & (xy < 35)).all(1)
    z = slope * xy[:, 0] + 5.0 * house + rng.normal(0, 0.03, points)
    return np.column_stack([xy, z]).astype(np.float32), ~house


@pytest.mark.parametrize("slope", [0.0, 0.4])
def test_a_house_rises_above_openings_wider_than_it(slope: float) -> None:
    xyz, ground = land(slope)
    heights = np.sinh(heights_above(xyz, WINDOWS))
    assert heights.shape == (len(xyz), height_columns(WINDOWS))
    narrow, wide = heights[:, 1], heights[:, 3]
    house = ~ground
    inner = house & (np.abs(xyz[:, :2] - 30) < 3).all(1)
    assert np.median(narrow[inner]) < 2.5 + slope * 6
    assert np.median(wide[inner]) > 4.0
    levelled = heights[:, len(WINDOWS) + 3]
    far = ground & (np.abs(xyz[:, :2] - 30) > 12).any(1)
    assert np.median(np.abs(levelled[far])) < 0.6
    assert np.median(levelled[inner]) > 3.5


def test_a_point_far_below_only_affects_its_own_heights() -> None:
    xyz, _ = land()
    plain = heights_above(xyz, WINDOWS)
    stray = xyz.copy()
    stray[17, 2] -= 30
    heights = heights_above(stray, WINDOWS)
    assert np.sinh(heights[17, 2 * len(WINDOWS)]) < -20
    far = np.abs(xyz[:, :2] - xyz[17, :2]).max(1) > 3
    assert np.median(np.abs(heights[far, : len(WINDOWS)] - plain[far, : len(WINDOWS)])) < 1e-6


@pytest.mark.parametrize("points", [0, 1, 2, 5])
def test_few_or_coinciding_points_give_finite_heights(points: int) -> None:
    for xyz in (land(points=6000)[0][:points], np.ones((points, 3), np.float32)):
        assert np.isfinite(heights_above(xyz, WINDOWS)).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 4), (40, 33)])
@pytest.mark.parametrize("size", [3, 5, 13, 49])
def test_openings_equal_scipy(shape: tuple[int, int], size: int) -> None:
    surface = np.random.default_rng(size).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(_opened(surface, size), grey_opening(surface, size=size, mode="nearest"))
    np.testing.assert_array_equal(-_opened(-surface, size), grey_closing(surface, size=size, mode="nearest"))


def test_heights_of_a_subset_equal_those_of_all() -> None:
    xyz, _ = land(0.2)
    some = np.random.default_rng(1).permutation(len(xyz))[:500]
    relief = Relief.of(xyz, WINDOWS, (0.2,))
    np.testing.assert_array_equal(relief.heights(xyz[some]), heights_above(xyz, WINDOWS, (0.2,))[some])


def test_one_stray_point_far_away_needs_no_huge_raster() -> None:
    xyz = np.concatenate([land()[0], [[1e7, 1e7, 0.0]]]).astype(np.float32)
    assert np.isfinite(heights_above(xyz, WINDOWS)).all()


def test_ground_scores_equal_a_count_by_hand() -> None:
    truth = np.array([1, 1, 1, 1, 0, 0], bool)
    predicted = np.array([1, 1, 1, 0, 1, 0], bool)
    score = ground_score(truth, predicted)
    assert (score.type_1, score.type_2, score.total, score.iou) == (1 / 4, 1 / 2, 2 / 6, 3 / 5)
    expected = 4 / 6 * 4 / 6 + 2 / 6 * 2 / 6
    assert score.kappa == pytest.approx((4 / 6 - expected) / (1 - expected))
    assert np.isnan(ground_score(np.ones(2, bool), np.ones(2, bool)).type_2)


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_each_slope_adds_a_height_above_bare_ground(slope: float) -> None:
    xyz, ground = land(slope)
    heights = np.sinh(heights_above(xyz, WINDOWS, slopes=(0.15, 0.3)))
    assert heights.shape[1] == height_columns(WINDOWS, (0.15, 0.3)) == height_columns(WINDOWS) + 2
    for column in (2 * len(WINDOWS), 2 * len(WINDOWS) + 1):
        assert np.median(np.abs(heights[ground, column])) < 0.3
        assert np.median(heights[~ground, column]) > 3.5
