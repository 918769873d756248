"""The commands that write files, each with a check that its result is complete."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fgnn.data.scenes import make_terrain
from fgnn.data.stored import load_models
from fgnn.models.points.config import PointConfig
from fgnn.points.cloud import read_cloud, write_cloud
from fgnn.tasks.data_settings import Data, ScanData
from fgnn.tasks.recipe import Optimiser, Recipe, Schedule, recipe_yaml
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.tasks.helpers import small_recipe

_POINTS = 600


@dataclass(frozen=True)
class Command:
    """A command, run in its own folder.

    Args:
        arguments: The arguments of `fgnn`.
        again: The arguments that finish an interrupted run; the same by default.
        prepare: Creates the inputs in the folder.
        outputs: The files it writes.
        check: Reads the outputs and fails if they are incomplete.
    """

    arguments: tuple[str, ...]
    prepare: Callable[[Path], None]
    outputs: tuple[str, ...]
    check: Callable[[Path], None]
    again: tuple[str, ...] = ()


def _create_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _scan(folder: Path) -> None:
    _create_folder(folder)
    write_cloud(make_terrain(_POINTS, seed=0), folder / "scan.ply")
    shutil.copyfile(_scan_weights(), folder / "network.safetensors")


@cache
def _scan_weights() -> Path:
    """A network for scans, trained for one step: its predictions do not matter here."""
    folder = Path(tempfile.mkdtemp(prefix="fgnn-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for seed in (1, 2):
        write_cloud(make_terrain(600, seed=seed), folder / f"area{seed}.ply")
    (folder / "classes.txt").write_text("ground: 2\nother: 5 6\n", encoding="utf-8")
    recipe = Recipe(
        name="scans",
        data=Data(scans=ScanData(str(folder), field="classification", points=128, size=30.0)),
        points=PointConfig("fgnn", k=4),
        optimiser=Optimiser("adam", 1e-3),
        schedule=Schedule("constant"),
        batch=2,
        steps=1,
        log_every=1,
    )
    run(recipe, folder / "run", device="cpu")
    return folder / "run" / "last.safetensors"


def _recipe(folder: Path) -> None:
    _create_folder(folder)
    text = recipe_yaml(small_recipe(steps=20, checkpoint_every=5, validate_every=10, validation=16))
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")


def _models(folder: Path) -> None:
    assert len(load_models(folder / "set").batch) == 200


def _labelled(folder: Path) -> None:
    cloud = read_cloud(folder / "out.ply")
    assert len(cloud) == _POINTS
    assert {"label", "confidence", "classification"} <= set(cloud.fields)
    for page in ("out.html", "out.report.html"):
        assert (folder / page).read_text(encoding="utf-8").rstrip().endswith("</html>")


def _table(folder: Path) -> None:
    assert json.loads((folder / "out" / "table1.json").read_text(encoding="utf-8"))["cells"]
    assert (folder / "out" / "table1.md").read_text(encoding="utf-8").startswith("# ")
    assert (folder / "out" / "table1.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


def _weights(folder: Path) -> None:
    for name in ("last", "best"):
        load_weights(folder / "run" / f"{name}.safetensors")


COMMANDS: dict[str, Command] = {
    "fgnn data chain": Command(
        ("data", "chain", "--count", "200", "--length", "12", "--window", "4", "--out", "set"),
        _create_folder,
        ("set/models.safetensors", "set/dataset.json"),
        _models,
    ),
    "fgnn segment": Command(
        (
            "segment",
            "scan.ply",
            "--model",
            "network.safetensors",
            "--out",
            "out.ply",
            "--html",
            "out.html",
            "--device",
            "cpu",
        ),
        _scan,
        ("out.ply", "out.html", "out.report.html"),
        _labelled,
    ),
    "fgnn reproduce": Command(
        ("reproduce", "table1", "--quick", "--count", "4", "--out", "out", "--device", "cpu"),
        _create_folder,
        ("out/table1.json", "out/table1.md", "out/table1.html"),
        _table,
    ),
    "fgnn train": Command(
        ("train", "recipe.yaml", "--out", "run", "--device", "cpu"),
        _recipe,
        ("run/last.safetensors", "run/best.safetensors"),
        _weights,
        again=("train", "run", "--resume", "--device", "cpu"),
    ),
}
