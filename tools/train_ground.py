"""A ground filter for airborne LiDAR, trained and tested by folds: `python -m tools.train_ground FOLDER OUT`.

Each fold holds out five of the fifteen ISPRS samples and trains on all other scans of the folder, so every sample is
filtered once by a network that never saw it. The network of the first fold is the one that ships.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fgnn.data.ground import FOLDS, SAMPLES
from fgnn.data.labelled import Classes, PointSet, concat_sets
from fgnn.data.scan_copies import scan_versions
from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import read_cloud
from fgnn.points.metrics import GroundScore
from fgnn.runtime.devices import pick_device
from fgnn.tasks.ground_scores import NAME, Say, filter_samples, mean_total
from fgnn.tasks.points import Loaded, PointTask
from fgnn.tasks.recipe import Recipe, read_recipe
from fgnn.train.loop import train
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights, save_weights


class Folds:
    """The pieces of all scans of a folder, made once for all folds."""

    def __init__(self, folder: str | Path, recipe: Recipe, say: Say, only_samples: bool = False) -> None:
        self.folder, self.recipe = Path(folder), recipe
        data = recipe.data.scans
        assert data is not None
        self.classes = Classes.read(self.folder / data.classes)
        files = sorted(self.folder.glob("*.npz"))
        if only_samples:  # the public scans were labelled by software, by other rules than the samples
            files = [f for f in files if f.stem in SAMPLES]
        missing = sorted({n for fold in FOLDS for n in fold} - {f.stem for f in files})
        if missing:
            raise InputError(f"Expected {missing[0]}.npz, as `python -m tools.make_ground_data` makes it", file=folder)
        start = time.perf_counter()
        made = scan_versions(
            files, self.classes, data.field, copies=data.copies, stray=data.stray, seed=recipe.seed, **data.cut()
        )
        self.pieces: dict[str, PointSet] = {f.stem: pieces for f, pieces in zip(files, made, strict=True)}
        count = sum(len(p) for p in made)
        say(f"{count:,} pieces of {len(files)} scans in {time.perf_counter() - start:.1f} s")

    def loaded(self, held_out: Sequence[str]) -> Loaded:
        """What one fold trains on and holds out."""
        data = self.recipe.data.scans
        assert data is not None
        train = concat_sets([p for name, p in self.pieces.items() if name not in held_out])
        files = [self.folder / f"{name}.npz" for name in held_out]
        held = concat_sets(scan_versions(files, self.classes, data.field, seed=self.recipe.seed, **data.cut()))
        return Loaded(train, held, self.classes.names, (), (), "scan: tile")


def train_fold(folds: Folds, fold: int, out: Path, device: torch.device, say: Say) -> dict[str, GroundScore]:
    """Train one fold, test it on the samples it held out, and leave its weights in ``out`` with the results."""
    held = FOLDS[fold]
    data = folds.recipe.data.scans
    assert data is not None
    # the card names the folder, not where it lay
    scans = replace(data, root=folds.folder.name, held_out=tuple(f"{name}.npz" for name in held))
    recipe = replace(folds.recipe, data=replace(folds.recipe.data, scans=scans))
    folder = RunFolder(out / f"fold-{fold}")
    folder.begin(recipe, device)
    task = PointTask(recipe, device=device, loaded=folds.loaded(held))
    say(f"fold {fold}: {len(task.train):,} pieces, {sum(p.numel() for p in task.network.parameters()):,} parameters")
    train(recipe, task, folder, device=device)
    clouds = {name: read_cloud(folds.folder / f"{name}.npz") for name in held}
    scores = filter_samples(folder.path / "last.safetensors", clouds, device, say, batch=32)
    say(f"fold {fold}: mean total error {100 * mean_total(scores):.2f} %")
    weights = load_weights(folder.path / "last.safetensors")
    card = dict(weights.card) | {"results": {name: asdict(s) for name, s in scores.items()}}
    save_weights(out / f"{NAME}-{fold}.safetensors", weights.tensors, card)
    return scores


def train_all(
    folder: str | Path, out: str | Path, *, seconds: float | None = None, steps: int | None = None,
    device: str = "auto", folds: Sequence[int] = (0, 1, 2), copies: int | None = None, batch: int | None = None,
    only_samples: bool = False, slopes: Sequence[float] | None = None, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """Train and test the folds; ``seconds`` is for all of them together, loading apart.

    Returns the figures, which ``ground.json`` holds; `lidar-ground.safetensors` is the first fold's network with the
    figures of all folds on its card.
    """
    where, target = pick_device(device), Path(out)
    target.mkdir(parents=True, exist_ok=True)
    recipe = read_recipe(NAME)
    scans = recipe.data.scans
    assert scans is not None
    scans = replace(
        scans,
        copies=scans.copies if copies is None else copies,
        slopes=scans.slopes if slopes is None else tuple(slopes),
    )
    recipe = replace(recipe, data=replace(recipe.data, scans=scans))
    if batch is not None:
        recipe = replace(recipe, batch=batch)
    if steps is not None:
        recipe = recipe.with_changes(steps=steps)
    elif seconds is not None:
        recipe = recipe.with_changes(seconds=seconds / len(folds))
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        recipe = replace(recipe, precision="fp32")
    made = Folds(folder, recipe, say, only_samples)
    scores: dict[str, GroundScore] = {}
    for fold in folds:
        scores |= train_fold(made, fold, target, where, say)
    figures: dict[str, Any] = {
        "samples": {name: asdict(scores[name]) for name in sorted(scores)},
        "mean_total": mean_total(scores),
        "folds": {str(fold): list(FOLDS[fold]) for fold in folds},
    }
    with atomic_write(target / "ground.json") as file:
        json.dump(figures, file, indent=1)
    weights = load_weights(target / f"{NAME}-{folds[0]}.safetensors")
    card = dict(weights.card) | {"name": NAME, "cross_validation": figures}
    save_weights(target / f"{NAME}.safetensors", weights.tensors, card)
    say(f"{len(scores)} samples: mean total error {100 * figures['mean_total']:.2f} %")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and test a ground filter by folds.")
    parser.add_argument("folder", help="made by python -m tools.make_ground_data")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, help="for all folds together, loading apart")
    parser.add_argument("--steps", type=int, help="steps of each fold instead of seconds")
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--copies", type=int)
    parser.add_argument("--batch", type=int, help="another than the recipe's; 2 suits a CPU")
    parser.add_argument("--only-samples", action="store_true", help="leave the public scans out of training")
    parser.add_argument("--slopes", type=float, nargs="*", help="another choice than the recipe's")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    train_all(
        given.folder, given.out, seconds=given.seconds, steps=given.steps, device=given.device, folds=given.folds,
        copies=given.copies, batch=given.batch, only_samples=given.only_samples, slopes=given.slopes,
        say=lambda text: print(text, flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    main()
