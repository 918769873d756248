"""Part segmentation by several networks, one protocol: `python -m tools.train_shapes --data DIR fgnn:300 dgcnn:90`.

Each job is an architecture and the seconds its training steps may take (0: the recipe's epochs). All share one process,
so the shapes are read once. An interrupted job continues from its checkpoint when run again; one that fails is recorded
and the next one starts. The results: weights with cards, the log of every step, and all scores in one JSON file.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_point_network
from fgnn.runtime.devices import device_name, pick_device
from fgnn.runtime.environment import environment
from fgnn.tasks import Recipe
from fgnn.tasks.data_settings import ShapeData
from fgnn.tasks.shapes import score_shapes, split_shapes
from fgnn.train import RunFolder
from fgnn.train.run import recipe_of
from fgnn.weights import load_weights, save_weights
from tools import jobs

_START = 45.0  # seconds for compiling, capturing and the first steps, which do not count as training time
_END = 25.0  # seconds for scoring and writing at the end of a job
_LARGEST = 8 << 20  # bytes of weights that are copied to the results


@dataclass
class Outcome(jobs.Outcome):
    """What became of a job, with its scores by protocol."""

    epochs: float = 0.0
    selected: float | None = None  # the epoch whose weights were scored, where a validation list chose it
    parameters: int = 0
    shapes_per_second: float = 0.0
    scores: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> str:
        lines = [super().summary()]
        if not self.error:
            size = f"{self.parameters:,} parameters, {self.epochs:.1f} epochs"
            size += "" if self.selected is None else f", best {self.selected:.1f}"
            lines[0] += f", {size}, {self.shapes_per_second:,.0f} shapes/s"
        for score in self.scores:
            instance, category, accuracy = (f"{100 * score[k]:.2f}" for k in ("instance", "class_average", "accuracy"))
            means = f"instance {instance}  category {category}  accuracy {accuracy}  ({score['shapes']} shapes)"
            lines.append(f"  {score['protocol']}: {means}")
        return "\n".join(lines)

    def percents(self) -> dict[str, dict[str, float]]:
        """Return a row per protocol: the means, then every category."""
        rows = {}
        for score in self.scores:
            means = {"instance": score["instance"], "category mean": score["class_average"], **score["category"]}
            rows[f"{self.name}, {score['protocol']}"] = {key: round(100 * value, 2) for key, value in means.items()}
        return rows


def read_job(word: str, data: str, changes: list[str]) -> tuple[Recipe, float | None]:
    """Return the recipe of a word such as ``fgnn:300``, and its seconds if it has any."""
    name, _, seconds = word.partition(":")
    try:
        fit = float(seconds or 0)
    except ValueError as error:
        raise InputError(f"Expected NAME:SECONDS (got {word!r})") from error
    length = [f"seconds={fit}"] if fit else []
    recipe = jobs.changed_recipe(f"shapes-{name}", f"shapes-{name}", [f"data.shapes.root={data}", *changes, *length])
    return recipe, fit or None


def run_job(recipe: Recipe, folder: RunFolder, device: str, budget: float | None, votes: int) -> Outcome:
    """Train, or continue, and score on the test split."""
    outcome = Outcome(recipe.name)
    with jobs.attempt(outcome):
        jobs.train_job(outcome, recipe, folder, device=device, time_budget=budget)
    # separately: weights that were written are scored even if training failed later
    if (folder.path / "last.safetensors").is_file():
        with jobs.attempt(outcome):
            score_job(outcome, folder, device, votes)
    return outcome


def score_job(outcome: Outcome, folder: RunFolder, device: str, votes: int) -> None:
    """Score the weights of a run, rounded to bf16 as they are shipped, on the test split.

    They are the last ones, or those that were best on the validation list if the recipe holds it out.
    """
    recipe = recipe_of(folder)
    data = recipe.data.shapes
    assert isinstance(data, ShapeData)
    best = folder.path / "best.safetensors"
    select = data.held_out == "val" and best.is_file()
    last = load_weights(best if select else folder.path / "last.safetensors")
    small = folder.path / f"{outcome.name}.safetensors"
    # the card names the folder of the shapes, not its place on this machine
    card = json.loads(json.dumps(dict(last.card)).replace(data.root, Path(data.root).name))
    save_weights(small, last.tensors, card, bf16=True)
    here = pick_device(device)
    network = load_point_network(load_weights(small), here)
    shapes = split_shapes(data.root, "test")
    trained_on = [split_shapes(data.root, split) for split in data.splits]
    paces = sorted(line["per_second"] for line in folder.lines()[1:]) or [0.0]
    outcome.shapes_per_second = paces[len(paces) // 2]
    outcome.parameters = sum(p.numel() for p in network.parameters())
    # including the instances behind the weights it began with
    before = sum(int(card["instances_seen"]) for card in _ancestors(last.card.get("began_with")))
    count = sum(len(s) for s in trained_on)
    outcome.epochs = (before + outcome.steps * recipe.batch) / count
    if select:
        outcome.selected = (before + int(last.card["instances_seen"])) / count
    half = recipe.precision == "bf16" and here.type == "cuda"
    how: dict[str, Any] = {"votes": votes, "variation": recipe.variation, "half": half}
    tables = score_shapes(network, shapes, data.points, trained_on, **how)
    outcome.scores = [asdict(table) for table in tables]
    card = {**card, "results": outcome.scores, "metrics": {"instance_miou": tables[0].instance}}
    save_weights(small, last.tensors, card, bf16=True)


def _ancestors(card: Any) -> list[Any]:
    """Return the cards of the weights that a run began with, the latest first."""
    return [card, *_ancestors(card.get("began_with"))] if card else []


def write_results(outcomes: list[Outcome], runs: Path, out: Path) -> None:
    """Write all scores, the logs of all runs, and the weights that are not too large."""
    out.mkdir(parents=True, exist_ok=True)
    here = pick_device("auto")
    summary = {
        "benchmark": "shapes",
        "environment": environment(here),
        "hardware": device_name(here),
        "jobs": [vars(o) for o in outcomes],
        "mIoU in percent": {name: row for o in outcomes for name, row in o.percents().items()},
    }
    with atomic_write(out / "shapes.json") as file:
        json.dump(summary, file, indent=1)
    with atomic_write(out / "shapes-log.jsonl") as file:
        for outcome in outcomes:
            lines = RunFolder(runs / outcome.name).lines()
            file.writelines(json.dumps({"run": outcome.name, **line}) + "\n" for line in lines)
    for outcome in outcomes:
        weights = runs / outcome.name / f"{outcome.name}.safetensors"
        if weights.is_file() and weights.stat().st_size <= _LARGEST:
            with atomic_write(out / weights.name, "wb") as binary:
                binary.write(weights.read_bytes())


def train_shapes(
    words: Annotated[
        list[str], typer.Argument(help="NAME:SECONDS; names: fgnn, hierarchical, dgcnn, pointnet, pointcnn and paper.")
    ],
    data: Annotated[str, typer.Option(help="The folder of ShapeNet-Part.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/shapes"),
    runs: Annotated[Path, typer.Option(help="Folder for runs and their checkpoints.")] = Path("runs/shapes"),
    device: jobs.Device = "auto",
    deadline: Annotated[float | None, typer.Option(help="Seconds from now by which everything is written.")] = None,
    votes: Annotated[int, typer.Option(help="Passes of the voted protocol; 1 leaves it out.")] = 10,
    changes: jobs.Changes = None,
) -> list[Outcome]:
    """Train networks on shapes one after another, and score them."""
    start = time.monotonic()
    outcomes: list[Outcome] = []
    for recipe, fit in [read_job(word, data, changes or []) for word in words]:
        left = None if deadline is None else deadline - (time.monotonic() - start) - _END
        if left is not None and left < _START:
            outcomes.append(Outcome(recipe.name, error="no time left"))
        else:
            budget = left if fit is None else min(fit + 2 * _START, left or float("inf"))
            outcomes.append(run_job(recipe, RunFolder(runs / recipe.name), device, budget, votes))
        print(outcomes[-1].summary(), flush=True)
        write_results(outcomes, runs, out)
    print("\n".join(["", *(o.summary() for o in outcomes)]))
    return outcomes


if __name__ == "__main__":
    typer.run(train_shapes)
