"""A run from beginning to end: what `fgnn train` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fgnn.errors import InputError
from fgnn.models.map.config import NetworkConfig
from fgnn.nn import NotationError
from fgnn.report.run_page import write_run_page
from fgnn.runtime.distributed import World, restarted
from fgnn.runtime.distributed import world as join_world
from fgnn.runtime.progress import ProgressBar
from fgnn.tasks.map import MAPTask
from fgnn.tasks.recipe import Data, Optimiser, Recipe, Schedule, read_recipe
from fgnn.tasks.scan_folder import is_scan_folder, scan_recipe
from fgnn.tasks.task import Task
from fgnn.train.loop import State, train
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights


def folder_recipe(folder: str | Path) -> Recipe:
    """The recipe for a folder of a person's own model files."""
    return Recipe(
        name=Path(folder).name or "models",
        data=Data(folder=str(folder)),
        network=NetworkConfig(architecture="FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - FGNN(N)", norm="layer"),
        optimiser=Optimiser(name="adamw", rate=2e-3, weight_decay=1e-4, clip=1.0),
        schedule=Schedule(name="cosine", warmup=20),
        batch=64,
        epochs=60,
        log_every=10,
        checkpoint_every=100,
    )


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
    """Train by a recipe (a file, a packaged name, a `Recipe`) or on a folder of model files or of labelled scans.

    Args:
        what: The recipe or the folder; a run's own folder with ``resume``.
        out: The run's folder; by default ``runs/NAME``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; under torchrun each process takes its own.
        compile: Compile the network's repeated blocks.
        resume: Go on from the folder's checkpoint, by the settings the run began with.
        time_budget: Seconds after which to stop with a checkpoint.
        changes: Other top-level settings than the recipe's (``seed=3``).
    """
    recipe, folder = prepare(what, out, resume, changes)
    resume = resume or (restarted() and folder.config.is_file())
    with join_world(device) as (world, here):
        if here.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if resume:
            recipe = folder.recipe()
        elif world.first:
            folder.check_new()
        task = make_task(recipe, world, here)
        if recipe.start_from is not None and not resume:
            start_from(task.network, recipe.start_from)
        if world.first and not resume:
            folder.begin(recipe, here)  # not before the data was read: a mistake there leaves no run behind
            ProgressBar(recipe.name).log(
                f"{sum(p.numel() for p in task.network.parameters()):,} parameters, {here}, to {folder.path}"
            )
        state = train(
            recipe,
            task,
            folder,
            world=world,
            device=here,
            compile=compile,
            resume=resume,
            time_budget=time_budget,
            tensorboard=tensorboard,
            on_log=on_log,
        )
        if world.first and folder.lines():
            write_run_page(folder.path)
    return state, folder


def make_task(recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> Task:
    """Point clouds where the recipe names some, graphical models else."""
    if recipe.data.clouds:
        from fgnn.tasks.points import PointTask

        return PointTask(recipe, world, device)
    try:
        return MAPTask(recipe, world, device)
    except NotationError as error:
        raise InputError(str(error), place="network.architecture") from error


def prepare(
    what: str | Path | Recipe, out: str | Path | None, resume: bool, changes: dict[str, Any]
) -> tuple[Recipe, RunFolder]:
    """The recipe, and the folder the run goes to."""
    if isinstance(what, Recipe):
        recipe = what
    elif Path(what).is_dir():
        own = RunFolder(what)
        if own.config.is_file():
            if not resume:
                raise InputError("this folder holds a run; go on with --resume", file=what)
            return own.recipe(), own
        recipe = scan_recipe(what) if is_scan_folder(what) else folder_recipe(what)
    else:
        recipe = read_recipe(what)
    if changes:
        recipe = recipe.with_changes(**changes)
    return recipe, RunFolder(out if out is not None else Path("runs") / recipe.name)


def start_from(network: nn.Module, place: str) -> None:
    """Begin with other weights than fresh ones; those of the same names and shapes are taken."""
    tensors = load_weights(place).tensors
    own = network.state_dict()
    fitting = {n: t for n, t in tensors.items() if n in own and own[n].shape == t.shape}
    if len(fitting) != len(own):
        missing = next(n for n in own if n not in fitting)
        raise InputError(f"Expected weights of the recipe's network (got none for {missing})", file=place)
    network.load_state_dict(fitting)
