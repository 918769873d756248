"""Training of point networks on shapes, rooms and scans."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fgnn.data.labelled import IGNORE, Classes, PointSet, scan_pieces
from fgnn.data.s3dis import cut_rooms, save_blocks
from fgnn.data.scenes import make_room, make_shapes, make_terrain
from fgnn.data.shapenet import PARTS
from fgnn.errors import InputError
from fgnn.models.points.config import PointArchitecture, PointConfig
from fgnn.points.cloud import read_cloud, write_cloud
from fgnn.points.segment_pieces import Cut
from fgnn.tasks.data_settings import Data, RoomData, ScanData, ShapeData
from fgnn.tasks.points import Loaded, PointTask, allowed_classes, evaluate_points, part_mask, partial_loss
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule
from fgnn.train.run import run
from tests.data.test_shapenet import as_hdf5


def recipe(data: Data, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "points", "points": PointConfig("pointnet"), "optimiser": Optimiser("adam", 1e-3),
        "schedule": Schedule("constant"), "batch": 4, "steps": 6, "log_every": 2, "checkpoint_every": 2,
    }  # fmt: skip
    return Recipe(data=data, **(settings | changes))


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    for seed in range(3):
        write_cloud(make_terrain(2500, seed=seed), folder / f"area{seed}.laz")
    (folder / "classes.txt").write_text("ground: 2\nother: 5 6  # vegetation and buildings\n")
    return folder


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    as_hdf5(make_shapes(10, points=64, seed=0), folder)
    return folder


@pytest.mark.parametrize("architecture", ["fgnn", "hierarchical", "pointnet", "dgcnn"])
def test_shapes_train_and_are_selected_by_instance_miou(
    shapes: Path, tmp_path: Path, architecture: PointArchitecture
) -> None:
    settings = recipe(
        Data(shapes=ShapeData(str(shapes), points=64)),
        points=PointConfig(architecture, k=8, samples=(32, 16, 12)),
        steps=4,
    )
    state, folder = run(settings, tmp_path / "run", device="cpu")
    assert state.metrics is not None
    assert state.best == state.metrics["instance_miou"]
    assert 0 <= state.metrics["class_miou"] <= 1
    assert {"accuracy", "validation_accuracy", "validation_instance_miou"} <= folder.lines()[-1].keys()
    assert not any("agreement" in key for key in folder.lines()[-1])  # accuracy and mIoU under their own names
    assert (folder.path / "best.safetensors").is_file()


def test_rooms_train_on_the_other_areas(tmp_path: Path) -> None:
    rooms = [make_room(f"Area_{a}_office_1", seed=a, density=60) for a in (1, 2)]
    blocks = cut_rooms(rooms, 1.0, points=128, fewest=20)
    save_blocks(blocks, tmp_path / "h5")
    task = PointTask(recipe(Data(rooms=RoomData(str(tmp_path / "h5"), area=2))))
    assert len(task.train) + len(task.held_out) == len(blocks.room)
    assert task.train.features.shape[2] == 9
    loss = task.loss(task.network, task.batch(0))
    assert torch.isfinite(loss.loss)


def test_an_epoch_visits_every_cloud_once_in_a_new_order(shapes: Path) -> None:
    task = PointTask(recipe(Data(shapes=ShapeData(str(shapes), points=64)), batch=5))
    assert task.epoch_steps == 2
    epochs = [torch.cat([task.batch(2 * e + s).features[:, 0, 0] for s in range(2)]) for e in range(2)]
    assert torch.equal(epochs[0].sort().values, epochs[1].sort().values)
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(task.batch(3).features, task.batch(3).features)


def test_augmentation_moves_points_and_keeps_labels(shapes: Path) -> None:
    plain, moved = (
        PointTask(recipe(Data(shapes=ShapeData(str(shapes), points=64)), augment=a)).batch(1) for a in (False, True)
    )
    assert torch.equal(plain.label, moved.label)
    assert not torch.allclose(plain.features, moved.features)


def test_unlabelled_points_neither_train_nor_score(scans: Path) -> None:
    task = PointTask(recipe(Data(scans=ScanData(str(scans), field="classification", points=256, size=30.0))))
    batch = task.batch(0)
    task.network.eval()
    hidden = PointSet(batch.features, batch.label.clone(), batch.category)
    hidden.label[:, ::2] = IGNORE
    shifted = PointSet(batch.features, batch.label.clone(), batch.category)
    shifted.label[:, ::2] = IGNORE
    a, b = task.loss(task.network, hidden), task.loss(task.network, shifted)
    assert float(a.loss.detach()) == float(b.loss.detach())
    everything = PointSet(batch.features, torch.full_like(batch.label, IGNORE), batch.category)
    assert evaluate_points(task.network, everything, task.loaded)["loss"] == 0.0


def test_training_pieces_equal_those_of_segmentation(scans: Path) -> None:
    classes = Classes.read(scans / "classes.txt")
    pieces = scan_pieces(scans / "area0.laz", classes, "classification", Cut(20.0, points=128, scale=10.0))
    assert pieces.features.shape[1:] == (128, 3)
    assert float(pieces.features[..., :2].abs().max()) <= 1.0 + 1e-5  # half a tile over the scale
    assert float(pieces.features[..., 2].min()) >= 0
    assert set(pieces.label.unique().tolist()) <= {IGNORE, 0, 1}  # padding is ignored


def test_scans_from_folder_to_labelled_file(scans: Path, tmp_path: Path) -> None:
    data = Data(scans=ScanData(str(scans), field="classification", points=128, size=20.0, held_out=("area2.laz",)))
    state, folder = run(recipe(data, steps=60, log_every=20, checkpoint_every=20), tmp_path / "run", device="cpu")
    assert state.metrics is not None
    assert "iou ground" in state.metrics
    command = [
        sys.executable, "-m", "fgnn", "segment", str(scans / "area2.laz"), "--model", str(folder.path),
        "--out", str(tmp_path / "out.laz"), "--html", str(tmp_path / "out.html"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "2,500 points" in done.stdout
    labelled = read_cloud(tmp_path / "out.laz")
    truth = read_cloud(scans / "area2.laz").fields["classification"]
    ground = truth == 2
    agree = (labelled.fields["label"] == np.where(ground, 0, 1)).mean()
    assert agree > max(ground.mean(), 1 - ground.mean()) - 0.05  # it learned something, in seconds
    assert (tmp_path / "out.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ground\n", "Expected two or more classes"),
        ("a: x\nb\n", "line 1"),
        ("a: 1\nb: 1\n", "got 1 twice"),
    ],
)
def test_a_wrong_classes_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        Classes.read(tmp_path / "classes.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"field": "nothing"}, "Expected a field 'nothing' with labels"),
        ({"held_out": ("area9.laz",)}, "got 'area9.laz'"),
        ({"root": "no/such/folder"}, "no such folder"),
    ],
)
def test_wrong_scan_data_is_one_line(scans: Path, change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"root": str(scans), "field": "classification", "points": 64} | change
    with pytest.raises(InputError, match=message):
        PointTask(recipe(Data(scans=ScanData(**settings))))


def test_the_mask_leaves_each_category_its_parts() -> None:
    mask = part_mask(PARTS, 50, torch.device("cpu"))
    assert (mask == 0).sum(1).tolist() == [len(p) for p in PARTS]


def test_a_class_without_points_is_named(scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "scans"
    shutil.copytree(scans, folder)
    (folder / "classes.txt").write_text("ground: 2\nother: 5 6\nwater: 9\n")
    PointTask(recipe(Data(scans=ScanData(str(folder), field="classification", points=128))))
    lines = capsys.readouterr()
    assert "no points of class 'water'" in lines.out + lines.err
    assert "'other'" not in lines.out + lines.err


def test_a_label_may_leave_several_classes_open(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("ground: 2\ntree: 5\nhouse: 6\ntree | house: 1\n")
    classes = Classes.read(tmp_path / "classes.txt")
    assert classes.names == ("ground", "tree", "house")
    assert classes.of(np.array([2, 5, 6, 1, 9])).tolist() == [0, 1, 2, 3, IGNORE]
    assert classes.allowed()[3].tolist() == [False, True, True]
    (tmp_path / "classes.txt").write_text("ground: 2\ntree: 5\ntree | rock: 1\n")
    with pytest.raises(InputError, match=r"line 3.*rock"):
        Classes.read(tmp_path / "classes.txt")


def test_partial_labels_are_scored_by_the_probability_of_what_they_allow() -> None:
    empty = PointSet(torch.zeros(0, 8, 3), torch.zeros(0, 8), torch.zeros(0))
    allowed = allowed_classes(Loaded(empty, empty, ("a", "b", "c"), (), (), "scan: tile", ((1, 2),)))
    scores = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, 2, 0, IGNORE], [2, 2, 1, 0, 1]])
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(partial_loss(scores, target, allowed), expected)
    p = scores.softmax(-1)
    both = partial_loss(scores[:1, :1], torch.tensor([[3]]), allowed)
    torch.testing.assert_close(both, -(p[0, 0, 1] + p[0, 0, 2]).log())
