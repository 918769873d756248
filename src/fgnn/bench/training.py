"""Training speed, and where the time of a step goes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fgnn.bench.common import write_result
from fgnn.pgm import ModelBatch
from fgnn.runtime.devices import pick_device, synchronised_time
from fgnn.runtime.environment import environment
from fgnn.tasks import Recipe, read_recipe
from fgnn.tasks.labelled_models import Endless
from fgnn.tasks.map import MAPTask
from fgnn.train.loop import autocast_loss, compile_network
from fgnn.train.step import Step
from fgnn.train.update import Update

PARTS = ("sampling", "labelling", "forward", "backward", "optimiser")


@dataclass(frozen=True)
class StepTimes:
    """One recipe on one device: milliseconds of each synchronised part of a step, and the pace of whole steps.

    The parts add up to more than a step of the loop, where the host runs ahead of the device.
    """

    recipe: str
    device: str
    batch: int
    precision: str
    parameters: int
    parts: dict[str, float]
    step_ms: float
    per_second: float
    memory_gib: float
    replayed: bool
    kernels: list[tuple[str, float, int]] = field(default_factory=list)  # name, ms and calls per step, longest first


def bench_training(
    recipe: Recipe | str,
    *,
    device: str = "auto",
    compile: bool = False,
    steps: int = 20,
    warmup: int = 5,
    profile: bool = False,
    **changes: Any,
) -> StepTimes:
    """Measure training steps of a recipe, with sampling and exact labelling of fresh instances at every step.

    Args:
        recipe: A recipe or its name.
        steps: Timed steps, after ``warmup`` more.
        profile: Also list the kernels of a step by time (on a CPU the operations).
        changes: Other top-level settings (``batch=8192``).
    """
    if isinstance(recipe, str):
        recipe = read_recipe(recipe)
    here = pick_device(device)
    if here.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.cuda.reset_peak_memory_stats(here)
    data, schedule = replace(recipe.data, instances=None), replace(recipe.schedule, name="constant")
    recipe = recipe.with_changes(**{"data": data, "schedule": schedule, "steps": steps} | changes)
    loop = _Loop(recipe, here, compile)
    loop.run(0, warmup)
    parts = loop.time_parts(warmup, steps)
    start = synchronised_time(here)
    loop.run(warmup + steps, steps)
    replayed = loop.step.captured
    seconds = (synchronised_time(here) - start) / steps
    kernels = _kernels(partial(loop.run, warmup + 2 * steps, steps), steps, here) if profile else []
    return StepTimes(
        recipe=recipe.name,
        device=torch.cuda.get_device_name(here) if here.type == "cuda" else "cpu",
        batch=recipe.batch,
        precision=recipe.precision,
        parameters=sum(p.numel() for p in loop.network.parameters()),
        parts=parts,
        step_ms=1e3 * seconds,
        per_second=recipe.batch / seconds,
        memory_gib=torch.cuda.max_memory_allocated(here) / 2**30 if here.type == "cuda" else 0.0,
        replayed=replayed,
        kernels=kernels,
    )


class _Loop:
    """The steps of a recipe, whole or part by part."""

    def __init__(self, recipe: Recipe, device: torch.device, compile: bool) -> None:
        self.recipe, self.device = recipe, device
        self.task = MAPTask(recipe, device=device)
        self.network = self.task.network.to(device)
        average = copy.deepcopy(self.network) if recipe.ema is not None else None
        self.update = Update(recipe, self.network, average, device)
        if compile:
            compile_network(self.network)
        self.network.train()
        self.loss = autocast_loss(recipe, self.task, self.network, device)
        self.step = Step(self.network, self.loss, after=self.update, capture=device.type == "cuda", log=print)

    def run(self, first: int, count: int) -> None:
        """Run whole steps, as the training loop does."""
        for step in range(first, first + count):
            self.update.prepare(step, self.recipe.optimiser.rate)
            self.step(self.task.batch(step))

    def time_parts(self, first: int, count: int) -> dict[str, float]:
        """Return the median milliseconds of each part of a step, synchronised."""
        seconds: dict[str, list[float]] = {part: [] for part in PARTS}

        def timed(part: str, work: Callable[[], Any]) -> Any:
            start = synchronised_time(self.device)
            result = work()
            seconds[part].append(synchronised_time(self.device) - start)
            return result

        source = self.task.source
        for step in range(first, first + count):
            if isinstance(source, Endless):
                timed("sampling", partial(_sample, source, step))
                batch = timed("labelling", partial(source.batch, step))
            else:
                batch = self.task.batch(step)
            result = timed("forward", partial(self.loss, batch))
            timed("backward", partial(torch.autograd.backward, result.loss))
            timed("optimiser", self.update)
        return {part: 1e3 * median(times) if times else 0.0 for part, times in seconds.items()}


def _sample(source: Endless, seed: int) -> ModelBatch:
    """A batch without labels, to time the sampling alone."""
    count = source.size // len(source.sets)
    return ModelBatch.concat([data.sample(count, seed=seed, device=source.device) for data in source.sets])


def _kernels(work: Callable[[], object], steps: int, device: torch.device) -> list[tuple[str, float, int]]:
    """Profile ``work``; return name, milliseconds per step and calls per step of each kernel, longest first."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as profiler:
        work()
        synchronised_time(device)
    totals: dict[str, tuple[float, int]] = {}
    for entry in profiler.key_averages():
        micros = float(entry.self_device_time_total if cuda else entry.self_cpu_time_total)
        if micros > 0:
            before = totals.get(entry.key, (0.0, 0))
            totals[entry.key] = (before[0] + micros, before[1] + int(entry.count))
    kernels = [(name, micros / 1e3 / steps, -(-count // steps)) for name, (micros, count) in totals.items()]
    return sorted(kernels, key=lambda entry: -entry[1])


def report(times: StepTimes) -> str:
    """Format the times in a few lines; labelling is shown without the sampling it includes."""
    parts = dict(times.parts)
    parts["labelling"] = max(0.0, parts["labelling"] - parts["sampling"])
    shown = "  ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
    text = (
        f"{times.recipe} on {times.device}: batch {times.batch}, {times.precision}, {times.parameters:,} parameters\n"
        f"  ms per part, synchronised: {shown}\n"
        f"  whole step: {times.step_ms:.2f} ms, {times.per_second:,.0f} instances/s, {times.memory_gib:.1f} GiB"
    )
    if times.kernels:
        total = sum(ms for _, ms, _ in times.kernels)
        text += f"\n  kernels of a step: {total:.2f} ms; the longest:"
    for name, ms, calls in times.kernels[:40]:
        text += f"\n  {ms:8.3f} ms  {100 * ms / total:5.1f} %  {calls:5d} x  {name[:90]}"
    return text


def keep(times: Sequence[StepTimes], device: str, out: str | Path | None = None) -> Path:
    """Write the numbers as ``training-DEVICE.json``; see `write_result`."""
    here = pick_device(device)
    payload = {"benchmark": "training", "environment": environment(here), "recipes": [asdict(t) for t in times]}
    return write_result(f"training-{here.type}", payload, out)
