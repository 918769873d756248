"""How fast training goes, and where a step's time is spent."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from fgnn.bench.common import write_result
from fgnn.pgm import ModelBatch
from fgnn.runtime.devices import pick_device
from fgnn.runtime.environment import environment
from fgnn.tasks.labelled_models import Endless, draw
from fgnn.tasks.map import MAPTask
from fgnn.tasks.recipe import Recipe, read_recipe
from fgnn.train.loop import autocast_loss, compile_network
from fgnn.train.step import Step
from fgnn.train.update import Update

T = TypeVar("T")
PARTS = ("sampling", "labelling", "forward", "backward", "optimiser")


@dataclass(frozen=True)
class StepTimes:
    """One recipe on one device: milliseconds of a step's parts, each waited for, and the pace of steps not waited for.

    The parts add up to more than a step of the loop takes, since there the host runs ahead of the device.
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
    kernels: list[tuple[str, float, int]] = field(default_factory=list)  # name, ms and calls of a step, most ms first

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench_training(
    recipe: Recipe | str,
    *,
    device: str = "auto",
    compile: bool = False,
    steps: int = 20,
    warmup: int = 5,
    endless: bool = True,
    profile: bool = False,
    **changes: Any,
) -> StepTimes:
    """Measure training steps of a recipe, sampling and exact labelling included.

    Args:
        recipe: A recipe or its name.
        steps: Steps that are timed, after ``warmup`` more.
        endless: Draw fresh instances at every step, also where the recipe has a fixed set.
        profile: Also note which kernels a step's time goes to (on a CPU which operations).
        changes: Other top-level settings (``batch=8192``).
    """
    if isinstance(recipe, str):
        recipe = read_recipe(recipe)
    here = pick_device(device)
    if here.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.cuda.reset_peak_memory_stats(here)
    if endless:
        data, schedule = replace(recipe.data, instances=None), replace(recipe.schedule, name="constant")
        recipe = recipe.with_changes(data=data, schedule=schedule, steps=steps)
    recipe = recipe.with_changes(**changes) if changes else recipe
    task = MAPTask(recipe, device=here)
    network = task.network.to(here)
    update = Update(recipe, network, copy.deepcopy(network) if recipe.ema is not None else None, here)
    if compile:
        compile_network(network)
    network.train()

    loss_of = autocast_loss(recipe, task, network, here)
    step_of = Step(network, loss_of, after=update, capture=here.type == "cuda", log=print)

    def forward(batch: Any) -> torch.Tensor:
        return loss_of(batch).loss

    def whole(step: int) -> None:
        update.prepare(step, recipe.optimiser.rate)
        step_of(task.batch(step))

    for step in range(warmup):
        whole(step)
    times: dict[str, list[float]] = {part: [] for part in PARTS}

    def timed(part: str, work: Callable[[], T]) -> T:
        start = _now(here)
        made = work()
        times[part].append(_now(here) - start)
        return made

    for step in range(warmup, warmup + steps):
        batch = _sampled(task, step, timed) if isinstance(task.source, Endless) else task.batch(step)
        loss = timed("forward", partial(forward, batch))
        timed("backward", partial(torch.autograd.backward, loss))
        timed("optimiser", update)
    start = _now(here)
    for step in range(warmup + steps, warmup + 2 * steps):
        whole(step)
    replay = step_of.captured
    each = (_now(here) - start) / steps

    def some_more() -> None:
        for step in range(warmup + 2 * steps, warmup + 3 * steps):
            whole(step)

    kernels = _kernels(some_more, steps, here) if profile else []
    memory = torch.cuda.max_memory_allocated(here) / 2**30 if here.type == "cuda" else 0.0
    return StepTimes(
        recipe=recipe.name,
        device=torch.cuda.get_device_name(here) if here.type == "cuda" else "cpu",
        batch=recipe.batch,
        precision=recipe.precision,
        parameters=sum(p.numel() for p in network.parameters()),
        parts={part: 1e3 * median(taken) if taken else 0.0 for part, taken in times.items()},
        step_ms=1e3 * each,
        per_second=recipe.batch / each,
        memory_gib=memory,
        replayed=replay,
        kernels=kernels,
    )


def _kernels(work: Callable[[], object], steps: int, device: torch.device) -> list[tuple[str, float, int]]:
    """Which kernels ``work`` of so many steps spends its time in: name, milliseconds and calls of a step."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=kinds, acc_events=True) as seen:
        work()
        _now(device)
    taken: dict[str, tuple[float, int]] = {}
    for entry in seen.key_averages():
        micros = float(entry.self_device_time_total if cuda else entry.self_cpu_time_total)
        if micros > 0:
            before = taken.get(entry.key, (0.0, 0))
            taken[entry.key] = (before[0] + micros, before[1] + int(entry.count))
    found = [(name, micros / 1e3 / steps, -(-count // steps)) for name, (micros, count) in taken.items()]
    return sorted(found, key=lambda entry: -entry[1])


def _sampled(task: MAPTask, step: int, timed: Callable[[str, Callable[[], Any]], Any]) -> Any:
    """A batch as `Endless` draws it, with drawing and labelling timed apart."""
    source = task.source
    assert isinstance(source, Endless)
    unlabelled = [_Unlabelled(s) for s in source.sets]
    timed("sampling", lambda: draw(unlabelled, source.size, step, source.device))
    return timed("labelling", lambda: source.batch(step))


class _Unlabelled:
    """A data set whose labels cost nothing: what is left is the drawing."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def sample(self, count: int, seed: int = 0, device: torch.device | str = "cpu") -> Any:
        return self.data.sample(count, seed=seed, device=device)

    def labels(self, batch: ModelBatch) -> torch.Tensor:
        return batch.unary[:, :, 0]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def report(times: StepTimes) -> str:
    """A few lines for a person; labelling is shown without the drawing that precedes it."""
    parts = dict(times.parts)
    parts["labelling"] = max(0.0, parts["labelling"] - parts["sampling"])
    told = "  ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
    text = (
        f"{times.recipe} on {times.device}: batch {times.batch}, {times.precision}, {times.parameters:,} parameters\n"
        f"  ms per step, each part waited for: {told}\n"
        f"  a step of the loop: {times.step_ms:.2f} ms, {times.per_second:,.0f} instances/s, {times.memory_gib:.1f} GiB"
    )
    if times.kernels:
        whole = sum(ms for _, ms, _ in times.kernels)
        text += f"\n  a step's kernels take {whole:.2f} ms; the longest:"
    for name, ms, calls in times.kernels[:40]:
        text += f"\n  {ms:8.3f} ms  {100 * ms / whole:5.1f} %  {calls:5d} x  {name[:90]}"
    return text


def keep(times: Sequence[StepTimes], device: str, out: str | Path | None = None) -> Path:
    """Write the numbers as ``training-DEVICE.json``; see `write_result`."""
    here = pick_device(device)
    payload = {"benchmark": "training", "environment": environment(here), "recipes": [t.plain() for t in times]}
    return write_result(f"training-{here.type}", payload, out)


def main() -> None:
    """`python -m fgnn.bench.training RECIPE ...`: where the command line's own packages are absent."""
    import argparse

    parser = argparse.ArgumentParser(description="Where a training step's time is spent.")
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="also list the kernels that take longest")
    parser.add_argument("--out", help="also keep the numbers here, in a file or a folder")
    given = parser.parse_args()
    found = []
    for name in given.recipes:
        for size in given.batch or [None]:
            changes = {} if size is None else {"batch": size}
            times = bench_training(
                name, device=given.device, compile=given.compile, steps=given.steps, profile=given.profile, **changes
            )
            print(report(times), flush=True)
            found.append(times)
    if given.out:
        print(keep(found, given.device, given.out))


if __name__ == "__main__":
    main()
