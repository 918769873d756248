"""A run from start to end: what `fgnn train` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fgnn.errors import InputError
from fgnn.nn import NotationError
from fgnn.report.run_page import write_run_page
from fgnn.runtime.distributed import World, restarted
from fgnn.runtime.distributed import world as join_world
from fgnn.runtime.progress import ProgressBar
from fgnn.tasks import Recipe, Task, read_recipe
from fgnn.tasks.map import MAPTask
from fgnn.tasks.model_folder import folder_recipe
from fgnn.tasks.points import PointTask
from fgnn.tasks.scan_folder import is_scan_folder, scan_recipe
from fgnn.train.checkpoint import State
from fgnn.train.loop import RunOptions, train
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights


def run(
    what: str | Path | Recipe,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    compile: bool = False,
    resume: bool = False,
    time_budget: float | None = None,
    tensorboard: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    **changes: Any,
) -> tuple[State, RunFolder]:
    """Train by a recipe (a file, a packaged name, a `Recipe`), or on a folder of model files or labelled scans.

    Args:
        what: The recipe or the folder; with ``resume`` also the folder of a run.
        out: The folder of the run; by default ``runs/NAME``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; under torchrun each process takes its own GPU.
        compile: Compile the repeated blocks of the network.
        resume: Continue from the folder's checkpoint, with the settings that the run began with.
        time_budget: Seconds after which to stop with a checkpoint.
        tensorboard: Also log for TensorBoard.
        on_log: Called with each line of metrics.
        changes: Top-level settings that replace the recipe's (``seed=3``).
    """
    recipe, folder = prepare(what, out, resume, changes)
    resume = resume or (restarted() and folder.config.is_file())
    with join_world(device) as (world, here):
        if here.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if resume:
            recipe = recipe_of(folder)
        elif world.first:
            folder.check_new()
        task = make_task(recipe, world, here)
        if recipe.start_from is not None and not (resume and folder.checkpoint.exists()):
            start_from(task.network, recipe.start_from)
        if world.first and not resume:
            folder.begin(recipe, here)  # after reading the data: a mistake there leaves no run behind
            size = sum(p.numel() for p in task.network.parameters())
            ProgressBar(recipe.name).log(f"{size:,} parameters, {here}, to {folder.path}")
        options = RunOptions(compile, resume, time_budget, tensorboard, on_log)
        state = train(recipe, task, folder, world=world, device=here, options=options)
        if world.first and folder.lines():
            write_run_page(folder.path)
    return state, folder


def make_task(recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> Task:
    """Return the task that the recipe's data calls for."""
    if recipe.data.clouds:
        return PointTask(recipe, world, device)
    try:
        return MAPTask(recipe, world, device)
    except NotationError as error:
        raise InputError(str(error), place="network.architecture") from error


def prepare(
    what: str | Path | Recipe, out: str | Path | None, resume: bool, changes: dict[str, Any]
) -> tuple[Recipe, RunFolder]:
    """Return the recipe and the folder of the run."""
    if isinstance(what, Recipe):
        recipe = what
    elif Path(what).is_dir():
        folder = RunFolder(what)
        if folder.config.is_file():
            if not resume:
                raise InputError("this folder holds a run; continue it with --resume", file=what)
            return recipe_of(folder), folder
        recipe = scan_recipe(what) if is_scan_folder(what) else folder_recipe(what)
    else:
        recipe = read_recipe(what)
    if changes:
        recipe = recipe.with_changes(**changes)
    return recipe, RunFolder(out if out is not None else Path("runs") / recipe.name)


def recipe_of(folder: RunFolder) -> Recipe:
    """Return the recipe that a run began with."""
    if not folder.config.is_file():
        raise InputError(
            "no run to resume in this folder (config.yaml is missing); begin one without --resume", file=folder.path
        )
    return read_recipe(folder.config)


def start_from(network: nn.Module, place: str) -> None:
    """Load other weights to begin with; every tensor of the network must be among them, by name and shape."""
    tensors = load_weights(place).tensors
    wanted = network.state_dict()
    fitting = {n: t for n, t in tensors.items() if n in wanted and wanted[n].shape == t.shape}
    if len(fitting) != len(wanted):
        missing = next(n for n in wanted if n not in fitting)
        raise InputError(f"Expected weights of the recipe's network (got none for {missing})", file=place)
    network.load_state_dict(fitting)
