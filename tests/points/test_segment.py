"""Tiling and voting: every point of a scan in any format is labelled, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.data.scenes import make_terrain
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, HeldCloud, open_cloud, read_cloud, write_cloud
from fgnn.points.heights import height_columns
from fgnn.points.segment import UNLABELLED, Segmenter, segment_cloud, segment_file
from fgnn.points.segment_pieces import tile_features
from fgnn.points.tiles import TileStore


def by_height(features: np.ndarray) -> np.ndarray:
    """A stand-in network: a point more than 3 m above its tile's lowest is not ground."""
    high = 1 / (1 + np.exp(-(features[..., 2] * 10.0 - 3.0)))
    return np.stack([1 - high, high], axis=-1).astype(np.float32)


def segmenter(**changes: Any) -> Segmenter:
    settings: dict[str, Any] = {"size": 20.0, "points": 256, "scale": 10.0, "batch": 3}
    return Segmenter(by_height, ["ground", "other"], **(settings | changes))


@pytest.mark.parametrize("suffix", [".laz", ".ply", ".csv", ".npz", ".pcd"])
def test_the_output_has_labels_and_every_field(tmp_path: Path, suffix: str) -> None:
    terrain = make_terrain(3000, seed=1)
    write_cloud(terrain, tmp_path / f"a{suffix}")
    counts, sample = segment_file(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", segmenter(), keep=500)
    before, after = read_cloud(tmp_path / f"a{suffix}"), read_cloud(tmp_path / f"b{suffix}")
    np.testing.assert_array_equal(after.xyz, before.xyz)
    for name, values in before.fields.items():
        np.testing.assert_array_equal(after.fields[name], values)
    labels = after.fields["label"]
    assert set(np.unique(labels)) <= {0, 1}
    assert counts == {"ground": int((labels == 0).sum()), "other": int((labels == 1).sum())}
    assert (after.fields["confidence"] >= 0.5 - 1e-6).all()
    assert sample is not None
    assert 400 < len(sample) <= 501


def test_a_file_and_the_same_cloud_in_memory_get_the_same_labels(tmp_path: Path) -> None:
    terrain = make_terrain(2000, seed=2)
    write_cloud(terrain, tmp_path / "a.npz")
    segment_file(tmp_path / "a.npz", tmp_path / "b.npz", segmenter())
    held = segment_cloud(read_cloud(tmp_path / "a.npz"), segmenter())
    np.testing.assert_array_equal(read_cloud(tmp_path / "b.npz").fields["label"], held.label)
    np.testing.assert_array_equal(read_cloud(tmp_path / "b.npz").fields["confidence"], held.confidence)


def test_the_output_equals_votes_summed_tile_by_tile(tmp_path: Path) -> None:
    """Byte by byte against a plain loop in memory, with invalid points."""
    cloud = make_terrain(1200, seed=8)
    cloud.xyz[::50] = np.nan
    write_cloud(cloud, tmp_path / "a.ply")
    rule = segmenter(points=4096)  # every tile is one piece
    counts, _ = segment_file(tmp_path / "a.ply", tmp_path / "b.ply", rule)
    votes = np.zeros((1200, 2), np.float32)
    cloud = read_cloud(tmp_path / "a.ply")
    with TileStore(HeldCloud(cloud), size=20.0) as store:
        for tile in store.tiles():
            votes[store.place[tile.slots]] += by_height(tile_features(tile, rule.cut))
    label = np.where(cloud.valid, votes.argmax(1), UNLABELLED).astype(np.uint8)
    confidence = (votes.max(1) / np.where(cloud.valid, votes.sum(1), 1)).astype(np.float32)
    write_cloud(cloud.with_fields(label=label, confidence=confidence), tmp_path / "expected.ply")
    assert (tmp_path / "b.ply").read_bytes() == (tmp_path / "expected.ply").read_bytes()
    assert counts == {"ground": (label == 0).sum(), "other": (label == 1).sum(), "unlabelled": 24}


def test_every_point_gets_four_votes() -> None:
    shapes = []

    def count(features: np.ndarray) -> np.ndarray:
        shapes.append(features.shape)
        return np.ones((*features.shape[:2], 2), np.float32)

    terrain = make_terrain(1500, seed=3)
    result = segment_cloud(terrain, Segmenter(count, ["a", "b"], size=10.0, points=64, batch=4))
    assert (result.label == 0).all()
    assert (result.confidence == 0.5).all()
    assert all(shape[1:] == (64, 3) for shape in shapes)


def test_tiles_cover_each_point_four_times_relative_to_their_centre(tmp_path: Path) -> None:
    terrain = make_terrain(1000, seed=4)
    write_cloud(terrain, tmp_path / "a.ply")
    with TileStore(open_cloud(tmp_path / "a.ply"), size=8.0) as store:
        times = np.zeros(1000, dtype=int)
        for tile in store.tiles():
            times[store.place[tile.slots]] += 1
            assert (np.abs(tile.xyz[:, :2]) <= 4.0 + 1e-4).all()
            true = terrain.xyz[store.place[tile.slots]]
            np.testing.assert_allclose(np.ptp(tile.xyz, axis=0), np.ptp(true, axis=0), atol=1e-3)
        assert (times == 4).all()


@pytest.mark.parametrize("count", [0, 1])
def test_scans_of_zero_and_one_points(tmp_path: Path, count: int) -> None:
    cloud = make_terrain(10)
    write_cloud(Cloud(cloud.xyz[:count], {n: v[:count] for n, v in cloud.fields.items()}), tmp_path / "a.ply")
    counts, _ = segment_file(tmp_path / "a.ply", tmp_path / "b.ply", segmenter())
    back = read_cloud(tmp_path / "b.ply")
    assert len(back) == count == sum(counts.values())
    assert "label" in back.fields


def test_points_without_coordinates_stay_unlabelled_and_duplicates_agree(tmp_path: Path) -> None:
    xyz = np.concatenate([make_terrain(300).xyz, [[np.nan, 0, 0]], make_terrain(300).xyz])
    write_cloud(Cloud(xyz, {"odd": np.arange(601)}), tmp_path / "a.ply")
    counts, _ = segment_file(tmp_path / "a.ply", tmp_path / "b.ply", segmenter())
    labels = read_cloud(tmp_path / "b.ply").fields["label"]
    assert labels[300] == UNLABELLED
    assert counts["unlabelled"] == 1
    np.testing.assert_array_equal(labels[:300], labels[301:])


def test_one_stray_point_far_away_costs_nothing(tmp_path: Path) -> None:
    xyz = np.concatenate([make_terrain(200).xyz, [[9e8, 9e8, 0.0]]])
    result = segment_cloud(Cloud(xyz), segmenter(size=1.0))
    assert (result.label != UNLABELLED).all()


@pytest.mark.parametrize("votes", [1, 2, 4])
def test_every_point_gets_the_requested_votes(votes: int) -> None:
    cloud = make_terrain(1500, seed=5)
    with TileStore(HeldCloud(cloud), size=8.0) as store:
        times = np.zeros(1500, dtype=int)
        for tile in store.tiles(votes):
            times[tile.slots] += 1
        assert (times == votes).all()
        with pytest.raises(ValueError, match="Expected 1, 2 or 4 votes"):
            next(store.tiles(3))
    result = segment_cloud(cloud, segmenter(votes=votes))
    assert (result.label != UNLABELLED).all()


def test_tiles_widen_where_points_are_sparse() -> None:
    cloud = make_terrain(4000, seed=6)  # about four points a square metre
    for points, grow, expected in ((400, 3.0, 10.0), (1600, 3.0, 20.0), (10_000, 3.0, 30.0), (1600, 1.0, 10.0)):
        with TileStore(HeldCloud(cloud), size=10.0, points=points, grow=grow) as store:
            assert 2 * store.half == pytest.approx(expected, rel=0.15)


def test_heights_are_the_last_features_of_clouds_and_files(tmp_path: Path) -> None:
    widths = []

    def low(features: np.ndarray) -> np.ndarray:
        widths.append(features.shape[2])
        high = features[..., 6] > 1.0
        return np.stack([~high, high], axis=-1).astype(np.float32)

    terrain = make_terrain(6000, seed=7)
    write_cloud(terrain, tmp_path / "a.ply")
    rule = Segmenter(low, ["ground", "other"], size=40.0, points=512, scale=5.0, heights=(3.0, 12.0), colour=True)
    segment_file(tmp_path / "a.ply", tmp_path / "b.ply", rule)
    held = segment_cloud(terrain, rule)
    assert set(widths) == {3 + 3 + height_columns((3.0, 12.0))}  # zeros for the missing colour
    labels = read_cloud(tmp_path / "b.ply").fields["label"]
    assert (labels == held.label).mean() > 0.999  # the file holds millimetres


def test_unknown_fields_of_every_type_are_kept(tmp_path: Path) -> None:
    terrain = make_terrain(300)
    odd = {
        "amplitude": np.linspace(0, 1, 300), "flag": (np.arange(300) % 2).astype(np.uint8),
        "tag": np.arange(300, dtype=np.int32) - 150, "label": np.full(300, 7, np.uint8),
    }  # fmt: skip
    for suffix in (".laz", ".ply", ".npz"):
        write_cloud(Cloud(terrain.xyz, odd), tmp_path / f"a{suffix}")
        segment_file(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}", segmenter())
        after = read_cloud(tmp_path / f"b{suffix}").fields
        for name in ("amplitude", "flag", "tag"):
            np.testing.assert_array_equal(after[name], odd[name])
        np.testing.assert_array_equal(after["label_original"], odd["label"])
        assert set(np.unique(after["label"])) <= {0, 1}


@pytest.mark.parametrize("suffix", [".ply", ".laz", ".npy", ".npz", ".pcd", ".csv"])
def test_a_truncated_scan_gives_one_line_and_leaves_no_file(tmp_path: Path, suffix: str) -> None:
    scan = tmp_path / f"a{suffix}"
    write_cloud(make_terrain(2000), scan)
    data = scan.read_bytes()
    scan.write_bytes(data[: len(data) // 2] if suffix != ".csv" else data[: len(data) // 2] + b",")
    with pytest.raises(InputError) as error:
        segment_file(scan, tmp_path / f"b{suffix}", segmenter())
    assert "\n" not in str(error.value)
    assert str(scan) in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == [scan.name]
