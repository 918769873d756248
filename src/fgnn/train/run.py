"""A run from start to end: what `fgnn train` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.errors import InputError, need
from fgnn.nn import NotationError
from fgnn.report.run_page import make_run_page
from fgnn.runtime.distributed import World, restarted
from fgnn.runtime.distributed import world as join_world
from fgnn.runtime.progress import ProgressBar, Stages
from fgnn.schema import parse, show
from fgnn.tasks import Recipe, Task, plain, read_recipe
from fgnn.tasks.crf import CRFTask
from fgnn.tasks.data_digest import changes_in, data_digests
from fgnn.tasks.decoding import DecodingTask
from fgnn.tasks.map import MAPTask
from fgnn.tasks.model_folder import folder_recipe
from fgnn.tasks.points import PointTask
from fgnn.tasks.scan_folder import is_scan_folder, scan_recipe
from fgnn.tasks.settings import recipe_yaml
from fgnn.train.checkpoint import State, checkpoint_settings
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
    allow_changes: bool = False,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    begin_with: str | None = None,
    **changes: Any,
) -> tuple[State, RunFolder]:
    """Train by a recipe (a file, a packaged name, a `Recipe`), or on a folder of model files or labelled scans.

    Args:
        what: The recipe or the folder; with ``resume`` also the folder of a run.
        out: The folder of the run; by default ``runs/NAME``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; under torchrun each process takes its own GPU.
        compile: Compile the repeated blocks of the network.
        resume: Continue from the folder's checkpoint; other settings or data than the run began with are refused.
        time_budget: Seconds after which to stop with a checkpoint.
        tensorboard: Also log for TensorBoard.
        allow_changes: Resume with other settings or data.
        on_log: Called with each line of metrics.
        begin_with: Weights to begin with. A folder of scans takes the network and the features from them.
        changes: Top-level settings that replace the recipe's (``seed=3``).
    """
    if tensorboard:
        need("tensorboard")  # before the data are read and a folder is made
    recipe, folder = prepare(what, out, resume, changes, begin_with)
    resume = resume or (restarted() and folder.config.is_file())
    with join_world(device) as (world, here), folder.locked() if world.first else nullcontext():
        if here.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if resume:
            check_settings(recipe, folder, allow_changes)
        elif world.first:
            folder.check_new()
        with naming(what), Stages(recipe.name, quiet=not world.first) as stage:
            stage("reading and labelling the data")
            task = make_task(recipe, world, here)
        if recipe.start_from is not None and not (resume and folder.checkpoint.exists()):
            start_from(task.network, recipe.start_from, task.card().get("classes", ()))
        if world.first:
            prepare_folder(folder, recipe, task, here, resume, allow_changes)
        options = RunOptions(compile, resume, time_budget, tensorboard, on_log)
        try:
            state = train(recipe, task, folder, world=world, device=here, options=options)
        except BaseException:
            if world.first and not resume and not folder.metrics.exists():
                folder.discard()  # a start that failed must not block the next
            raise
        if world.first:
            write_page(folder, recipe)
            if isinstance(task, CRFTask):
                task.write(task.network, folder.path / "model.fgm")
    return state, folder


def write_page(folder: RunFolder, recipe: Recipe) -> None:
    """Write the page of a run from its files."""
    lines, environment = folder.lines(), folder.environment_values()
    if not lines:
        return
    try:
        page = make_run_page(folder.path.name, recipe_yaml(recipe), environment, lines, folder.path, recipe.seed)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:  # a file of another run, or altered
        raise InputError("Expected metrics that can be drawn (got something else)", file=folder.metrics) from error
    page.write(folder.path / "report.html")


def prepare_folder(
    folder: RunFolder, recipe: Recipe, task: Task, device: torch.device, resume: bool, allow_changes: bool
) -> None:
    """Begin the folder of a new run, or check that the data of a resumed one are those it began with."""
    data = data_digests(recipe, task)  # after reading the data: a mistake there leaves no run behind
    if not resume:
        folder.begin(recipe, device, data)
        size = sum(p.numel() for p in task.network.parameters())
        ProgressBar(recipe.name).log(f"{size:,} parameters, {device}, to {folder.path}")
        return
    before = folder.data_digests()
    changed = changes_in(before, data) if before is not None else []
    if changed and not allow_changes:
        raise InputError(
            f"the data changed since the run began: {_few(changed)}; --allow-changes continues with it",
            file=folder.path,
        )
    if allow_changes:
        folder.describe(recipe, data)


def check_settings(recipe: Recipe, folder: RunFolder, allow_changes: bool) -> None:
    """Refuse to resume a run with other settings than it was trained with."""
    if not folder.config.is_file():
        raise InputError(
            "no run to resume in this folder (config.yaml is missing); begin one without --resume", file=folder.path
        )
    stored = checkpoint_settings(folder.checkpoint)
    if stored is None or allow_changes:
        return
    began = parse(Recipe, stored, file=folder.checkpoint, place="recipe")
    changed = differences(plain(began), plain(recipe))
    if changed:
        raise InputError(
            f"the settings changed since the run began: {_few(changed)}; 'fgnn train {folder.path} --resume' continues "
            "a run whose config.yaml is unchanged; --allow-changes continues with the new settings",
            file=folder.path,
        )


def differences(before: Any, now: Any, place: str = "") -> list[str]:
    """Return the settings in which two recipes differ, each with both values.

    The location of the data does not count; their digests are compared separately.
    """
    if place.endswith((".root", ".folder")):
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys((*before, *now))
        return [d for k in keys for d in differences(before.get(k), now.get(k), f"{place}.{k}" if place else k)]
    return [] if before == now else [f"{place} was {show(before)} (got {show(now)})"]


def _few(changes: list[str], most: int = 3) -> str:
    more = f" and {len(changes) - most} more" if len(changes) > most else ""
    return ", ".join(changes[:most]) + more


@contextmanager
def naming(what: str | Path | Recipe) -> Iterator[None]:
    """Name the recipe in errors that only appear when the task is built, such as a wrong size of the network."""
    try:
        yield
    except ValueError as error:
        if isinstance(what, Recipe) or getattr(error, "file", None) is not None:
            raise
        raise InputError(str(error), file=what) from error


def make_task(recipe: Recipe, world: World | None = None, device: torch.device | str = "cpu") -> Task:
    """Return the task that the recipe's data calls for."""
    if recipe.data.samples is not None:
        return CRFTask(recipe, world, device)
    if recipe.data.codes is not None:
        return DecodingTask(recipe, world, device)
    if recipe.data.clouds:
        return PointTask(recipe, world, device)
    try:
        return MAPTask(recipe, world, device)
    except NotationError as error:
        raise InputError(str(error), place="network.architecture") from error


def prepare(
    what: str | Path | Recipe,
    out: str | Path | None,
    resume: bool,
    changes: dict[str, Any],
    begin_with: str | None = None,
) -> tuple[Recipe, RunFolder]:
    """Return the recipe and the folder of the run."""
    if isinstance(what, Recipe):
        recipe = what
    elif Path(what).is_dir():
        folder = RunFolder(what)
        if folder.config.is_file():
            if not resume:
                raise InputError("this folder holds a run; continue it with --resume", file=what)
            return recipe_of(folder).with_changes(**changes), folder
        recipe = scan_recipe(what, begin_with) if is_scan_folder(what) else folder_recipe(what)
    else:
        recipe = read_recipe(what)
    if begin_with is not None:
        changes = {"start_from": begin_with, **changes}
    if changes:
        recipe = recipe.with_changes(**changes)
    return recipe, RunFolder(out if out is not None else Path("runs") / recipe.name)


def recipe_of(folder: RunFolder) -> Recipe:
    """Return the recipe that a run began with."""
    return read_recipe(folder.config)


def start_from(network: nn.Module, place: str, classes: Sequence[str] = ()) -> None:
    """Load other weights to begin with; every tensor of the network must be among them, by name and shape.

    The last layer may have other classes: those of the same name keep their rows, the others begin anew.
    """
    weights = load_weights(place)
    wanted = network.state_dict()
    fitting = {n: t for n, t in weights.tensors.items() if n in wanted and wanted[n].shape == t.shape}
    old = [str(name) for name in weights.card.get("classes", ())]
    if classes and old and list(classes) != old:
        shared = [(k, old.index(name)) for k, name in enumerate(classes) if name in old]
        for name in last_layer(wanted, len(classes)):
            tensor = weights.tensors.get(name)
            if tensor is None or tensor.shape != (len(old), *wanted[name].shape[1:]):
                continue
            fitting[name] = wanted[name].clone()
            for new_row, old_row in shared:
                fitting[name][new_row] = tensor[old_row]
    if len(fitting) != len(wanted):
        missing = next(n for n in wanted if n not in fitting)
        raise InputError(f"Expected weights of the recipe's network (got none for {missing})", file=place)
    network.load_state_dict(fitting)


def last_layer(tensors: Mapping[str, Tensor], classes: int) -> list[str]:
    """Return the names of the last weight and bias if they have a row for each class."""
    return [name for name in list(tensors)[-2:] if tensors[name].shape[:1] == (classes,)]
