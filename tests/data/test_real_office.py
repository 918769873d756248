"""A real office end to end: raw text, collected array, HDF5 blocks, training, the three test protocols."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.data.s3dis import (
    CLASSES,
    Room,
    collect_room,
    cut_rooms,
    load_blocks,
    load_room,
    rooms,
    save_blocks,
    save_room,
)
from fgnn.data.scenes import make_room
from fgnn.models.points.config import PointConfig
from fgnn.models.points.segmenter import load_point_network
from fgnn.points.metrics import scene_score
from fgnn.tasks.data_settings import Data, RoomData
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule
from fgnn.tasks.room_scores import PROTOCOLS, labeller, score_rooms
from fgnn.train.run import run
from fgnn.weights import load_weights


def write_release(xyz: np.ndarray, label: np.ndarray, instance: np.ndarray, folder: Path) -> None:
    """A room of the raw release: one text file for each object."""
    notes = folder / "Annotations"
    notes.mkdir(parents=True)
    for thing in np.unique(instance):
        inside = instance == thing
        rows = np.concatenate([xyz[inside], np.full((int(inside.sum()), 3), 128)], axis=1)
        name = f"{CLASSES[int(np.bincount(label[inside]).argmax())]}_{int(thing) + 1}.txt"
        np.savetxt(notes / name, rows, fmt="%.3f %.3f %.3f %d %d %d")


@pytest.mark.data
def test_the_real_office_from_raw_text_to_scores(data_dir: Path, tmp_path: Path) -> None:
    with np.load(data_dir / "scans" / "s3dis_room.npz") as data:
        some = np.random.default_rng(0).permutation(len(data["label"]))[:20_000]
        xyz, label = data["xyz_mm"][some] / 1000.0, data["label"][some].astype(np.int64)
        instance = data["instance"][some].astype(np.int64)
    write_release(xyz, label, instance, tmp_path / "raw" / "Area_2" / "office_1")
    office = collect_room(tmp_path / "raw" / "Area_2" / "office_1")
    assert office.name == "Area_2_office_1"
    assert len(office.xyz) == 20_000
    assert np.bincount(office.label, minlength=13).tolist() == np.bincount(label, minlength=13).tolist()

    collected = tmp_path / "npy"
    collected.mkdir()
    again = load_room(save_room(office, collected))
    np.testing.assert_array_equal(again.xyz, office.xyz)
    for seed in (1, 2):
        save_room(make_room(f"Area_1_office_{seed}", seed=seed, density=60), collected)

    blocks = cut_rooms(rooms(collected), 0.5, points=128)
    save_blocks(blocks, tmp_path / "h5", per_file=50)
    assert len(load_blocks(tmp_path / "h5").room) == len(blocks.room)

    recipe = Recipe(
        data=Data(rooms=RoomData(str(tmp_path / "h5"), area=2)), points=PointConfig("pointnet"),
        optimiser=Optimiser("adam", 1e-3), schedule=Schedule("constant"), batch=4, steps=3, log_every=1,
        checkpoint_every=3,
    )  # fmt: skip
    state, folder = run(recipe, tmp_path / "run", device="cpu")
    assert state.metrics is not None
    network = load_point_network(load_weights(folder.path))
    points_scored = {}
    for protocol in PROTOCOLS:
        counts = score_rooms(labeller(network), _small(office), protocol, seed=0, points=128)
        score = scene_score(counts)
        points_scored[protocol] = int(counts.sum())
        assert 0 < score.accuracy < 1
        assert 0 < score.mean_iou < 1
    assert points_scored["all-points"] == points_scored["voted"] == len(_small(office)[0].xyz)


def _small(office: Room) -> list[Room]:
    """A corner of the office, because voting visits every point several times."""
    inside = (office.xyz[:, :2] < 1.6).all(1)
    return [Room(office.name, office.xyz[inside], office.rgb[inside], office.label[inside])]
