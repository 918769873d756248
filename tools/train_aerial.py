"""A classifier of airborne scans, and five more by folds to measure it: `python -m tools.train_aerial FOLDER OUT`.

Each fold holds out the scans of several regions and trains on all others, so every scan is labelled once by a network
that never saw its region. The network that ships is trained on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from fgnn.data.aerial import FOLDS
from fgnn.data.labelled import Classes, concat_sets
from fgnn.data.scan_copies import Version, make_versions
from fgnn.errors import InputError
from fgnn.runtime.devices import pick_device
from fgnn.runtime.progress import log_line
from fgnn.tasks import Recipe
from fgnn.tasks.points import Loaded, PointTask
from fgnn.train import RunFolder, train
from fgnn.train.loop import RunOptions
from tools import jobs

NAME = "lidar-aerial"
# Copies of a scan, however small.
_MOST_COPIES = 24
# Pieces of held-out scans that validation uses.
_VALIDATION = 256
# Share of a run's time that its steps are planned for; the rest is for compilation, validation and a slower pace.
_PLANNED = 0.8


class Pieces:
    """The pieces of all scans of a folder, cut once for all runs.

    Args:
        wanted: About as many pieces of each scan, from more altered copies of small scans.
        device: Where they are kept.
        only: Leave out scans whose names are not in it.
    """

    def __init__(
        self, folder: Path, recipe: Recipe, wanted: int, only: Sequence[str] = (), device: torch.device | str = "cpu"
    ) -> None:
        data = recipe.data.scans
        assert data is not None
        self.folder, self.recipe = folder, recipe
        self.classes = Classes.read(folder / data.classes)
        files = [f for f in sorted(folder.glob("*.npz")) if not only or f.stem in only]
        if not files:
            raise InputError("Expected scans, as `python -m tools.make_aerial_data` makes them", file=folder)
        start = time.perf_counter()
        first = [
            Version(str(f), self.classes, data.field, data.cut(), 0, data.stray, recipe.seed, data.sparsest, votes=1)
            for f in files
        ]
        plain = [pieces.to(device) for pieces in make_versions(first)]
        self.plain = dict(zip((f.stem for f in files), plain, strict=True))
        copies = [
            replace(version, copy=copy)
            for version, pieces in zip(first, self.plain.values(), strict=True)
            for copy in range(1, min(_MOST_COPIES, -(-wanted // max(1, len(pieces)))) + 1)
        ]
        self.pieces = {name: [pieces] for name, pieces in self.plain.items()}
        for version, pieces in zip(copies, make_versions(copies), strict=True):
            self.pieces[Path(version.file).stem].append(pieces.to(device))
        count = sum(len(p) for parts in self.pieces.values() for p in parts)
        log_line(f"{count:,} pieces of {len(files)} scans in {time.perf_counter() - start:.0f} s")

    def loaded(self, held_out: Sequence[str]) -> Loaded:
        """Training and held-out pieces; without names to hold out, some training pieces are scored."""
        names = list(held_out) or list(self.pieces)
        train = concat_sets([p for name, parts in self.pieces.items() if name not in held_out for p in parts])
        held = concat_sets([self.plain[name] for name in names if name in self.plain])
        chosen = torch.randperm(len(held), generator=torch.Generator().manual_seed(0))[:_VALIDATION]
        chosen = chosen.to(held.label.device)
        return Loaded(train, held.select(chosen), self.classes.names, (), (), "scan: tile", self.classes.either)


def train_one(pieces: Pieces, fold: int | None, out: Path, device: torch.device, seconds: float) -> None:
    """Train on everything, or without a fold, for so many seconds; continue where an earlier call stopped."""
    held = () if fold is None else FOLDS[fold]
    data = pieces.recipe.data.scans
    assert data is not None
    # the card names the folder, not its place on this machine
    scans = replace(data, root=pieces.folder.name, held_out=tuple(f"{name}.npz" for name in held))
    recipe = replace(
        pieces.recipe.with_changes(seconds=_PLANNED * seconds), data=replace(pieces.recipe.data, scans=scans)
    )
    folder = RunFolder(out / ("all" if fold is None else f"fold-{fold}"))
    resume = folder.checkpoint.is_file()
    if not resume:
        folder.config.unlink(missing_ok=True)
        folder.begin(recipe, device)
    task = PointTask(recipe, device=device, loaded=pieces.loaded(held))
    size = sum(p.numel() for p in task.network.parameters())
    log_line(f"{folder.path.name}: {len(task.train):,} pieces, {size:,} parameters, {seconds:.0f} s")
    state = train(recipe, task, folder, device=device, options=RunOptions(resume=resume, time_budget=seconds))
    log_line(f"{folder.path.name}: step {state.step}, {state.metrics}")


def train_aerial(
    folder: Annotated[Path, typer.Argument(help="Made by python -m tools.make_aerial_data.")],
    out: Path,
    seconds: Annotated[float, typer.Option(help="For cutting and all runs together.")] = 900,
    runs: Annotated[list[int] | None, typer.Option(help="Folds to train, -1 for all scans; all by default.")] = None,
    pieces: Annotated[int, typer.Option(help="Pieces of each scan, about.")] = 250,
    only: Annotated[list[str] | None, typer.Option(help="Only these scans.")] = None,
    device: jobs.Device = "auto",
    changes: jobs.Changes = None,
) -> None:
    """Train the network on all scans, then one for each fold; each run leaves ``last.safetensors`` in its folder."""
    start, where = time.monotonic(), pick_device(device)
    recipe = jobs.changed_recipe(NAME, NAME, changes or [])
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        recipe = replace(recipe, precision="fp32")
    data = Pieces(folder, recipe, pieces, only or (), where)
    order = [-1, *range(len(FOLDS))] if runs is None else runs
    for n, run in enumerate(order):
        left = seconds - (time.monotonic() - start)
        shares = len(order) - n + (run < 0)  # the network that ships trains twice as long
        outcome = jobs.Outcome("all" if run < 0 else f"fold-{run}")
        with jobs.attempt(outcome):
            train_one(data, None if run < 0 else run, out, where, left * (2 if run < 0 else 1) / shares)
        log_line(outcome.summary())


if __name__ == "__main__":
    typer.run(train_aerial)
