"""Threads prepare the pieces of tiles ahead of the network without changing them or their order."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fgnn.data.scenes import make_terrain
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, HeldCloud, read_cloud, write_cloud
from fgnn.points.heights import heights_above
from fgnn.points.segment import STAGES, Clock, Segmenter, segment_cloud, segment_file
from fgnn.points.segment_pieces import Cut, batches, extra_values, piece_length, tile_features
from fgnn.points.thin import lowest_per_voxel
from fgnn.points.tiles import Tile, TileStore

CUT = Cut(size=12.0, points=100, scale=5.0, heights=(3.0, 9.0))


def high(features: np.ndarray) -> np.ndarray:
    share = 1 / (1 + np.exp(-(features[..., 4] - 1.0)))
    return np.stack([1 - share, share], axis=-1).astype(np.float32)


def rule(**changes: Any) -> Segmenter:
    settings: dict[str, Any] = {"size": 20.0, "points": 128, "scale": 5.0, "heights": (3.0, 9.0), "batch": 3}
    return Segmenter(high, ("ground", "other"), **(settings | changes))


@pytest.mark.parametrize("cut", [CUT, replace(CUT, thin=1.0, shapes=(4,), echoes=True)])
def test_pieces_hold_every_point_of_each_tile_once_and_pad_with_copies(cut: Cut) -> None:
    """Against the features of whole tiles."""
    extra = partial(extra_values, cut=cut)
    with TileStore(HeldCloud(make_terrain(2000, seed=1)), size=12.0, extra=extra, extra_width=cut.width) as store:
        expected = {}
        for tile in store.tiles():
            if cut.thin:
                keep, _ = lowest_per_voxel(tile.xyz, cut.thin)
                tile = Tile(tile.slots[keep], tile.xyz[keep], tile.extra[keep])
            features = tile_features(tile, cut)
            pieces = -(-len(tile.slots) // cut.points)
            expected[frozenset(tile.slots.tolist())] = (pieces, dict(zip(tile.slots.tolist(), features, strict=True)))
        for threads in (1, 4):
            made = [
                (features.copy(), slots)
                for batch in batches(store, cut, size=7, votes=4, seed=5, threads=threads)
                for features, slots in zip(batch.features, batch.slots, strict=True)
            ]
            at = 0
            for whole, (pieces, features_of) in expected.items():
                part = made[at : at + pieces]
                at += pieces
                seen = np.concatenate([slots[slots >= 0] for _, slots in part])
                assert frozenset(seen.tolist()) == whole
                assert len(seen) == len(whole)
                for features, slots in part:
                    assert len(features) == cut.points
                    own = {s: f for s, f in zip(slots.tolist(), features, strict=True) if s >= 0}
                    for slot, row in own.items():
                        np.testing.assert_array_equal(row, features_of[slot])
                    copies = features[slots < 0][:, 1:]  # padding differs from its original in x at most
                    assert {f[1:].tobytes() for f in own.values()} >= {f.tobytes() for f in copies}
            assert at == len(made)


def test_the_padding_of_thinned_tiles_is_out_of_reach() -> None:
    cut = replace(CUT, thin=0.5, points=4096)
    with TileStore(HeldCloud(make_terrain(600, seed=1)), size=12.0) as store:
        for batch in batches(store, cut, size=2, votes=1, seed=0):
            assert batch.features.shape[1] in (1024, 64)  # halved: a tile has far fewer points
            for features, slots in zip(batch.features, batch.slots, strict=True):
                gap = np.abs(features[slots >= 0][:, None, 0] - features[slots < 0][None, :, 0]) * cut.scale
                assert gap.min() > 2 * cut.size


def test_pieces_are_as_long_as_their_tiles_need() -> None:
    assert [piece_length(count, 4096) for count in (5000, 2049, 2048, 1025, 1024, 64)] == [
        4096,
        4096,
        2048,
        2048,
        1024,
        1024,
    ]
    assert [piece_length(count, 5000) for count in (4000, 1)] == [5000, 625]  # P is a multiple of every length
    assert piece_length(1, 48) == 48


@pytest.mark.timeout(60)
def test_scattered_points_are_labelled_at_once() -> None:
    """Each point has its own four tiles; none is padded to a whole piece."""
    side = 15
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) * 1000.0
    cloud = Cloud(np.column_stack([places, np.zeros(len(places))]))
    rows: list[int] = []

    def predict(features: NDArray[np.float32]) -> NDArray[np.float32]:
        rows.append(features.shape[0] * features.shape[1])
        return np.ones((*features.shape[:2], 2), np.float32)

    segmenter = Segmenter(predict, ("a", "b"), size=64.0, points=4096, scale=5.0, heights=(3.0, 6.0), grow=3.0)
    begin = time.process_time()
    labelling = segment_cloud(cloud, segmenter)
    assert (labelling.label == 0).all()
    assert sum(rows) == 64 * 4 * len(cloud)
    assert (time.process_time() - begin) / len(cloud) < 0.02  # a second each, once


def test_features_are_the_position_in_the_tile_then_the_heights() -> None:
    with TileStore(HeldCloud(make_terrain(600, seed=2)), size=15.0) as store:
        for tile in store.tiles():
            above = tile.xyz - np.array([0, 0, tile.xyz[:, 2].min()], np.float32)
            features = tile_features(tile, Cut(15.0, scale=5.0, heights=(3.0, 9.0), slopes=(0.2,)))
            np.testing.assert_array_equal(features[:, :3], above / np.float32(5))
            np.testing.assert_array_equal(features[:, 3:], heights_above(above, (3.0, 9.0), (0.2,)))


@pytest.mark.parametrize("changes", [{"threads": 4}, {"batch": 1}, {"batch": 50, "threads": 2}])
def test_threads_and_batches_change_no_label(changes: dict[str, object]) -> None:
    cloud = make_terrain(3000, seed=3)
    default, changed = segment_cloud(cloud, rule()), segment_cloud(cloud, rule(**changes))
    np.testing.assert_array_equal(default.label, changed.label)
    np.testing.assert_array_equal(default.confidence, changed.confidence)


def test_probabilities_may_be_a_view_of_the_features() -> None:
    cloud = make_terrain(3000, seed=4)

    def view(features: np.ndarray) -> np.ndarray:
        features[..., :2] = high(features)
        return features[..., :2]

    plain = segment_cloud(cloud, rule())
    again = segment_cloud(cloud, Segmenter(view, *(getattr(rule(), n) for n in ("classes", "size", "points", "scale")),
                                           heights=(3.0, 9.0), batch=3))  # fmt: skip
    np.testing.assert_array_equal(plain.confidence, again.confidence)


def test_batches_may_be_allocated_by_the_caller() -> None:
    shapes: list[tuple[int, ...]] = []

    def allocate(shape: tuple[int, ...]) -> np.ndarray:
        shapes.append(shape)
        return np.full(shape, np.nan, np.float32)

    cloud = make_terrain(2000, seed=5)
    np.testing.assert_array_equal(segment_cloud(cloud, rule(room=allocate)).label, segment_cloud(cloud, rule()).label)
    assert set(shapes) == {(3, 128, rule().cut.columns)}
    assert len(shapes) < 5  # a few buffers are reused


def test_an_error_of_the_network_stops_the_threads_and_leaves_no_file(tmp_path: Path) -> None:
    def broken(features: np.ndarray) -> np.ndarray:
        raise InputError("no")

    write_cloud(make_terrain(2000, seed=6), tmp_path / "a.ply")
    with pytest.raises(InputError, match="no"):
        segment_file(tmp_path / "a.ply", tmp_path / "b.ply", Segmenter(broken, ("a", "b"), size=20.0, points=64))
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_the_clock_measures_every_stage(tmp_path: Path) -> None:
    def slow(features: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return high(features)

    write_cloud(make_terrain(1000, seed=7), tmp_path / "a.ply")
    clock, start = Clock(), time.perf_counter()
    segmenter = Segmenter(slow, ("a", "b"), size=30.0, points=256, heights=(3.0, 9.0))
    segment_file(tmp_path / "a.ply", tmp_path / "b.ply", segmenter, clock=clock)
    taken = time.perf_counter() - start
    assert tuple(clock.seconds) == STAGES
    assert clock.seconds["network"] >= 0.05
    assert clock.seconds["reading"] > 0 < clock.seconds["writing"]
    assert sum(clock.seconds.values()) <= taken
    assert len(read_cloud(tmp_path / "b.ply")) == 1000


@pytest.mark.parametrize(
    ("count", "rows"), [(5000, 2560), (4096, 4096), (1228, 1280), (1025, 1280), (900, 1024), (8193, 2816), (1, 64)]
)
def test_pieces_of_thinned_tiles_have_little_padding(count: int, rows: int) -> None:
    length = piece_length(count, 4096, 256)
    assert length == rows
    assert length * -(-count // length) >= count
