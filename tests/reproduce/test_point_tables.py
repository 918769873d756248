"""The paper's point-cloud tables, and `fgnn evaluate` for point networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from fgnn.cli import build_app
from fgnn.data.s3dis import CLASSES, Room, save_room
from fgnn.data.scenes import make_room, make_shapes, make_terrain
from fgnn.data.shapenet import CATEGORIES
from fgnn.errors import InputError
from fgnn.models.points.config import PointConfig
from fgnn.points.blocks import sampled_blocks
from fgnn.points.cloud import write_cloud
from fgnn.points.metrics import scene_score
from fgnn.reproduce import table2
from fgnn.reproduce.experiment import Setting
from fgnn.reproduce.paper import NAMES, TABLE2, TABLE3
from fgnn.reproduce.table2 import reproduce_table2
from fgnn.reproduce.table3 import (
    ShapeRow,
    difference_table,
    label_of,
    main_table,
    recorded_rows,
    reproduce_table3,
)
from fgnn.tasks.data_settings import Data, RoomData, ScanData, ShapeData
from fgnn.tasks.evaluate_points import evaluate_point_weights
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule, read_recipe
from fgnn.tasks.room_scores import PROTOCOLS, Label, Protocol, score_rooms
from fgnn.tasks.shapes import ShapeTable, draw_shapes
from fgnn.train.run import run
from tests.data.test_shapenet import as_hdf5

SMALL = "Input - FGNN(16) - FC(32) - GlobalPooling - FC(N)"


def silent(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    as_hdf5(make_shapes(12, points=64, seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def shape_run(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(
        data=Data(shapes=ShapeData(str(shapes), points=64)), points=PointConfig(k=8, bases=4, notation=SMALL),
        optimiser=Optimiser("adam", 3e-3), schedule=Schedule("constant"), batch=6, steps=4, log_every=2,
        checkpoint_every=4,
    )  # fmt: skip
    _, folder = run(recipe, tmp_path_factory.mktemp("run") / "shapes", device="cpu")
    return folder.path


@pytest.fixture(scope="module")
def rooms() -> list[Room]:
    """A corner of each of two rooms."""
    whole = [make_room(f"Area_{area}_office_1", seed=area, density=60) for area in (1, 5)]
    corners = [(room, (room.xyz[:, :2] < 1.7).all(1)) for room in whole]
    return [Room(room.name, room.xyz[k], room.rgb[k], room.label[k]) for room, k in corners]


def test_the_printed_tables_have_a_number_for_every_column() -> None:
    assert set(TABLE2) == set(TABLE3) == set(NAMES.values())
    assert all(len(row) == 1 + len(CATEGORIES) for row in TABLE3.values())
    assert all(len(row) == 2 + len(CLASSES) for row in TABLE2.values())
    # the printed means are those of the classes, to rounding
    assert abs(np.mean([v for v in TABLE2["FGNN"][2:] if v is not None]) - 60.0) < 0.1


def test_table3_shows_ours_beside_the_paper(shapes: Path, shape_run: Path, tmp_path: Path) -> None:
    setting = Setting(quick=True, data=str(shapes), run=str(shape_run), runs=tmp_path / "runs" / "reproduce")
    result = reproduce_table3(setting, tmp_path, silent)
    text = result.tables[0].text()
    assert "FGNN, ours" in text
    assert "FGNN, as the paper prints" in text
    assert "84.7" in text
    written = json.loads((tmp_path / "table3.json").read_text())
    assert {cell["table"]["protocol"] for cell in written["cells"]} >= {"one pass", "one pass, argmax over all parts"}
    assert "official test list" in (tmp_path / "table3.html").read_text()
    assert (tmp_path / "table3.md").read_text().startswith("# Parts of shapes")


def shape_row(name: str, **card: float | bool) -> ShapeRow:
    category = dict.fromkeys(CATEGORIES, 0.8) | {"Motorbike": 0.5}
    mean = sum(category.values()) / len(category)
    return ShapeRow(name, ShapeTable("one pass", 2874, 0.85, mean, 0.94, category), dict(card), "recorded")


def test_differences_to_the_paper_are_given_for_both_means_and_every_category() -> None:
    row = shape_row("fgnn", epochs=28.0)
    line = difference_table([row]).rows[0]
    head = list(difference_table([row]).heading)
    by_column = dict(zip(head, line, strict=True))
    assert by_column["instance mean"] == "+0.3"  # 85.0 against the printed 84.7
    paper = np.mean(TABLE3["FGNN"][1:])
    assert by_column["category mean"] == f"{100 * row.table.class_average - paper:+.1f}"
    assert by_column["Motor"] == "-20.6"
    printed = main_table([row]).rows[-1]
    assert printed[:3] == ["FGNN, as the paper prints", "84.7", f"{paper:.1f}"]


def test_a_training_that_was_cut_short_names_its_epochs_and_the_one_it_selected() -> None:
    cut = shape_row("paper", epochs=25.33, selected=21.0, finished=False)
    assert label_of(cut) == "FGNN, ours by the paper's protocol, 25.3 of 200 epochs, best 21.0*"
    assert label_of(shape_row("dgcnn", epochs=19.0, finished=True)) == "DGCNN, ours, 19.0 epochs*"


def test_the_recorded_rows_need_no_data() -> None:
    rows = recorded_rows()
    assert {"fgnn", "dgcnn", "pointnet"} <= {row.network for row in rows}
    assert all(row.origin == "recorded" for row in rows)


def test_table3_without_data_or_weights_says_what_to_do(shapes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data"):
        reproduce_table3(Setting(), tmp_path, silent)


def test_a_draw_has_the_categories_of_the_list_in_proportion() -> None:
    shapes = make_shapes(30, points=16, seed=1)
    rare = shapes.category == shapes.category[0]
    shapes = shapes.select(np.concatenate([np.flatnonzero(rare)[:1], np.repeat(np.flatnonzero(~rare), 20)]))
    draws = [draw_shapes(shapes, 100, seed) for seed in range(200)]
    assert {len(draw) for draw in draws} == {100}
    assert len(draw_shapes(shapes, 10**6)) == len(shapes)
    counts = np.sum([np.bincount(draw.category, minlength=16) for draw in draws], 0)
    share, wanted = counts / counts.sum(), np.bincount(shapes.category, minlength=16) / len(shapes)
    np.testing.assert_allclose(share, wanted, atol=0.01)


def truth_of(rooms: list[Room]) -> NDArray[np.int64]:
    return np.bincount(np.concatenate([r.label for r in rooms]), minlength=len(CLASSES))


def knowing(rooms: list[Room], wrong: int | None = None) -> Label:
    """Return a labeller that reads the class from the colour, which encodes it here."""

    def label(features: NDArray[np.float32]) -> NDArray[np.int64]:
        classes: NDArray[np.int64] = np.round(features[..., 3] * 20).astype(np.int64)
        return classes if wrong is None else np.full_like(classes, wrong)

    return label


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_perfect_labeller_scores_one_by_every_protocol(rooms: list[Room], protocol: Protocol) -> None:
    coded = [Room(r.name, r.xyz, np.repeat(r.label[:, None] / 20, 3, 1), r.label) for r in rooms]
    counts = score_rooms(knowing(coded), coded, protocol, points=128)
    score = scene_score(counts)
    assert score.accuracy == score.mean_iou == 1.0
    if protocol == "pn-sampled":
        blocks = sum(1 for r in coded for _ in sampled_blocks(r.xyz, r.rgb, r.label, 1.0, points=128))
        assert counts.sum() == 128 * blocks
    else:
        assert np.array_equal(counts.sum(1), truth_of(coded))  # every point of every room, once


def test_counts_are_pooled_over_rooms_before_iou(rooms: list[Room]) -> None:
    counts = score_rooms(knowing(rooms, wrong=12), rooms, "all-points", points=128)
    points = truth_of(rooms)
    score = scene_score(counts)
    assert score.iou[12] == points[12] / points.sum()
    assert score.accuracy == points[12] / points.sum()


def test_table2_runs_from_rooms_to_pages(rooms: list[Room], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in rooms:
        save_room(room, tmp_path)
    monkeypatch.setattr(table2, "_QUICK_STEPS", 2)
    monkeypatch.setattr(table2, "read_recipe", lambda name: _smaller(read_recipe(name)))
    setting = Setting(quick=True, data=str(tmp_path), runs=tmp_path / "runs" / "reproduce")
    result = reproduce_table2(setting, tmp_path / "out", silent, points=128)
    text = result.tables[0].text()
    assert "FGNN, ours, pn-sampled" in text
    assert "areas 1, 5" in text
    assert "60.0" in text
    assert result.tables[0].rows[-1] == ["PointNet (baseline), as the paper prints", "53.2", "20.1"]
    page = (tmp_path / "out" / "table2.html").read_text()
    assert "these numbers are not those of the benchmark" in page
    again = reproduce_table2(setting, tmp_path / "out", silent, points=128)  # nothing is trained again
    assert again.tables[0].text() == text


def _smaller(recipe: Recipe) -> Recipe:
    return recipe.with_changes(points=PointConfig(k=8, bases=4, notation=SMALL), precision="fp32", epochs=1)


def test_evaluate_prints_iou_by_category(shapes: Path, shape_run: Path) -> None:
    done = CliRunner().invoke(build_app(), ["evaluate", str(shape_run), "--device", "cpu", "--protocol", "voted"])
    assert done.exit_code == 0, done.output
    assert "instance mIoU" in done.output
    assert "voted, 10 passes" in done.output
    moved = CliRunner().invoke(
        build_app(), ["evaluate", str(shape_run), "--device", "cpu", "--data", str(shapes), "--json", "-n", "16"]
    )
    metrics = json.loads(moved.stdout)
    assert 0 <= metrics["one pass"]["instance mIoU"] <= 1


def test_evaluate_rooms_by_protocol(rooms: list[Room], tmp_path: Path) -> None:
    for room in rooms:
        save_room(room, tmp_path)
    blocks = tmp_path / "blocks"
    setting = Setting(quick=True, data=str(tmp_path), runs=tmp_path / "runs" / "reproduce")
    blocks = table2._blocks(setting, {r.area: [r] for r in rooms}, 128, silent)
    recipe = _smaller(read_recipe("rooms-fgnn")).with_changes(
        data=Data(rooms=RoomData(str(blocks), 5)), steps=1, batch=2, log_every=1, checkpoint_every=1
    )
    _, folder = run(recipe, blocks, device="cpu")
    metrics = evaluate_point_weights(folder.path, data=str(tmp_path), protocol="all-points", count=1)
    assert 0 <= metrics["all-points"]["mean IoU"] <= 1
    with pytest.raises(InputError, match="pn-sampled, all-points, voted"):
        evaluate_point_weights(folder.path, data=str(tmp_path), protocol="one-pass")


def test_evaluate_scores_scans_on_the_held_out_files(tmp_path: Path) -> None:
    for seed in range(2):
        write_cloud(make_terrain(1500, seed=seed), tmp_path / f"area{seed}.laz")
    (tmp_path / "classes.txt").write_text("ground: 2\nother: 5 6\n")
    scans = ScanData(str(tmp_path), field="classification", points=64, size=25.0)
    recipe = _smaller(read_recipe("rooms-fgnn")).with_changes(
        data=Data(scans=scans), steps=2, batch=2, log_every=1, checkpoint_every=2
    )
    state, folder = run(recipe, tmp_path / "run", device="cpu")
    tiles = evaluate_point_weights(folder.path / "last.safetensors")["tiles"]
    assert state.metrics is not None
    assert tiles["mean IoU"] == pytest.approx(state.metrics["miou"])
    assert set(tiles) == {"mean IoU", "accuracy", "ground", "other"}
    with pytest.raises(InputError, match="a protocol among tiles"):
        evaluate_point_weights(folder.path, protocol="voted")
    with pytest.raises(
        InputError, match=r"Expected --data, the folder of the test data \(trained from 'aerial', not found"
    ):
        evaluate_point_weights("lidar-aerial")


def test_evaluate_refuses_options_of_the_other_kind(shape_run: Path) -> None:
    chains = CliRunner().invoke(build_app(), ["evaluate", str(shape_run), "--kind", "1"])
    assert isinstance(chains.exception, InputError) or chains.exit_code == 2
