"""The plan of an elimination: indices compiled from the structure alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates
from fgnn.infer.exact.buckets import Bucket
from fgnn.infer.exact.builder import Step, StepBuilder
from fgnn.infer.exact.counters import Choice, choose_counters, problem_graph
from fgnn.infer.exact.domains import propagate
from fgnn.infer.exact.estimate import LIST_SHARE, Size, limit_measure
from fgnn.infer.exact.order import Order, OutOfTime, best_order
from fgnn.infer.exact.parts import Split
from fgnn.infer.exact.problem import Problem, free_problem
from fgnn.infer.exact.shapes import Shape
from fgnn.infer.exact.states import TooManyStates
from fgnn.infer.map_tensors import map_tensors

# Random restarts will not improve an order enough whose steps have 2^this times the states allowed for one.
_OUT_OF_REACH = 10.0
# States that a list can have per second it may take, joins included; building one cannot be interrupted.
_LIST_STATES = 4e5


class TooLarge(ValueError):
    """The elimination needs more states or memory than allowed; ``split`` has the components that are too wide."""

    split: Split | None = None


@dataclass(frozen=True, eq=False)
class ExactPlan:
    """How to solve the models of one structure. ``steps`` is None if no model has a feasible assignment."""

    problem: Problem | None
    steps: tuple[Step, ...] | None
    width: int  # the induced width of the order, over free variables
    memory: int  # bytes for one model in float64, choices and live results together

    @property
    def states(self) -> int:
        """The joint states of the largest step."""
        return max((step.shape.joint for step in self.steps or ()), default=1)

    @property
    def total_states(self) -> int:
        """The joint states of all steps: the work for one model."""
        return sum(step.shape.joint for step in self.steps or ())

    def to(self, device: torch.device) -> ExactPlan:
        """The plan with its indices on a device; steps that share a shape still do."""
        if self.steps is None or device.type == "cpu":
            return self
        moved: dict[int, Shape] = {}
        for step in self.steps:
            if id(step.shape) not in moved:
                moved[id(step.shape)] = map_tensors(step.shape, lambda t: t.to(device))
        return replace(self, steps=tuple(replace(s, shape=moved[id(s.shape)]) for s in self.steps))


def build_plan(
    structure: AllowedStates,
    *,
    max_states: int = 1 << 26,
    memory: int = 4 << 30,
    seed: int = 0,
    tries: int = 16,
    list_share: float = LIST_SHARE,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> ExactPlan:
    """Plan the elimination of all variables.

    Args:
        structure: What the models share.
        max_states: Upper limit on the joint states of a step.
        memory: Upper limit on the bytes for one model.
        seed: Of the random orders that are tried if min-fill's is costly.
        tries: Number of random orders.
        list_share: A step uses a list of feasible states if that has at most this share (log2) of all joint states.
        seconds_left: Called now and then; `OutOfTime` is raised when none are left.
    """

    def check() -> None:
        if seconds_left() <= 0:
            raise OutOfTime

    live = propagate(structure, check)
    if live is None:
        return ExactPlan(None, None, 0, 0)

    def order(problem: Problem, search: bool) -> Order:
        check()
        graph = problem_graph(problem)
        measure, hopeless = limit_measure(problem), math.log2(max_states) + _OUT_OF_REACH
        return best_order(
            graph,
            problem.cardinalities,
            measure,
            seed=seed,
            tries=tries if search else 0,
            hopeless=hopeless,
            seconds_left=seconds_left,
        )

    problem = free_problem(structure, live)
    try:
        choice = choose_counters(problem, order, check, list_share, memory)
    except TooManyStates as error:
        width = max(len(limit.scope) for limit in problem.limits) - 1  # of a clique
        raise too_large(width, error.count, 64 * error.count, max_states, memory) from None
    try:
        return _build(choice, max_states, memory, seconds_left)
    except TooLarge as error:
        error.split = _split(choice, live, max_states)
        raise


def _build(choice: Choice, max_states: int, memory: int, seconds_left: Callable[[], float]) -> ExactPlan:
    problem, order, buckets, sizes = choice.problem, choice.order, choice.buckets, choice.sizes
    _refuse_early(sizes, order.width, max_states, memory)
    most = min(max_states, memory // 64)
    builder = StepBuilder(problem, most)
    for bucket, size in zip(buckets, sizes, strict=True):
        left = seconds_left()
        if left <= 0:
            raise OutOfTime
        builder.most = int(min(most, left * _LIST_STATES))
        try:
            if not builder.add(bucket, size.listed):
                return ExactPlan(None, None, order.width, 0)
        except TooManyStates as error:
            if error.count <= most:
                raise OutOfTime from None
            raise too_large(order.width, error.count, 9 * error.count, max_states, memory) from None
    steps = tuple(builder.steps)
    plan = ExactPlan(problem, steps, order.width, _model_bytes([s.shape.rows for s in steps], buckets))
    if plan.memory > memory:
        raise too_large(plan.width, plan.states, plan.memory, max_states, memory)
    return plan


def _split(choice: Choice, live: NDArray[np.bool_], max_states: int) -> Split:
    """A component is hard unless counting shows that each of its steps has few enough states."""
    root = list(range(len(choice.buckets)))
    for t in reversed(range(len(root))):  # children come before their parents
        for c in choice.buckets[t].children:
            root[c] = root[t]
    # Half a bit below the limit, so that many steps close to it do not run out of memory.
    wide = {root[t] for t, size in enumerate(choice.sizes) if size.states > math.log2(max_states) - 0.5}
    hard = np.zeros(len(live), dtype=np.bool_)
    for t, bucket in enumerate(choice.buckets):
        v = bucket.scope[0]
        if root[t] in wide and v < len(choice.problem.variables):
            hard[choice.problem.variables[v]] = True
    return Split(live, hard)


def too_large(width: int, states: float, needed: float, max_states: int, memory: int) -> TooLarge:
    """The error, with the sizes."""
    return TooLarge(
        f"Expected an elimination of at most {max_states:,} joint states a step within {_readable(memory)} "
        f"(got induced width {width}, {states:,.0f} states in the largest step, about {_readable(needed)}); "
        "raise max_states and memory, or use method 'auto' or 'toulbar2'"
    )


def _readable(size: float) -> str:
    """A number of bytes with a unit."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, int(math.log2(max(1.0, size))) // 10)
    return f"{size / 1024**power:,.{min(1, power)}f} {units[power]}"


def _refuse_early(sizes: Sequence[Size], width: int, max_states: int, memory: int) -> None:
    """Refuse by counting alone. Lists may be shorter than their bounds, so only full tables count."""
    full = [size for size in sizes if not size.listed]
    states = max((size.states for size in full), default=0.0)
    choices = sum(2.0 ** min(size.message, 200.0) for size in full)
    needed = choices + 16.0 * 2.0 ** min(max((size.message for size in full), default=0.0), 200.0)
    if states > math.log2(max_states) + 1e-9 or needed > memory:
        raise too_large(width, 2.0 ** min(states, 1000.0), needed, max_states, memory)


def _model_bytes(rows: Sequence[int], buckets: Sequence[Bucket]) -> int:
    """One byte per choice, and eight per entry of the live results at their peak, including intermediate sums."""
    alive = peak = 0
    for t, bucket in enumerate(buckets):
        peak = max(peak, alive + 3 * rows[t])
        alive += rows[t] - sum(rows[c] for c in bucket.children)
    return sum(rows) + 8 * peak
