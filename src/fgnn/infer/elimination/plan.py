"""The plan of an elimination: everything that depends on the structure alone, as indices an executor follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fgnn.infer.elimination.buckets import Bucket
from fgnn.infer.elimination.builder import Step, StepBuilder
from fgnn.infer.elimination.counters import choose_counters
from fgnn.infer.elimination.domains import propagate
from fgnn.infer.elimination.estimate import Size
from fgnn.infer.elimination.problem import Problem, free_problem
from fgnn.infer.elimination.shapes import Shape
from fgnn.infer.elimination.states import TooManyStates
from fgnn.infer.elimination.structure import Structure


class TooLarge(ValueError):
    """The elimination takes more states or memory than allowed."""


class OutOfTime(Exception):
    """The time limit came before the end."""


@dataclass(frozen=True, eq=False)
class ExactPlan:
    """How to solve every model of one structure. ``steps`` is None where no model of it has a feasible assignment."""

    problem: Problem | None
    steps: tuple[Step, ...] | None
    width: int  # the induced width of the order, over free variables
    memory: int  # bytes one model takes in float64, choices and live results together

    @property
    def states(self) -> int:
        """The joint states of the largest step."""
        return max((step.shape.joint for step in self.steps or ()), default=1)

    @property
    def total_states(self) -> int:
        """The joint states of all steps together: the work for one model."""
        return sum(step.shape.joint for step in self.steps or ())

    def to(self, device: torch.device) -> ExactPlan:
        """The plan with its indices on a device; steps that share a shape still do."""
        if self.steps is None or device.type == "cpu":
            return self
        moved: dict[int, Shape] = {}
        for step in self.steps:
            if id(step.shape) not in moved:
                moved[id(step.shape)] = step.shape.to(device)
        return replace(self, steps=tuple(replace(s, shape=moved[id(s.shape)]) for s in self.steps))


def build_plan(
    structure: Structure,
    *,
    max_states: int = 1 << 26,
    memory: int = 4 << 30,
    seed: int = 0,
    tries: int = 16,
    out_of_time: Callable[[], bool] = lambda: False,
) -> ExactPlan:
    """Plan the elimination of all variables.

    Args:
        structure: What the models share.
        max_states: The most joint states one step may have.
        memory: The most bytes one model may take.
        seed: Of the random orders that are tried where min-fill's is costly.
        tries: How many of these.
        out_of_time: Asked now and then; `OutOfTime` is raised when it says so.
    """
    live = propagate(structure)
    if live is None:
        return ExactPlan(None, None, 0, 0)
    choice = choose_counters(free_problem(structure, live), seed=seed, tries=tries, out_of_time=out_of_time)
    problem, order, buckets, sizes = choice.problem, choice.order, choice.buckets, choice.sizes
    _refuse_early(sizes, order.width, max_states, memory)
    builder = StepBuilder(problem, min(max_states, memory // 64))
    for bucket, size in zip(buckets, sizes, strict=True):
        if out_of_time():
            raise OutOfTime
        try:
            if not builder.add(bucket, size.listed):
                return ExactPlan(None, None, order.width, 0)
        except TooManyStates as error:
            raise too_large(order.width, error.count, 9 * error.count, max_states, memory) from None
    steps = tuple(builder.steps)
    plan = ExactPlan(problem, steps, order.width, _model_bytes([s.shape.rows for s in steps], buckets))
    if plan.memory > memory:
        raise too_large(plan.width, plan.states, plan.memory, max_states, memory)
    return plan


def too_large(width: int, states: float, needed: float, max_states: int, memory: int) -> TooLarge:
    """The refusal, in numbers."""
    return TooLarge(
        f"Expected an elimination of at most {max_states:,} joint states a step within {_gib(memory)} "
        f"(got induced width {width}, {states:,.0f} states in the largest step, about {_gib(needed)}); "
        "raise max_states and memory, or use method 'auto' or 'toulbar2'"
    )


def _gib(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError


def _refuse_early(sizes: Sequence[Size], width: int, max_states: int, memory: int) -> None:
    """Refuse by counting alone. Lists may turn out shorter than their bound, so only full tables are sure."""
    sure = [size for size in sizes if not size.listed]
    states = max((size.states for size in sure), default=0.0)
    choices = sum(2.0 ** min(size.message, 200.0) for size in sure)
    needed = choices + 16.0 * 2.0 ** min(max((size.message for size in sure), default=0.0), 200.0)
    if states > math.log2(max_states) + 1e-9 or needed > memory:
        raise too_large(width, 2.0 ** min(states, 1000.0), needed, max_states, memory)


def _model_bytes(rows: Sequence[int], buckets: Sequence[Bucket]) -> int:
    """One byte per choice, and eight per entry of the results alive at the worst moment, with the sums being made."""
    alive = peak = 0
    for t, bucket in enumerate(buckets):
        peak = max(peak, alive + 3 * rows[t])
        alive += rows[t] - sum(rows[c] for c in bucket.children)
    return sum(rows) + 8 * peak
