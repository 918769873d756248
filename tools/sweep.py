"""Several trainings in a row on one machine, within a time budget: `python -m tools.sweep plan.yaml`.

A plan is a YAML file: shared settings and a list of jobs, each a recipe with changes. A job that fails is recorded and
the next one starts. Finished jobs are skipped when the sweep is run again, and interrupted ones continue from their
checkpoints. Results (weights in bf16 with cards, metrics, a summary) are packed into a few tar files.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.errors import InputError
from fgnn.files import atomic_write, is_file
from fgnn.runtime.devices import pick_device
from fgnn.schema import Between, FileName, Label, Length, PathText, Positive, parse
from fgnn.tasks import Recipe, evaluate
from fgnn.tasks.yaml_file import read_yaml
from fgnn.train import RunFolder
from fgnn.weights import load_weights, save_weights
from tools import jobs

_TAR_BYTES = 15 << 20


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        changes: Settings that differ from the recipe's, such as ``data.chain.window=9``.
        seconds: Time limit.
        fit: Train as many steps as fit into this many seconds, instead of the recipe's length.
        after: An earlier job whose weights to start from.
        evaluate: Instances to evaluate on afterwards.
        weights: Pack the weights; otherwise only their card, which is enough for a record.
    """

    name: FileName
    recipe: PathText
    changes: Annotated[tuple[Annotated[str, Length(10_000)], ...], Length(100)] = ()
    seconds: Positive | None = None
    fit: Positive | None = None
    after: FileName | None = None
    evaluate: Annotated[int, Between(0, 10**7)] = 10_000
    weights: bool = True

    def changed_recipe(self) -> Recipe:
        """Return the recipe with the job's changes."""
        fit = () if self.fit is None else (f"seconds={self.fit}",)
        return jobs.changed_recipe(self.recipe, self.name, (*self.changes, *fit))


@dataclass(frozen=True)
class Plan:
    """Jobs and how to run them."""

    jobs: Annotated[tuple[Job, ...], Length(1000)]
    device: Label = "auto"
    compile: bool = False
    folder: PathText = "runs/sweep"


@dataclass
class Outcome(jobs.Outcome):
    """What became of a job, with its evaluation by kind of data."""

    results: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> str:
        lines = [super().summary()]
        for name, result in self.results.items():
            raw, decoded = _percents(result["raw"]), _percents(result["decoded"])
            both = _percents(result["both_ways"]) if result.get("both_ways") else "none"
            lines.append(f"  {name}: raw {raw}; both ways {both}; decoded {decoded}; {result['decoded_ms']:.3f} ms")
        return "\n".join(lines)


def read_plan(path: str | Path) -> Plan:
    """Read a plan and check it, with every recipe in it."""
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
            job.changed_recipe()
        except InputError as error:
            raise InputError(str(error), file=path, place=f"jobs[{n}]") from error
    return plan


def run_sweep(plan: Plan, out: str | Path, *, time_budget: float | None = None) -> list[Outcome]:
    """Run the jobs that are not finished yet, within the budget, and pack the results."""
    start = time.monotonic()
    Path(out).mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for job in plan.jobs:
        left = None if time_budget is None else time_budget - (time.monotonic() - start)
        if left is not None and left < 5:
            outcomes.append(Outcome(job.name, error="no time left"))
            continue
        outcomes.append(run_job(plan, job, left))
        print(outcomes[-1].summary(), flush=True)
        pack(plan, outcomes, out)
    return outcomes


def run_job(plan: Plan, job: Job, left: float | None) -> Outcome:
    """Train and evaluate one job, unless it is finished."""
    folder = RunFolder(Path(plan.folder) / job.name)
    done = folder.path / "outcome.json"
    if done.is_file():
        return Outcome(**json.loads(done.read_text(encoding="utf-8")))
    outcome = Outcome(job.name)
    with jobs.attempt(outcome):
        recipe = job.changed_recipe()
        if job.after is not None:
            recipe = replace(recipe, start_from=str(Path(plan.folder) / job.after))
        budget = min((t for t in (job.seconds, left) if t is not None), default=None)
        jobs.train_job(outcome, recipe, folder, device=plan.device, compile=plan.compile, time_budget=budget)
        if job.evaluate:
            weights, device = folder.path / "last.safetensors", pick_device(plan.device)
            evaluations = evaluate(weights, instances=job.evaluate, device=device, both_ways=True)
            outcome.results = {name: asdict(e) for name, e in evaluations.items()}
    if outcome.finished:
        with atomic_write(done) as file:
            json.dump(vars(outcome), file)
    return outcome


def some_jobs(plan: Plan, only: Sequence[str]) -> Plan:
    """Return the plan with only these jobs, in the given order, so that several processes can share it.

    No names mean all jobs.
    """
    by_name = {job.name: job for job in plan.jobs}
    unknown = [name for name in only if name not in by_name]
    if unknown:
        raise InputError(f"Expected jobs among {', '.join(by_name)} (got {unknown[0]!r})")
    return replace(plan, jobs=tuple(by_name[name] for name in only or by_name))


def pack(plan: Plan, outcomes: list[Outcome], out: str | Path) -> list[Path]:
    """Write weights in bf16, cards, metrics and the summary to tar files of at most 15 MB each."""
    members: list[tuple[str, bytes]] = [("summary.json", json.dumps([vars(o) for o in outcomes], indent=1).encode())]
    light = {job.name for job in plan.jobs if not job.weights}
    for outcome in outcomes:
        folder = Path(plan.folder) / outcome.name
        last = folder / "last.safetensors"
        if not last.is_file():
            continue
        weights = load_weights(last)
        small = folder / f"{outcome.name}.safetensors"
        about = {"finished": outcome.finished, "results": outcome.results}
        save_weights(small, weights.tensors, {**weights.card, **about}, bf16=True)
        files = (small, small.with_suffix(".json"), folder / "metrics.jsonl", folder / "config.yaml")
        for path in files[outcome.name in light :]:
            members.append((f"{outcome.name}/{path.name}", path.read_bytes()))
    parts: list[list[tuple[str, bytes]]] = [[]]
    for member in members:
        if sum(len(data) for _, data in parts[-1]) + len(member[1]) > _TAR_BYTES:
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


def _percents(quality: Mapping[str, float]) -> str:
    return " / ".join(f"{name} {100 * quality[name]:.2f}" for name in ("agreement", "optimal", "feasible"))


def main(
    plan: Annotated[str, typer.Argument(help="A plan in YAML.")],
    out: Annotated[str, typer.Option(help="Folder for the tar files.")] = "out/sweep",
    time_budget: Annotated[float | None, typer.Option(help="Seconds for all jobs together.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this job; repeat for several. By default all.")] = None,
    folder: Annotated[str | None, typer.Option(help="Folder for the runs, instead of the plan's.")] = None,
) -> None:
    """Run several trainings in a row."""
    chosen = some_jobs(read_plan(plan), only or ())
    chosen = replace(chosen, folder=folder or chosen.folder)
    outcomes = run_sweep(chosen, out, time_budget=time_budget)
    print("\n".join(o.summary() for o in outcomes))


if __name__ == "__main__":
    typer.run(main)
