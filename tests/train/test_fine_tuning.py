"""`fgnn train FOLDER --from WEIGHTS`: the same network and features for other classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn.data.scenes import make_terrain
from fgnn.errors import InputError
from fgnn.models import PointConfig
from fgnn.points import Cloud, write_cloud
from fgnn.tasks.data_settings import Data, ScanData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.scan_folder import scan_recipe
from fgnn.train.loop import rate_text
from fgnn.train.run import make_task, run, start_from
from fgnn.weights import load_weights

CLASSES = "ground: 2\ntree: 5\nhouse: 6\n"


def folder(path: Path, classes: str) -> Path:
    path.mkdir()
    for seed in range(2):
        cloud = make_terrain(1500, seed=seed)
        write_cloud(Cloud(cloud.xyz, {"classification": cloud.fields["classification"]}), path / f"{seed}.npz")
    (path / "classes.txt").write_text(classes)
    return path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step on three classes."""
    root = tmp_path_factory.mktemp("first")
    scans = ScanData(
        str(folder(root / "scans", CLASSES)), field="classification", size=20.0, points=128, scale=5.0, thin=0.5,
        shapes=(6,), heights=(3.0, 6.0), echoes=True,
    )  # fmt: skip
    points = PointConfig("pyramid", k=6, bases=2, widths=(8, 16), reach=0.3)
    recipe = Recipe(
        name="first", data=Data(scans=scans), points=points, batch=2, steps=1, log_every=1, checkpoint_every=1
    )
    _, where = run(recipe, root / "run", device="cpu")
    return where.path


def test_network_and_features_come_from_the_weights(tmp_path: Path, first: Path) -> None:
    recipe = scan_recipe(folder(tmp_path / "own", "house: 6\nground: 2\n"), str(first))
    assert recipe.data.scans is not None
    assert recipe.data.scans.thin == 0.5
    assert recipe.points.widths == (8, 16)
    assert recipe.validate_every > 0
    task = make_task(recipe)
    torch.manual_seed(1)
    start_from(task.network, str(first), ("house", "ground"))
    old, new = load_weights(first).tensors, task.network.state_dict()
    *body, weight, bias = new
    assert all(torch.equal(old[name], new[name]) for name in body)
    assert torch.equal(new[weight][0], old[weight][2])  # house, by name
    assert torch.equal(new[bias], old[bias][[2, 0]])


def test_it_trains_and_validates_as_it_goes(tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "own", "ground: 2\nhouse: 6\nlake: 9\n")
    changes = {"steps": 4, "log_every": 1, "checkpoint_every": 2, "validate_every": 2, "batch": 2}
    state, where = run(place, tmp_path / "run", device="cpu", begin_with=str(first), **changes)
    assert state.finished
    assert sum("validation_miou" in line for line in where.lines()) == 2
    assert "no points of class 'lake'" in "".join(capsys.readouterr())
    assert load_weights(where.path).card["began_with"]["name"] == "first"


def test_weights_of_another_network_are_refused(tmp_path: Path, first: Path) -> None:
    recipe = scan_recipe(folder(tmp_path / "own", CLASSES), str(first))
    task = make_task(replace(recipe, points=replace(recipe.points, widths=(8, 24))))
    with pytest.raises(InputError, match="Expected weights of the recipe's network"):
        start_from(task.network, str(first), ("ground", "tree", "house"))
    with pytest.raises(InputError, match="trained on scans"):
        scan_recipe(tmp_path / "own", "paper-map-1")


def test_outdoor_scans_get_heights_and_validation_by_default(tmp_path: Path) -> None:
    place = tmp_path / "wide"
    place.mkdir()
    rng = np.random.default_rng(0)
    for n in range(2):
        xyz = rng.uniform(0, 200, (5000, 3))
        write_cloud(Cloud(xyz, {"label": np.zeros(5000, np.uint8)}), place / f"{n}.npz")
    (place / "classes.txt").write_text("a\nb\n")
    recipe = scan_recipe(place)
    assert recipe.data.scans is not None
    assert len(recipe.data.scans.heights) == 4
    assert recipe.validate_every > 0


def test_slow_runs_do_not_stand_still() -> None:
    assert [rate_text(x) for x in (0.04321, 3.456, 99.0, 12345.6)] == ["0.0432/s", "3.46/s", "99/s", "12,346/s"]
