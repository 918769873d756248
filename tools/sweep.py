"""Several trainings in a row on one machine, within a time budget: `python -m tools.sweep plan.yaml`.

A plan is a YAML file: shared settings and a list of jobs, each a recipe with changes and seconds of its own. A job
that fails is noted and the next one starts; finished jobs are skipped when the sweep is run again, and one cut short
goes on from its checkpoint. Results (weights in bf16 with cards, metrics, a summary) are packed into few tar files.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fgnn.errors import InputError
from fgnn.files import atomic_write, is_file
from fgnn.tasks.dataclass_io import parse
from fgnn.tasks.evaluate_map import evaluate
from fgnn.tasks.recipe import Recipe, find_recipe
from fgnn.tasks.yaml_file import parse_yaml, read_yaml
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights, save_weights

_PART = 15 << 20  # bytes of a tar file


@dataclass(frozen=True)
class Job:
    """One training: a recipe, the settings that differ (``changes: [data.chain.window=9]``), the seconds it may take at
    most, and the instances to evaluate it on afterwards. ``fit`` makes it as many steps as fit into so many seconds,
    instead of the recipe's own length; ``after`` names a job whose weights it starts from."""

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    seconds: float | None = None
    fit: float | None = None
    after: str | None = None
    evaluate: int = 10_000


@dataclass(frozen=True)
class Plan:
    """Jobs and how to run them."""

    jobs: tuple[Job, ...]
    device: str = "auto"
    compile: bool = False
    folder: str = "runs/sweep"


@dataclass
class Outcome:
    """What became of a job."""

    name: str
    seconds: float = 0.0
    steps: int = 0
    finished: bool = False
    error: str = ""
    results: dict[str, Any] = field(default_factory=dict)


def read_plan(path: str | Path) -> Plan:
    """Read and check a plan; every recipe in it is checked too, before anything runs."""
    if not is_file(path):
        raise InputError("no such plan", file=path)
    plan = parse(Plan, read_yaml(path), file=path)
    names = [job.name for job in plan.jobs]
    for n, job in enumerate(plan.jobs):
        if job.name in names[:n]:
            raise InputError(f"Expected distinct names (got {job.name!r} twice)", file=path, place=f"jobs[{n}]")
        if job.after is not None and job.after not in names[:n]:
            raise InputError(f"Expected a job before this one (got {job.after!r})", file=path, place=f"jobs[{n}].after")
        try:
            changed_recipe(job)
        except InputError as error:
            raise InputError(str(error), file=path, place=f"jobs[{n}]") from error
    return plan


def changed_recipe(job: Job) -> Recipe:
    """The job's recipe with its changes, written ``path.to.key=value`` with the value in YAML."""
    path = find_recipe(job.recipe)
    values = read_yaml(path)
    for change in job.changes:
        keys, _, value = change.partition("=")
        place = values
        *above, last = keys.strip().split(".")
        for key in above:
            place = place.setdefault(key, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InputError(f"Expected path.to.key=value (got {change!r})", file=path)
        place[last] = parse_yaml(value, file=path, place=keys.strip())
        if place[last] is None:
            del place[last]
    if job.fit is not None:
        values = {k: v for k, v in values.items() if k not in ("epochs", "steps")}
        values["seconds"] = job.fit
    return replace(parse(Recipe, values, file=path), name=job.name)


def run_sweep(plan: Plan, out: str | Path, *, time_budget: float | None = None) -> list[Outcome]:
    """Run the jobs that are not done yet, within the budget, and pack what there is."""
    start = time.monotonic()
    Path(out).mkdir(parents=True, exist_ok=True)
    outcomes = []
    for job in plan.jobs:
        left = None if time_budget is None else time_budget - (time.monotonic() - start)
        if left is not None and left < 5:
            outcomes.append(Outcome(job.name, error="no time left"))
            continue
        outcome = run_job(plan, job, left)
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
        pack(plan, outcomes, out)
    return outcomes


def run_job(plan: Plan, job: Job, left: float | None) -> Outcome:
    """One job; whatever goes wrong in it is noted in the outcome."""
    folder = RunFolder(Path(plan.folder) / job.name)
    done = folder.path / "outcome.json"
    if done.is_file():
        return Outcome(**json.loads(done.read_text(encoding="utf-8")))
    began = time.monotonic()
    outcome = Outcome(job.name)
    try:
        recipe = changed_recipe(job)
        if job.after is not None:
            recipe = replace(recipe, start_from=str(Path(plan.folder) / job.after))
        budget = min(t for t in (job.seconds, left, float("inf")) if t is not None)
        state, _ = run(
            folder.path if folder.config.is_file() else recipe,
            folder.path,
            device=plan.device,
            compile=plan.compile,
            resume=folder.config.is_file(),
            time_budget=None if budget == float("inf") else budget,
        )
        outcome.steps, outcome.finished = state.step, state.total is not None and state.step >= state.total
        if job.evaluate:
            device = "cuda" if torch.cuda.is_available() and plan.device != "cpu" else "cpu"
            found = evaluate(folder.path / "last.safetensors", instances=job.evaluate, device=device, both_ways=True)
            outcome.results = {name: e.plain() for name, e in found.items()}
    except Exception as error:
        traceback.print_exc()
        outcome.error = f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        # a compiled block keeps what it was compiled for; the next job starts clean
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    outcome.seconds = time.monotonic() - began
    if outcome.finished:
        with atomic_write(done) as file:
            json.dump(vars(outcome), file)
    return outcome


def pack(plan: Plan, outcomes: list[Outcome], out: str | Path) -> list[Path]:
    """Weights in bf16 with cards, metrics and the summary, as tar files of at most 15 MB each."""
    members: list[tuple[str, bytes]] = [("summary.json", json.dumps([vars(o) for o in outcomes], indent=1).encode())]
    for outcome in outcomes:
        folder = Path(plan.folder) / outcome.name
        last = folder / "last.safetensors"
        if not last.is_file():
            continue
        weights = load_weights(last)
        card = {**weights.card, "results": outcome.results}
        small = folder / f"{outcome.name}.safetensors"
        save_weights(small, weights.tensors, card, bf16=True)
        for path in (small, small.with_suffix(".json"), folder / "metrics.jsonl", folder / "config.yaml"):
            members.append((f"{outcome.name}/{path.name}", path.read_bytes()))
    parts: list[list[tuple[str, bytes]]] = [[]]
    for member in members:
        if sum(len(data) for _, data in parts[-1]) + len(member[1]) > _PART:
            parts.append([])
        parts[-1].append(member)
    written = []
    for n, part in enumerate(parts):
        path = Path(out) / f"sweep-{n}.tar"
        with atomic_write(path, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for name, data in part:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        written.append(path)
    return written


def _line(outcome: Outcome) -> str:
    if outcome.error:
        return f"{outcome.name}: {outcome.error} ({outcome.seconds:.0f} s)"
    told = [
        f"{outcome.name}: {outcome.steps} steps, {outcome.seconds:.0f} s{'' if outcome.finished else ', cut short'}"
    ]
    for name, result in outcome.results.items():
        raw, decoded = _percents(result["raw"]), _percents(result["decoded"])
        both = _percents(result["both_ways"]) if result.get("both_ways") else "none"
        told.append(f"  {name}: raw {raw}; both ways {both}; decoded {decoded}; {result['decoded_ms']:.3f} ms")
    return "\n".join(told)


def _percents(quality: Mapping[str, float]) -> str:
    return " / ".join(f"{name} {100 * quality[name]:.2f}" for name in ("agreement", "optimal", "feasible"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan")
    parser.add_argument("--out", default="out/sweep")
    parser.add_argument("--time-budget", type=float, default=None, help="seconds for all jobs together")
    arguments = parser.parse_args()
    outcomes = run_sweep(read_plan(arguments.plan), arguments.out, time_budget=arguments.time_budget)
    print("\n".join(_line(o) for o in outcomes))


if __name__ == "__main__":
    main()
