"""What separates our Table 1 from the paper's: `python -m tools.paper_differences [NAME ...] --out FILE`.

Networks with the choices of the authors' code, one at a time and all together, are trained by the recipe of the paper's
protocol on the authors' windows of 9, with the same data in the same order, and scored on the same fresh instances.
Results are added to the file, so that runs can be divided; ``--join`` adds those of runs that had files of their own.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.runtime.devices import pick_device
from fgnn.runtime.environment import environment
from fgnn.tasks.map import MAPTask, data_sets, draw_many
from fgnn.tasks.metrics import Quality
from fgnn.tasks.seeds import seed_for
from fgnn.train import RunFolder
from fgnn.train.loop import RunOptions, train
from tools.authors_network import Choices, FactorNetwork, NeighbourNetwork
from tools.jobs import changed_recipe

Make = Callable[[int, int, torch.device], nn.Module]  # length, window, device

ALL = Choices(parallel=True, no_positions=True, ring=True, instance_norm=True)
# By name: the kind of chain, what it is, and the network; None is ours, built by the recipe.
VARIANTS: dict[str, tuple[int, str, Choices | int | None]] = {
    "ours-3": (3, "ours", Choices()),
    "parallel-3": (3, "both halves of a layer read the old features", Choices(parallel=True)),
    "no-positions-3": (3, "edges of a window without a position", Choices(no_positions=True)),
    "ring-3": (3, "ends joined to a ring", Choices(ring=True)),
    "instance-norm-3": (3, "instance norm between the blocks", Choices(instance_norm=True)),
    "all-3": (3, "all four", ALL),
    "factors-1-4": (1, "ours, factors of 4", None),
    "factors-1-6": (1, "ours, factors of 6", None),
    "factors-1-8": (1, "ours, factors of 8", None),
    "neighbours-1-4": (1, "no factors, 4 neighbours", 4),
    "neighbours-1-6": (1, "no factors, 6 neighbours", 6),
    "neighbours-1-8": (1, "no factors, 8 neighbours", 8),
}

_ORDER = {name: i for i, name in enumerate(VARIANTS)}


def train_variant(
    name: str, changes: list[str], device: torch.device, instances: int, seconds: float | None = None
) -> dict[str, Any]:
    """Train one network by its recipe with ``changes``, for at most ``seconds``, and score it on fresh instances."""
    kind, about, choice = VARIANTS[name]
    own = ["data.chain.window=9"]
    if choice is None:
        own.append(f"network.factor_size={name.rsplit('-', 1)[1]}")
    recipe = changed_recipe(f"paper-map-{kind}", name, [*own, *changes])
    assert recipe.data.chain is not None
    task = MAPTask(recipe, device=device)
    torch.manual_seed(seed_for(recipe.seed, "network") % (1 << 32))
    length, window = recipe.data.chain.length, recipe.data.chain.window
    if isinstance(choice, Choices):
        task.network = FactorNetwork(length, window, choice, device)
    elif choice is not None:
        task.network = NeighbourNetwork(length, choice, device)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / name)
        run.begin(recipe, device, {})
        state = train(recipe, task, run, device=device, options=RunOptions(time_budget=seconds))
    took = time.perf_counter() - begin
    fresh = draw_many(data_sets(recipe.data), instances, recipe.seed, "test", device)
    task.network.eval()
    with torch.no_grad():
        parts = [fresh.models.select(slice(at, at + 1000)) for at in range(0, instances, 1000)]
        answer = torch.cat([task.network(part).argmax(2) for part in parts])
    return {
        "kind": kind, "about": about, "epochs": recipe.epochs, "batch": recipe.batch, "steps": state.step,
        "instances": recipe.data.instances, "seed": recipe.seed, "seconds": round(took, 1),
        "parameters": sum(p.numel() for p in task.network.parameters()), "changes": changes,
        "quality": asdict(Quality.of(fresh.models, answer, fresh.labels)),
        "environment": environment(device),
    }  # fmt: skip


def _results(file: Path) -> dict[str, dict[str, Any]]:
    """Rows by name, by label."""
    results: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return results


def _write(results: dict[str, dict[str, Any]], file: Path) -> None:
    with atomic_write(file) as handle:
        handle.write(json.dumps(results, indent=1) + "\n")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Variants; all by default.")] = None,
    out: Annotated[Path, typer.Option(help="The results file.")] = Path("benchmarks/results/paper_differences.json"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    changes: Annotated[list[str] | None, typer.Option("--set", help="A setting of the recipe.")] = None,
    instances: Annotated[int, typer.Option(help="Fresh instances to score.")] = 10_000,
    label: Annotated[str, typer.Option(help="Under which the results are stored.")] = "full",
    seconds: Annotated[float | None, typer.Option(help="Stop each training after this time.")] = None,
    join: Annotated[list[Path] | None, typer.Option(help="Only add the results of this file. Repeatable.")] = None,
) -> None:
    """Train and score variants, and add them to the results."""
    if join:
        results = _results(out)
        for more in join:
            for group, rows in _results(more).items():
                results[group] = dict(sorted((results.get(group, {}) | rows).items(), key=lambda row: _ORDER[row[0]]))
        _write(results, out)
        return
    unknown = set(names or ()) - set(VARIANTS)
    if unknown:
        raise InputError(f"Expected variants among {', '.join(VARIANTS)} (got {sorted(unknown)[0]!r})")
    for name in names or VARIANTS:
        row = train_variant(name, changes or [], pick_device(device), instances, seconds)
        results = _results(out)
        results.setdefault(label, {})[name] = row
        _write(results, out)
        quality = row["quality"]
        print(
            f"{label} {name}: {100 * quality['agreement']:.1f} %, {row['steps']} steps, {row['seconds']} s", flush=True
        )


if __name__ == "__main__":
    typer.run(main)
