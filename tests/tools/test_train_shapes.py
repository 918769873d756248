"""Several networks trained on shapes under one protocol: results, resuming, learning."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from fgnn.data.labelled import from_shapes
from fgnn.data.scenes import make_shapes
from fgnn.data.shapenet import CATEGORIES, PARTS
from fgnn.errors import InputError
from fgnn.models.points.config import PointConfig
from fgnn.points.metrics import shape_score
from fgnn.tasks.data_settings import Data, ShapeData
from fgnn.tasks.points import PointTask
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule, read_recipe
from fgnn.tasks.shapes import label_shapes, score_shapes, split_shapes
from fgnn.tasks.variation import Variation, vary
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.data.test_shapenet import as_hdf5
from tools import train_shapes
from tools.ship import ship_shapes

SMALL = "Input - FGNN(32) - FC(64) - GlobalPooling - FC(N)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shapes")
    as_hdf5(make_shapes(8, points=64, seed=0), place)
    return place


def small(folder: Path, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "points": PointConfig("fgnn", k=8, bases=4, notation=SMALL),
        "optimiser": Optimiser("adamw", 5e-3), "schedule": Schedule("constant"), "batch": 8, "steps": 6,
        "log_every": 2, "checkpoint_every": 2,
    }  # fmt: skip
    return Recipe(data=Data(shapes=ShapeData(str(folder), points=64)), **(settings | changes))


# A few steps on a few small shapes; a test adds the number of steps.
TINY = ["log_every=1", "checkpoint_every=1", "batch=4", "data.shapes.points=64", "points.k=8"]
TINY += [f"points.notation={SMALL}"]


def train(words: list[str], folder: Path, out: Path, *changes: str, votes: int = 1) -> list[train_shapes.Outcome]:
    place = {"out": out / "out", "runs": out / "runs"}
    return train_shapes.train_shapes(words, str(folder), **place, device="cpu", votes=votes, changes=list(changes))


def test_jobs_write_weights_logs_and_scores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_shapes, "_LARGEST", 2 << 20)
    outcomes = train(["fgnn", "dgcnn"], folder, tmp_path, *TINY, "steps=3", votes=2)
    assert [o.error for o in outcomes] == ["", ""]
    assert all(o.finished and o.steps == 3 for o in outcomes)
    assert "voted, 2 passes: instance" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "shapes.json").read_text())
    protocols = [score["protocol"] for score in summary["jobs"][0]["scores"]]
    assert protocols == ["one pass", "one pass, argmax over all parts", "voted, 2 passes"]
    weights = load_weights(tmp_path / "out" / "shapes-fgnn.safetensors")
    assert weights.name == "shapes-fgnn"
    assert str(folder) not in json.dumps(dict(weights.card))
    assert not (tmp_path / "out" / "shapes-dgcnn.safetensors").exists()  # larger than was allowed
    log = (tmp_path / "out" / "shapes-log.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in log] == ["shapes-fgnn"] * 3 + ["shapes-dgcnn"] * 3


def test_results_become_weights_and_records(folder: Path, tmp_path: Path) -> None:
    outcomes = train(["fgnn", "dgcnn"], folder, tmp_path, *TINY, "steps=1")
    shipped = ship_shapes(tmp_path / "out", ["shapes-fgnn"], tmp_path / "package", "how it was made")
    assert shipped == ["shapes-fgnn"]
    weights = load_weights(tmp_path / "package" / "shapes-fgnn.safetensors")
    assert weights.card["results"] == outcomes[0].scores
    assert weights.card["command"] == "how it was made"
    records = json.loads((tmp_path / "package" / "records.json").read_text())
    assert list(records) == ["shapes-dgcnn"]
    assert records["shapes-dgcnn"]["results"][0]["instance"] == outcomes[1].scores[0]["instance"]
    with pytest.raises(InputError, match="shapes-pointnet"):
        ship_shapes(tmp_path / "out", ["shapes-pointnet"], tmp_path / "package")
    log = tmp_path / "out" / "shapes-log.jsonl"
    log.write_text(json.dumps({"run": "shapes-dgcnn", "seconds": 1e6}) + "\n")  # after several calls
    ship_shapes(tmp_path / "out", ["shapes-dgcnn"], tmp_path / "package", reduce=["shapes-fgnn"])
    records = json.loads((tmp_path / "package" / "records.json").read_text())
    assert records["shapes-fgnn"]["results"] == outcomes[0].scores
    assert load_weights(tmp_path / "package" / "shapes-dgcnn.safetensors").card["seconds"] == 1e6
    assert not list((tmp_path / "package").glob("shapes-fgnn.*"))
    with pytest.raises(InputError, match=r"shapes\.json"):
        ship_shapes(tmp_path, [])


def test_the_papers_protocol_scores_the_best_epoch_on_the_validation_list(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.2, 0.5, 0.3, 0.1])
    monkeypatch.setattr(PointTask, "validate", lambda *_: {"instance_miou": next(scores), "loss": 1.0})
    outcome = train(["paper"], folder, tmp_path, *TINY, "steps=4", "validate_every=1")[0]
    assert outcome.error == ""
    assert (outcome.selected, outcome.epochs) == (1.0, 2.0)  # two batches of 4 of the 8 shapes to train on
    scored = load_weights(tmp_path / "out" / "shapes-paper.safetensors")
    best = load_weights(tmp_path / "runs" / "shapes-paper" / "best.safetensors")
    assert scored.card["steps"] == best.card["steps"] == 2
    assert all(torch.equal(t, best.tensors[name].bfloat16().to(t.dtype)) for name, t in scored.tensors.items())
    ship_shapes(tmp_path / "out", [], tmp_path / "package")
    records = json.loads((tmp_path / "package" / "records.json").read_text())
    assert records["shapes-paper"]["selected"] == 1.0


def test_the_papers_recipe_validates_after_every_epoch_of_the_official_list() -> None:
    recipe = read_recipe("shapes-paper")
    assert recipe.data.shapes is not None
    assert recipe.data.shapes.splits == ("train",)
    assert recipe.validate_every == recipe.checkpoint_every == 12_137 // recipe.batch
    assert not recipe.augment
    assert recipe.label_smoothing == 0
    assert recipe.ema is None


def test_a_failing_job_does_not_stop_the_next(folder: Path, tmp_path: Path) -> None:
    more_neighbours_than_points = [*TINY[:3], "steps=1", "data.shapes.points=20", "points.k=30"]
    outcomes = train(["fgnn", "pointnet"], folder, tmp_path, *more_neighbours_than_points)
    assert "Expected more than 30 points" in outcomes[0].error
    assert outcomes[1].finished


def test_an_interrupted_run_ends_in_the_same_weights(folder: Path, tmp_path: Path) -> None:
    recipe = small(folder, augment=True, ema=0.9)
    run(recipe, tmp_path / "whole", device="cpu")
    state, _ = run(recipe, tmp_path / "cut", device="cpu", time_budget=0.0)
    assert state.step == 2
    run(tmp_path / "cut", device="cpu", resume=True)
    whole, cut = (load_weights(tmp_path / name / "last.safetensors").tensors for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_second_run_counts_the_epochs_of_the_first(folder: Path, tmp_path: Path) -> None:
    first = train(["fgnn"], folder, tmp_path / "one", *TINY, "steps=2")
    weights = tmp_path / "one" / "out" / "shapes-fgnn.safetensors"
    second = train(["fgnn"], folder, tmp_path / "two", *TINY, "steps=2", f"start_from={weights}")
    assert [o.error for o in (*first, *second)] == ["", ""]
    assert second[0].epochs == 2 * first[0].epochs == 1.0  # of the 16 shapes of both lists


def test_eight_shapes_are_memorised(folder: Path, tmp_path: Path) -> None:
    state, _ = run(small(folder, steps=60, log_every=20, checkpoint_every=60), tmp_path / "run", device="cpu")
    assert state.metrics is not None
    assert state.metrics["instance_miou"] > 0.9  # they are held out too in this folder


def test_scores_match_the_labels(folder: Path) -> None:
    task = PointTask(small(folder))
    shapes = split_shapes(str(folder), "test")
    clouds = from_shapes(shapes, 64)
    tables = score_shapes(task.network, shapes, 64)
    guess, free = label_shapes(task.network, clouds)
    truth = clouds.label.numpy()
    kinds = clouds.category.tolist()
    wanted = shape_score([(k, t, g) for k, t, g in zip(kinds, truth, guess, strict=True)], CATEGORIES, PARTS)
    assert tables[0].instance == wanted.instance
    assert (free != guess).any()  # an untrained network does not keep to the category's parts
    some = shapes.select(np.arange(0, len(shapes), 2))  # as if these had been trained on
    rest = score_shapes(task.network, shapes, 64, [some])[1]
    assert rest.protocol == "one pass, without shapes also trained on"
    fresh = [(kinds[s], truth[s], guess[s]) for s in range(1, len(shapes), 2)]
    assert (rest.shapes, rest.instance) == (len(fresh), shape_score(fresh, CATEGORIES, PARTS).instance)
    own = [set(PARTS[k]) for k in kinds]
    assert all(set(g.tolist()) <= parts for g, parts in zip(guess, own, strict=True))


def test_varied_shapes_are_scaled_shifted_and_mirrored() -> None:
    x = torch.rand(2, 5, 3) - 0.5
    still = torch.tensor([4 / 9, 4 / 9, 4 / 9, 0.5, 0.5, 0.5, 0.9])  # scale 1, no shift, not mirrored
    mirrored = torch.tensor([4 / 9, 4 / 9, 4 / 9, 0.5, 0.5, 0.5, 0.1])
    out = vary(x, torch.stack([still, mirrored]))
    torch.testing.assert_close(out[0], x[0])
    torch.testing.assert_close(out[1], x[1] * torch.tensor([1.0, 1.0, -1.0]))


def test_a_recipe_says_how_shapes_vary(folder: Path) -> None:
    still = Variation(scale=(1.0, 1.0), shift=0.0, mirror=False)
    task = PointTask(small(folder, augment=True, variation=still))
    plain = PointTask(small(folder)).batch(1).features
    torch.testing.assert_close(task.batch(1).features, plain)
    jittered = PointTask(small(folder, augment=True, variation=replace(still, jitter=0.01))).batch(1).features
    moved = jittered - plain
    assert float(moved.abs().max()) <= 0.05 + 1e-6
    assert float(moved.std()) == pytest.approx(0.01, rel=0.1)
    with pytest.raises(ValueError, match=r"got \[1.2, 0.8\]"):
        Variation(scale=(1.2, 0.8))


@pytest.mark.parametrize("name", ["fgnn", "dgcnn", "pointnet", "pointcnn"])
def test_the_four_recipes_differ_only_in_the_network(name: str) -> None:
    mine, other = read_recipe(f"shapes-{name}"), read_recipe("shapes-fgnn")
    assert mine.points.architecture == name
    same = ("data", "optimiser", "schedule", "batch", "epochs", "precision", "ema", "augment", "label_smoothing")
    assert all(getattr(mine, part) == getattr(other, part) for part in same)


def test_the_scripts_parse_their_arguments() -> None:
    for script in ("learning_curves", "make_aerial_data", "ship", "sweep", "train_aerial", "train_shapes"):
        main = getattr(import_module(f"tools.{script}"), script if script.startswith("train") else "main")
        app = typer.Typer()
        app.command()(main)
        assert CliRunner().invoke(app, ["--help"]).exit_code == 0
