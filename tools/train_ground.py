"""A ground filter for airborne LiDAR, trained and tested by folds: `python -m tools.train_ground FOLDER OUT`.

Each fold holds out five of the fifteen ISPRS samples and trains on all other scans of the folder, so every sample is
filtered once by a network that never saw it. The network of the first fold is the one that ships.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fgnn.data.ground import FOLDS, SAMPLES
from fgnn.data.labelled import Classes, PointSet, concat_sets
from fgnn.data.scan_copies import scan_versions
from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points import read_cloud
from fgnn.points.metrics import GroundScore
from fgnn.runtime.devices import pick_device
from fgnn.runtime.progress import log_line
from fgnn.tasks import Recipe
from fgnn.tasks.ground_scores import NAME, filter_samples, mean_total
from fgnn.tasks.points import Loaded, PointTask
from fgnn.train import RunFolder, train
from fgnn.weights import load_weights, save_weights
from tools import jobs


class Folds:
    """The pieces of all scans of a folder, cut once for all folds."""

    def __init__(self, folder: str | Path, recipe: Recipe, only_samples: bool = False) -> None:
        self.folder, self.recipe = Path(folder), recipe
        data = recipe.data.scans
        assert data is not None
        self.classes = Classes.read(self.folder / data.classes)
        files = sorted(self.folder.glob("*.npz"))
        if only_samples:  # software labelled the public scans, by other rules than those of the samples
            files = [f for f in files if f.stem in SAMPLES]
        missing = sorted({n for fold in FOLDS for n in fold} - {f.stem for f in files})
        if missing:
            raise InputError(f"Expected {missing[0]}.npz, as `python -m tools.make_ground_data` makes it", file=folder)
        start = time.perf_counter()
        pieces = scan_versions(
            files, self.classes, data.field, data.cut(), copies=data.copies, stray=data.stray, seed=recipe.seed
        )
        self.pieces: dict[str, PointSet] = {f.stem: p for f, p in zip(files, pieces, strict=True)}
        count = sum(len(p) for p in pieces)
        log_line(f"{count:,} pieces of {len(files)} scans in {time.perf_counter() - start:.1f} s")

    def loaded(self, held_out: Sequence[str]) -> Loaded:
        """Return the training and held-out pieces of a fold."""
        data = self.recipe.data.scans
        assert data is not None
        train = concat_sets([p for name, p in self.pieces.items() if name not in held_out])
        files = [self.folder / f"{name}.npz" for name in held_out]
        held = concat_sets(scan_versions(files, self.classes, data.field, data.cut(), seed=self.recipe.seed))
        return Loaded(train, held, self.classes.names, (), (), "scan: tile")


def train_fold(folds: Folds, fold: int, out: Path, device: torch.device) -> dict[str, GroundScore]:
    """Train a fold, test it on its held-out samples, and write its weights to ``out`` with the results."""
    held = FOLDS[fold]
    data = folds.recipe.data.scans
    assert data is not None
    # the card names the folder, not its place on this machine
    scans = replace(data, root=folds.folder.name, held_out=tuple(f"{name}.npz" for name in held))
    recipe = replace(folds.recipe, data=replace(folds.recipe.data, scans=scans))
    folder = RunFolder(out / f"fold-{fold}")
    folder.begin(recipe, device)
    task = PointTask(recipe, device=device, loaded=folds.loaded(held))
    size = sum(p.numel() for p in task.network.parameters())
    log_line(f"fold {fold}: {len(task.train):,} pieces, {size:,} parameters")
    train(recipe, task, folder, device=device)
    clouds = {name: read_cloud(folds.folder / f"{name}.npz") for name in held}
    scores = filter_samples(folder.path / "last.safetensors", clouds, device, log_line, batch=32)
    log_line(f"fold {fold}: mean total error {100 * mean_total(scores):.2f} %")
    weights = load_weights(folder.path / "last.safetensors")
    card = dict(weights.card) | {"results": {name: asdict(s) for name, s in scores.items()}}
    save_weights(out / f"{NAME}-{fold}.safetensors", weights.tensors, card)
    return scores


def train_ground(
    folder: Annotated[Path, typer.Argument(help="Made by python -m tools.make_ground_data.")],
    out: Path,
    seconds: Annotated[float | None, typer.Option(help="For all folds together, without loading.")] = None,
    folds: Annotated[list[int] | None, typer.Option(help="Folds to train; all by default.")] = None,
    only_samples: Annotated[bool, typer.Option("--only-samples", help="Do not train on the public scans.")] = False,
    device: jobs.Device = "auto",
    changes: jobs.Changes = None,
) -> dict[str, Any]:
    """Train and test a ground filter by folds.

    ``ground.json`` holds the returned figures; ``lidar-ground.safetensors`` is the network of the first fold, with the
    figures of all folds on its card.
    """
    where, folds = pick_device(device), folds or list(range(len(FOLDS)))
    out.mkdir(parents=True, exist_ok=True)
    length = [] if seconds is None else [f"seconds={seconds / len(folds)}"]
    recipe = jobs.changed_recipe(NAME, NAME, [*length, *(changes or [])])
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        recipe = replace(recipe, precision="fp32")
    data = Folds(folder, recipe, only_samples)
    scores: dict[str, GroundScore] = {}
    for fold in folds:
        scores |= train_fold(data, fold, out, where)
    figures: dict[str, Any] = {
        "samples": {name: asdict(scores[name]) for name in sorted(scores)},
        "mean_total": mean_total(scores),
        "folds": {str(fold): list(FOLDS[fold]) for fold in folds},
    }
    with atomic_write(out / "ground.json") as file:
        json.dump(figures, file, indent=1)
    weights = load_weights(out / f"{NAME}-{folds[0]}.safetensors")
    card = dict(weights.card) | {"name": NAME, "cross_validation": figures}
    save_weights(out / f"{NAME}.safetensors", weights.tensors, card)
    log_line(f"{len(scores)} samples: mean total error {100 * figures['mean_total']:.2f} %")
    return figures


if __name__ == "__main__":
    typer.run(train_ground)
