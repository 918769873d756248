"""An experiment: its setting, its files, and the cells of the MAP tables, methods on the same fresh instances."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fgnn.errors import MissingExtra
from fgnn.files import atomic_write
from fgnn.infer import solve
from fgnn.models import NetworkConfig, load_network
from fgnn.report import Page, Table
from fgnn.report.html import add_provenance
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Log
from fgnn.tasks import Data, Quality, Recipe, read_recipe
from fgnn.tasks.data_settings import ChainData
from fgnn.tasks.evaluate_map import Evaluation, evaluate_network
from fgnn.tasks.labelled_models import Examples
from fgnn.tasks.map import data_sets, draw_many
from fgnn.train.run import run
from fgnn.weights import find_weights, weight_names
from fgnn.weights.cards import weights_folder

Origin = Literal["measured", "recorded"]


@dataclass(frozen=True)
class Method:
    """A solver with its options; a slow one gets only the first ``most`` models."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None


# Undamped messages end in a cycle of three, so the answer depends on where it stops; the fourth repeats the first.
STOPS = (98, 99, 100, 101)
UNDAMPED = {"max-product, undamped": "standard", "max-product, as the paper prints it": "paper"}

METHODS: dict[str, Method] = {
    "exact": Method("exact"),
    "LP (HiGHS)": Method("lp", most=500),
    "AD3": Method("ad3", {"rounding": "argmax"}),
    "max-product, damped": Method("max-product", {"damping": 0.5}),
    **{
        f"{name}, {stop} iterations": Method("max-product", {"damping": 0.0, "iterations": stop, "variant": variant})
        for name, variant in UNDAMPED.items()
        for stop in STOPS
    },
    "AD3, branch & bound": Method("ad3", {"branch_and_bound": True}, most=200),
}


@dataclass(frozen=True)
class Cell:
    """A method on one kind of data; ``recorded`` if the numbers are those of an earlier run.

    ``note`` says what the numbers lack, such as the epochs of a training that was cut short.
    """

    method: str
    kind: int
    quality: Quality
    ms: float
    origin: Origin = "measured"
    note: str = ""

    @property
    def label(self) -> str:
        """The method with its note, and a star if its numbers are recorded."""
        return self.method + (f", {self.note}" if self.note else "") + ("*" if self.origin == "recorded" else "")


@dataclass(frozen=True)
class Setting:
    """What an experiment runs on, and how."""

    window: int = 8
    instances: int = 10_000
    quick: bool = False
    seed: int = 0
    device: str = "cpu"
    compile: bool = False
    runs: Path = Path("runs/reproduce")
    data: str | None = None
    run: str | None = None

    @property
    def shape_runs(self) -> Path:
        """Runs of networks on shapes."""
        return self.runs.parent / "shapes"

    @property
    def room_runs(self) -> Path:
        """Runs of networks on rooms, by fold."""
        return self.runs.parent / "rooms"


@dataclass(frozen=True, eq=False)
class Output:
    """The results of an experiment: its numbers, tables and page."""

    name: str
    setting: Setting
    cells: Sequence[Any]  # dataclasses
    tables: Sequence[Table]
    page: Page
    seconds: float


def write_outputs(output: Output, out: str | Path) -> Output:
    """Write ``NAME.json``, ``NAME.md`` and ``NAME.html`` to a folder; return the output."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    setting = asdict(output.setting) | {"runs": str(output.setting.runs)}
    here = environment(output.setting.device)
    values = {
        "experiment": output.name,
        "setting": setting,
        "cells": [asdict(cell) for cell in output.cells],
        "seconds": output.seconds,
        "environment": here,
    }
    with atomic_write(folder / f"{output.name}.json") as file:
        json.dump(values, file, indent=1)
    with atomic_write(folder / f"{output.name}.md") as file:
        file.write(f"# {output.page.title}\n\n`{here['command']}`, {output.seconds:.0f} s\n\n")
        file.write("\n".join(table.markdown() for table in output.tables))
    seeds, settings = {"test instances": output.setting.seed}, setting | {"seconds": output.seconds}
    add_provenance(output.page, command=here["command"], seeds=seeds, environment=here, **settings)
    output.page.write(folder / f"{output.name}.html")
    return output


def fresh_set(setting: Setting, kind: int) -> Examples:
    """Draw fresh instances of one kind, exactly labelled; their seeds are never trained on."""
    data = Data(chain=ChainData((kind,), window=setting.window))
    return draw_many(data_sets(data), setting.instances, setting.seed, "test", torch.device(setting.device))


def solver_cells(
    setting: Setting, kind: int, examples: Examples, methods: Mapping[str, Method], log: Log
) -> list[Cell]:
    """Run the solvers; skip those whose package is not installed."""
    cells = []
    for name, method in methods.items():
        some = examples if method.most is None else examples.select(slice(0, method.most))
        log(f"kind {kind}: {name}, {len(some)} instances")
        start = time.perf_counter()
        try:
            solved = solve(some.models, method.method, seed=setting.seed, **method.options)
        except MissingExtra as error:
            log(f"kind {kind}: {name} left out: {error}")
            continue
        ms = 1e3 * (time.perf_counter() - start) / len(some)
        cells.append(Cell(name, kind, Quality.of(some.models, solved.assignment, some.labels), ms))
    return cells


def network_cells(
    setting: Setting, name: str, label: str, kind: int, examples: Examples, recipe: Callable[[], Recipe], log: Log
) -> list[Cell]:
    """Evaluate a network, raw and decoded: packaged weights in a quick run (else the record), else trained now."""
    place = _weights(setting, name, recipe, log)
    if place is None:
        cells = recorded_cells(name, label, kind)
        if not cells:
            log(f"kind {kind}: {label} left out: no weights and no record of {name}; run without --quick to train it")
        return cells
    network, _ = load_network(place, setting.device)
    log(f"kind {kind}: {label}, {len(examples)} instances")
    return evaluation_cells(label, kind, evaluate_network(network, examples))


def evaluation_cells(
    label: str, kind: int, result: Evaluation, origin: Origin = "measured", note: str = ""
) -> list[Cell]:
    """Return the cells of the raw and of the decoded answer."""
    return [
        Cell(label, kind, result.raw, result.raw_ms, origin, note),
        Cell(f"{label} + decode", kind, result.decoded, result.decoded_ms, origin, note),
    ]


def _weights(setting: Setting, name: str, recipe: Callable[[], Recipe], log: Log) -> Path | None:
    if setting.quick:
        # the deep network of all kinds stands in for one of a single kind
        names = [name, "deep-map-joint"] if name.startswith("deep-map") else [name]
        return next((find_weights(n) for n in names if n in weight_names()), None)
    folder = setting.runs / name
    if not is_trained(folder):
        log(f"training {name}")
        train_run(replace(recipe(), name=name), folder, setting)
    return folder


def is_trained(folder: Path) -> bool:
    """True if `train_run` has finished a run."""
    return (folder / "done").is_file()


def train_run(recipe: Recipe, folder: Path, setting: Setting) -> None:
    """Train a run, or continue it, and mark it when it is finished."""
    started = (folder / "config.yaml").is_file()
    what = folder if started else recipe
    state, _ = run(what, folder, device=setting.device, compile=setting.compile, resume=started)
    if state.finished:
        (folder / "done").touch()


def records() -> dict[str, Any]:
    """Return the results of networks whose weights are not packaged, by name."""
    path = weights_folder() / "records.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return loaded


def recorded_cells(name: str, label: str, kind: int) -> list[Cell]:
    """Return the cells of a network whose weights are not packaged, from its record; none without one."""
    record = records().get(name, {})
    result = record.get("results", {}).get(f"kind {kind}")
    if result is None:
        return []
    raw, decoded = Quality(**result["raw"]), Quality(**result["decoded"])
    evaluation = Evaluation(raw, decoded, result["raw_ms"], result["decoded_ms"])
    return evaluation_cells(label, kind, evaluation, "recorded", missing_epochs(record))


def missing_epochs(record: Mapping[str, Any]) -> str:
    """Return ``41 of 50 epochs`` for a record whose training was cut short, else nothing."""
    planned, instances = record.get("recipe", {}).get("epochs"), record.get("data", {}).get("instances")
    if not planned or not instances:
        return ""
    # an epoch leaves out the instances that do not fill a batch
    steps = planned * (instances // record["recipe"]["batch"])
    return "" if record["steps"] >= steps else f"{planned * record['steps'] / steps:.0f} of {planned} epochs"


def quick_methods(quick: bool) -> dict[str, Method]:
    """Return the solvers of the table; a quick run gives slow ones fewer instances and skips the slowest."""
    if not quick:
        return METHODS
    fewer = {"LP (HiGHS)": replace(METHODS["LP (HiGHS)"], most=300), "AD3": replace(METHODS["AD3"], most=100)}
    return {name: fewer.get(name, method) for name, method in METHODS.items() if name != "AD3, branch & bound"}


def paper_recipe(kind: int, window: int, network: NetworkConfig | None = None, base: str = "paper-map") -> Recipe:
    """Return the packaged recipe of a kind with another window or network."""
    recipe = read_recipe(f"{base}-{kind}")
    assert recipe.data.chain is not None
    chain = replace(recipe.data.chain, window=window)
    changed = replace(recipe, data=replace(recipe.data, chain=chain))
    return changed if network is None else replace(changed, network=network)


def cells_of(cells: Sequence[Cell], method: str) -> dict[int, Cell]:
    """Return the cells of a method by kind."""
    return {cell.kind: cell for cell in cells if cell.method == method}
