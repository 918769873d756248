"""Part segmentation by several networks, one protocol: `python -m tools.train_shapes --data DIR fgnn:300 dgcnn:90`.

Each job is an architecture and the seconds its training steps may take (0: the recipe's epochs). All share one process,
so the shapes are read once. A job cut short goes on from its checkpoint when run again, and one that fails is noted and
the next one starts. In the folder of results: weights with cards, every step's log, and all scores in one JSON file.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_point_network
from fgnn.runtime.devices import device_name, pick_device
from fgnn.runtime.environment import environment
from fgnn.tasks.recipe import Recipe, ShapeData
from fgnn.tasks.shape_data import split_set, split_shapes
from fgnn.tasks.shape_scores import score_shapes
from fgnn.train.run import recipe_of, run
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights, save_weights
from tools.sweep import Job, changed_recipe

_START = 45.0  # seconds for compiling, recording and the first steps, which training time does not count
_END = 25.0  # for scoring and writing at the end of a job


@dataclass
class Outcome:
    """What became of a job."""

    name: str
    seconds: float = 0.0
    steps: int = 0
    epochs: float = 0.0
    finished: bool = False
    error: str = ""
    parameters: int = 0
    shapes_per_second: float = 0.0
    scores: list[dict[str, Any]] = field(default_factory=list)


def read_jobs(words: list[str], data: str, changes: list[str], prefix: str = "shapes") -> list[tuple[Job, Recipe]]:
    """Jobs from words such as ``fgnn:300``; every recipe is checked before anything runs."""
    jobs = []
    for word in words:
        name, _, seconds = word.partition(":")
        try:
            fit = float(seconds or 0)
        except ValueError as error:
            raise InputError(f"Expected NAME:SECONDS (got {word!r})") from error
        own = (f"data.shapes.root={data}", *changes)
        job = Job(f"{prefix}-{name}", f"{prefix}-{name}", own, fit=fit or None)
        jobs.append((job, changed_recipe(job)))
    return jobs


def run_job(job: Job, recipe: Recipe, folder: RunFolder, device: str, budget: float | None, votes: int) -> Outcome:
    """Train, or go on training, and score on the test list; whatever goes wrong is noted in the outcome."""
    began = time.monotonic()
    outcome = Outcome(job.name)
    # training and scoring fail apart: weights that a run has written are scored whatever came after
    steps: tuple[Callable[[], None], ...] = (
        partial(train_job, outcome, recipe, folder, device, budget),
        partial(score_job, outcome, folder, device, votes),
    )
    for part in steps:
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            outcome.error = outcome.error or f"{type(error).__name__}: {error}".splitlines()[0]
        if not (folder.path / "last.safetensors").is_file():
            break
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    outcome.seconds = time.monotonic() - began
    return outcome


def train_job(outcome: Outcome, recipe: Recipe, folder: RunFolder, device: str, budget: float | None) -> None:
    """Train, or go on."""
    resume = folder.checkpoint.is_file()
    if not resume:
        folder.config.unlink(missing_ok=True)  # of a run that ended before its first checkpoint
    try:
        state, _ = run(folder.path if resume else recipe, folder.path, device=device, resume=resume, time_budget=budget)
        outcome.finished = state.total is not None and state.step >= state.total
    finally:
        lines = folder.lines()
        paces = sorted(line["per_second"] for line in lines[1:]) or [0.0]
        outcome.shapes_per_second = paces[len(paces) // 2]
        outcome.steps = lines[-1]["step"] if lines else 0


def score_job(outcome: Outcome, folder: RunFolder, device: str, votes: int) -> None:
    """Scores of the run's last weights, rounded as they will be kept, on the test list."""
    recipe = recipe_of(folder)
    data = recipe.data.shapes
    assert isinstance(data, ShapeData)
    last = load_weights(folder.path / "last.safetensors")
    small = folder.path / f"{outcome.name}.safetensors"
    # what is kept must not tell where on this machine the shapes lay
    card = json.loads(json.dumps(dict(last.card)).replace(data.root, Path(data.root).name))
    save_weights(small, last.tensors, card, bf16=True)
    here = pick_device(device)
    network = load_point_network(load_weights(small), here)
    shapes = split_shapes(data.root, "test")
    seen = [split_shapes(data.root, split) for split in data.splits]
    outcome.parameters = sum(p.numel() for p in network.parameters())
    # what the weights it began with had seen counts too
    before = sum(int(card["instances_seen"]) for card in _chain(last.card.get("began_with")))
    outcome.epochs = (before + outcome.steps * recipe.batch) / sum(len(s) for s in seen)
    half = recipe.precision == "bf16" and here.type == "cuda"
    tables = score_shapes(network, shapes, split_set(shapes, data.points), seen, votes=votes, half=half)
    outcome.scores = [table.plain() for table in tables]
    card = {**card, "results": outcome.scores, "metrics": {"instance_miou": tables[0].instance}}
    save_weights(small, last.tensors, card, bf16=True)


def _chain(card: Any) -> list[Any]:
    """A run's beginnings, one behind the other."""
    return [card, *_chain(card.get("began_with"))] if card else []


def write_results(outcomes: list[Outcome], runs: Path, out: Path, largest: int) -> None:
    """All scores, the log of every run, and the weights that are not too large."""
    out.mkdir(parents=True, exist_ok=True)
    here = pick_device("auto")
    summary = {
        "benchmark": "shapes",
        "environment": environment(here),
        "hardware": device_name(here),
        "jobs": [vars(o) for o in outcomes],
        "mIoU in percent": {name: row for o in outcomes for name, row in percents(o).items()},
    }
    with atomic_write(out / "shapes.json") as file:
        json.dump(summary, file, indent=1)
    with atomic_write(out / "shapes-log.jsonl") as file:
        for outcome in outcomes:
            lines = RunFolder(runs / outcome.name).lines()
            file.writelines(json.dumps({"run": outcome.name, **line}) + "\n" for line in lines)
    for outcome in outcomes:
        made = runs / outcome.name / f"{outcome.name}.safetensors"
        if made.is_file() and made.stat().st_size <= largest:
            with atomic_write(out / made.name, "wb") as binary:
                binary.write(made.read_bytes())


def percents(outcome: Outcome) -> dict[str, dict[str, float]]:
    """A row for each protocol: means, then every category."""
    rows = {}
    for score in outcome.scores:
        means = {"instance": score["instance"], "category mean": score["class_average"], **score["category"]}
        rows[f"{outcome.name}, {score['protocol']}"] = {key: round(100 * value, 2) for key, value in means.items()}
    return rows


def told(outcome: Outcome) -> str:
    """A few lines for a person."""
    if outcome.error:
        return f"{outcome.name}: {outcome.error} ({outcome.seconds:.0f} s)"
    cut = "" if outcome.finished else ", cut short"
    lines = [
        f"{outcome.name}: {outcome.parameters:,} parameters, {outcome.steps} steps, {outcome.epochs:.1f} epochs, "
        f"{outcome.seconds:.0f} s{cut}, {outcome.shapes_per_second:,.0f} shapes/s"
    ]
    for score in outcome.scores:
        instance, category, accuracy = (f"{100 * score[k]:.2f}" for k in ("instance", "class_average", "accuracy"))
        what = f"instance {instance}  category {category}  accuracy {accuracy}  ({score['shapes']} shapes)"
        lines.append(f"  {score['protocol']}: {what}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> list[Outcome]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("jobs", nargs="+", help="NAME:SECONDS, NAME being fgnn, dgcnn, pointnet or pointcnn")
    parser.add_argument("--data", required=True, help="the folder of ShapeNet-Part")
    parser.add_argument("--out", default="out/shapes", help="where results go")
    parser.add_argument("--runs", default="runs/shapes", help="where runs and their checkpoints are kept")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--deadline", type=float, help="seconds from now by which everything is written")
    parser.add_argument("--votes", type=int, default=10, help="passes of the voted protocol; 1 leaves it out")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="a setting, such as points.bases=8")
    parser.add_argument("--largest", type=int, default=8 << 20, help="bytes of weights that are copied to the results")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    outcomes: list[Outcome] = []
    for job, recipe in read_jobs(given.jobs, given.data, given.changes):
        left = None if given.deadline is None else given.deadline - (time.monotonic() - start) - _END
        if left is not None and left < _START:
            outcomes.append(Outcome(job.name, error="no time left"))
        else:
            budget = left if job.fit is None else min(job.fit + 2 * _START, left or float("inf"))
            folder = RunFolder(Path(given.runs) / job.name)
            outcomes.append(run_job(job, recipe, folder, given.device, budget, given.votes))
        print(told(outcomes[-1]), flush=True)
        write_results(outcomes, Path(given.runs), Path(given.out), given.largest)
    print("\n".join(["", *(told(o) for o in outcomes)]))
    return outcomes


if __name__ == "__main__":
    main()
