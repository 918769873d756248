"""Rows of the paper's MAP tables: networks and solvers on the same fresh instances."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fgnn.errors import MissingExtra
from fgnn.infer import solve
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.learned import load_network
from fgnn.tasks.evaluate_map import evaluate_network
from fgnn.tasks.labelled_models import Examples
from fgnn.tasks.map import data_sets, draw_many
from fgnn.tasks.metrics import Quality
from fgnn.tasks.recipe import ChainData, Data, Recipe, read_recipe
from fgnn.train.run import run
from fgnn.weights import find_weights, weight_names
from fgnn.weights.cards import weights_folder

Origin = Literal["measured", "recorded"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Method:
    """A solver with its options; a slow one sees the first ``most`` models only."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None


METHODS: dict[str, Method] = {
    "exact": Method("exact"),
    "LP (HiGHS)": Method("lp", most=500),
    "AD3": Method("ad3", {"rounding": "argmax"}),
    # Undamped messages end in a cycle of three; 100 iterations stop in the phase others have reported.
    "max-product, plain": Method("max-product", {"damping": 0.0, "iterations": 100}),
    "max-product, damped": Method("max-product", {"damping": 0.5}),
    "AD3, branch & bound": Method("ad3", {"branch_and_bound": True}, most=200),
}


@dataclass(frozen=True)
class Cell:
    """A method on one kind of data; recorded where the numbers are those of an earlier run, as its card tells."""

    method: str
    kind: int
    quality: Quality
    ms: float
    origin: Origin = "measured"

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """What an experiment is run on and how."""

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
        """Where networks on shapes were trained."""
        return self.runs.parent / "shapes"

    @property
    def room_runs(self) -> Path:
        """Where networks on rooms are trained, by fold."""
        return self.runs.parent / "rooms"


def fresh_set(setting: Setting, kind: int) -> Examples:
    """Fresh instances of one kind, labelled exactly; never seeds that were trained on."""
    data = Data(chain=ChainData((kind,), window=setting.window))
    return draw_many(data_sets(data), setting.instances, setting.seed, "test", torch.device(setting.device))


def solver_cells(
    setting: Setting, kind: int, examples: Examples, methods: Mapping[str, Method], say: Say
) -> list[Cell]:
    """The solvers' answers; one whose package is missing is left out and said."""
    cells = []
    for name, method in methods.items():
        some = examples if method.most is None else examples.select(slice(0, method.most))
        say(f"kind {kind}: {name}, {len(some)} instances")
        start = time.perf_counter()
        try:
            found = solve(some.models, method.method, seed=setting.seed, **method.options)
        except MissingExtra as error:
            say(f"kind {kind}: {name} left out: {error}")
            continue
        ms = 1e3 * (time.perf_counter() - start) / len(some)
        cells.append(Cell(name, kind, Quality.of(some.models, found.assignment, some.labels), ms))
    return cells


def network_cells(
    setting: Setting, name: str, label: str, kind: int, examples: Examples, recipe: Callable[[], Recipe], say: Say
) -> list[Cell]:
    """A network raw and decoded: packaged weights; else, in a full run, trained now; else the record of a run."""
    place = _weights(setting, name, recipe, say)
    if place is None:
        return _recorded(name, label, kind, say)
    network, _ = load_network(place, setting.device)
    say(f"kind {kind}: {label}, {len(examples)} instances")
    found = evaluate_network(network, examples)
    return [
        Cell(label, kind, found.raw, found.raw_ms),
        Cell(f"{label} + decode", kind, found.decoded, found.decoded_ms),
    ]


def _weights(setting: Setting, name: str, recipe: Callable[[], Recipe], say: Say) -> Path | None:
    if setting.quick:
        # where a kind has no deep network of its own, the one trained on all kinds stands in
        own = [name, "deep-map-joint"] if name.startswith("deep-map") else [name]
        return next((find_weights(n) for n in own if n in weight_names()), None)
    folder = setting.runs / name
    done = folder / "done"
    if not done.is_file():
        say(f"training {name}")
        started = (folder / "config.yaml").is_file()
        wanted = replace(recipe(), name=name)
        state, _ = run(
            folder if started else wanted, folder, device=setting.device, compile=setting.compile, resume=started
        )
        if state.total is not None and state.step >= state.total:
            done.touch()
    return folder


def records() -> dict[str, Any]:
    """Results of networks whose weights do not come with the package, by name."""
    path = weights_folder() / "records.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _recorded(name: str, label: str, kind: int, say: Say) -> list[Cell]:
    found = records().get(name, {}).get("results", {}).get(f"kind {kind}")
    if found is None:
        say(f"kind {kind}: {label} left out: no weights and no record of {name}; run without --quick to train it")
        return []
    return [
        Cell(label, kind, Quality(**found["raw"]), found["raw_ms"], "recorded"),
        Cell(f"{label} + decode", kind, Quality(**found["decoded"]), found["decoded_ms"], "recorded"),
    ]


def quick_methods(quick: bool) -> dict[str, Method]:
    """The table's solvers; in a quick run the slow ones see fewer instances, the slowest none."""
    if not quick:
        return METHODS
    fewer = {"LP (HiGHS)": replace(METHODS["LP (HiGHS)"], most=300), "AD3": replace(METHODS["AD3"], most=100)}
    return {name: fewer.get(name, method) for name, method in METHODS.items() if name != "AD3, branch & bound"}


def paper_recipe(kind: int, window: int, network: NetworkConfig | None = None, base: str = "paper-map") -> Recipe:
    """The packaged recipe of a kind with another window or network."""
    recipe = read_recipe(f"{base}-{kind}")
    assert recipe.data.chain is not None
    chain = replace(recipe.data.chain, window=window)
    changed = replace(recipe, data=replace(recipe.data, chain=chain))
    return changed if network is None else replace(changed, network=network)


def cells_of(cells: Sequence[Cell], method: str) -> dict[int, Cell]:
    """A method's cells by kind."""
    return {cell.kind: cell for cell in cells if cell.method == method}
