"""Terrain models and heights above ground on surfaces that are known, and the GeoTIFF read back by another program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.points import Cloud, read_cloud, segment_file, write_cloud
from fgnn.points.cloud import HeldCloud
from fgnn.points.formats.geotiff import write_geotiff
from fgnn.points.ground import GROUND_FILTERS
from fgnn.points.segment import GroundRule
from fgnn.points.segment_output import Output
from fgnn.points.terrain import above_ground, terrain
from fgnn.points.tiles import TileStore

CORNER = np.array([652_000.0, 6_862_000.0, 110.0])


def slope(points: int = 9000, seed: int = 0) -> tuple[Cloud, np.ndarray]:
    """A tilted plane with a flat roof on it, and the height of each point above the plane."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 90, (points, 2))
    height = np.where((np.abs(xy - 45) < 6).all(1), 5.0, 0.0)
    z = 0.1 * xy[:, 0] - 0.05 * xy[:, 1] + height
    return Cloud(np.column_stack([xy, z]) + CORNER, {}), height


def plane(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 0.1 * (x - CORNER[0]) - 0.05 * (y - CORNER[1]) + CORNER[2]


@pytest.mark.parametrize("size", [40.0, 64.0, 300.0])
def test_heights_above_ground_are_exact_on_a_plane(size: float) -> None:
    cloud, height = slope()
    with TileStore(HeldCloud(cloud), size) as store:
        found = above_ground(store, height[store.place] == 0)
        np.testing.assert_allclose(found, height[store.place], atol=0.3)  # outside the triangulation, the nearest point
        middle = (np.abs(cloud.xyz[store.place, :2] - CORNER[:2] - 45) < 40).all(1)
        np.testing.assert_allclose(found[middle], height[store.place][middle], atol=2e-3)


@pytest.mark.parametrize("cell", [0.5, 1.0, 3.0])
def test_the_model_is_the_plane_also_under_the_roof(cell: float) -> None:
    cloud, height = slope()
    with TileStore(HeldCloud(cloud), 64.0) as store:
        model = terrain(store, height[store.place] == 0, cell)
        rows, columns = model.heights.shape
        assert (rows, columns) == pytest.approx((90 / cell, 90 / cell), abs=1.5)
        x = model.west + (np.arange(columns) + 0.5) * cell
        y = model.north - (np.arange(rows) + 0.5) * cell
        expected = plane(x[None, :], y[:, None])
        inner = slice(int(3 / cell) + 1, -int(3 / cell) - 1)
        np.testing.assert_allclose(model.heights[inner, inner], expected[inner, inner], atol=0.01)


def test_a_scan_without_ground_has_no_terrain() -> None:
    cloud, height = slope(300)
    with TileStore(HeldCloud(cloud), 64.0) as store:
        none = np.zeros(len(height), bool)
        assert np.isnan(terrain(store, none).heights).all()
        assert np.isnan(above_ground(store, none)).all()
        with pytest.raises(ValueError, match="positive"):
            terrain(store, none, 0.0)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (130, 65)])
def test_geotiff_is_read_back_by_pillow(tmp_path: Path, shape: tuple[int, int]) -> None:
    image = pytest.importorskip("PIL.Image")
    heights = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    heights[0, 0] = np.nan
    write_geotiff(tmp_path / "a.tif", heights, 652_000.0, 6_862_000.0, 0.5, {34735: b"\1\0\1\0\0\0\0\0"})
    with image.open(tmp_path / "a.tif") as file:
        np.testing.assert_array_equal(np.asarray(file), heights)
        assert file.tag_v2[33550] == (0.5, 0.5, 0.0)
        assert file.tag_v2[33922][3:5] == (652_000.0, 6_862_000.0)
        assert file.tag_v2[42113] == "nan"
        assert file.tag_v2[34735] == (1, 1, 0, 0)


def test_a_file_gets_classification_heights_and_a_terrain_model(tmp_path: Path) -> None:
    cloud, height = slope()
    write_cloud(cloud, tmp_path / "a.laz")
    rule = GroundRule(GROUND_FILTERS["smrf"])
    output = Output(above_ground=True, dtm=tmp_path / "a.tif")
    counts, _ = segment_file(tmp_path / "a.laz", tmp_path / "b.laz", rule, output=output)
    done = read_cloud(tmp_path / "b.laz")
    assert sum(counts.values()) == len(done)
    assert set(np.unique(done.fields["classification"])) == {1, 2}
    assert ((done.fields["classification"] == 2) == (height == 0)).mean() > 0.98
    roof = height > 0
    np.testing.assert_allclose(np.median(done.fields["height_above_ground"][roof]), 5.0, atol=0.1)
    assert (tmp_path / "a.tif").stat().st_size > 1000
    plain = Output(classification=False)
    segment_file(tmp_path / "a.laz", tmp_path / "c.laz", rule, output=plain)
    assert not read_cloud(tmp_path / "c.laz").fields["classification"].any()


def test_feet_are_labelled_in_metres_and_written_in_feet(tmp_path: Path) -> None:
    cloud, height = slope()
    feet = 0.3048
    write_cloud(Cloud(cloud.xyz / feet, {}), tmp_path / "a.laz")
    rule = GroundRule(GROUND_FILTERS["smrf"])
    segment_file(tmp_path / "a.laz", tmp_path / "b.laz", rule, output=Output(above_ground=True, unit=feet))
    done = read_cloud(tmp_path / "b.laz")
    np.testing.assert_allclose(done.xyz, cloud.xyz / feet, atol=1e-3)
    assert ((done.fields["classification"] == 2) == (height == 0)).mean() > 0.98
    np.testing.assert_allclose(np.median(done.fields["height_above_ground"][height > 0]), 5.0 / feet, atol=0.3)
