"""Exact MAP by variable elimination over feasible states."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from fgnn.infer.certificate import certified, num_factors, rounding
from fgnn.infer.exact.allowed_states import allowed_states
from fgnn.infer.exact.estimate import LIST_SHARE
from fgnn.infer.exact.order import OutOfTime
from fgnn.infer.exact.plan import ExactPlan, TooLarge, build_plan, too_large
from fgnn.infer.exact.problem import Source
from fgnn.infer.exact.run import run_plan
from fgnn.infer.lowered import counting, lowers_except
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import ModelBatch

__all__ = ["OutOfTime", "TooLarge", "exact_plan", "solve_exact"]

# On the CPU models are solved in slices whose largest result has at most this many entries. That fits the cache of a
# core, and torch runs operations of this size on one thread, so slices can run in parallel.
_CPU_SLICE = 1 << 15
# Bytes that a call may take on the CPU by default, if half of the memory is more.
DEFAULT_MEMORY = 4 << 30


@lowers_except(counting)
@certified
def solve_exact(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    max_states: int = 1 << 26,
    memory: int | None = None,
    tries: int = 16,
    dtype: torch.dtype = torch.float64,
) -> Answer:
    r"""Eliminate the variables one by one, :math:`\mu(x_{N(v)}) = \max_{x_v} \sum_{c \ni v} \theta_c(x_c)`.

    The order is min-fill's, or a cheaper one found by random restarts. Each step maximises over its feasible joint
    states only, so a chain with windows of 20 and at most 5 ones costs 16,664 states a step, not 2^19. Counters over
    many variables, such as budgets and parities, become running sums. Ties go to the lowest state, on every device.

    Args:
        batch: Models of one structure.
        time_limit: Seconds; models not solved by then are ``timed_out``.
        seed: Seed of the random restarts.
        progress: Called about twice a second.
        max_states: Upper limit on the joint states of a step.
        memory: Upper limit on the memory in bytes: by default 4 GiB (at most half of the installed memory) on the CPU,
            half of the free memory on a GPU.
        tries: Random restarts of the order, if min-fill's is costly.
        dtype: Of the sums, float64 or float32, which proves only models whose sums it holds exactly, such as
            small integers.

    Raises:
        TooLarge: A `ValueError` with the induced width, the states and the memory that would be needed.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Expected sums in torch.float64 or torch.float32 (got {dtype})")
    clock = Clock(time_limit, progress, len(batch))
    memory = default_memory(batch.device) if memory is None else memory
    # Standard numbers have one sign, so the error of a sum is relative to it, but for what underflows in float32.
    error, lost = rounding(batch, dtype), 0.0 if dtype == torch.float64 else num_factors(batch) * 2.0**-126
    # The answer for models that are not solved in time.
    assignment = batch.unary.argmax(2)
    bound = torch.full((len(batch),), torch.inf, dtype=torch.float64, device=batch.device)
    solved = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
    steps, info = 0, {}
    if len(batch) == 0:
        return Answer.of(assignment)
    try:
        plan = exact_plan(batch, time_limit=time_limit, seed=seed, max_states=max_states, memory=memory, tries=tries)
        info = {"width": plan.width, "states": plan.states, "total_states": plan.total_states, "memory": plan.memory}
        if plan.steps is None:  # no model has a feasible assignment
            bound.fill_(-torch.inf)
            solved.fill_(True)
        else:
            steps = len(plan.steps)

            def work(part: slice) -> None:
                assignment[part], value = run_plan(plan, batch.select(part), dtype, clock.check)
                bound[part] = value.double() * (1 - error[part]) + lost
                solved[part] = True
                clock.done += part.stop - part.start

            in_slices(work, plan, batch, memory, (plan.memory // 8) * dtype.itemsize)
    except OutOfTime:
        pass
    return Answer.of(
        assignment,
        bound=bound,
        converged=solved,
        timed_out=~solved,
        iterations=steps,
        info=info,
    )


def default_memory(device: torch.device, most: int | None = DEFAULT_MEMORY) -> int:
    """The default memory limit in bytes: half of the memory, on the CPU at most ``most``."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return DEFAULT_MEMORY
    return installed // 2 if most is None else min(most, installed // 2)


def exact_plan(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    max_states: int = 1 << 26,
    memory: int | None = None,
    tries: int = 16,
    list_share: float = LIST_SHARE,
    meanwhile: Callable[[], None] = lambda: None,
) -> ExactPlan:
    """The plan of `solve_exact`, on the device of the batch; kept for the next batch of this structure.

    ``meanwhile`` is called now and then.

    Raises:
        TooLarge: As `solve_exact` does.
        OutOfTime: The time limit was reached.
    """
    clock = Clock(time_limit, None, len(batch))
    memory = default_memory(batch.device) if memory is None else memory
    allowed = allowed_states(batch)

    def seconds_left() -> float:
        meanwhile()
        return clock.seconds_left()

    def build() -> ExactPlan:
        plan = build_plan(
            allowed,
            max_states=max_states,
            memory=memory,
            seed=seed,
            tries=tries,
            list_share=list_share,
            seconds_left=seconds_left,
        )
        return plan.to(batch.device)

    plan = batch.structure.recent("elimination plans", (allowed.key, max_states, seed, tries, list_share), build)
    if plan.memory > memory:
        raise too_large(plan.width, plan.states, plan.memory, max_states, memory)
    return plan


def in_slices(
    work: Callable[[slice], None],
    plan: ExactPlan,
    batch: ModelBatch,
    memory: int,
    model_bytes: int,
    *,
    threads: bool = True,
    entries: int = _CPU_SLICE,
) -> None:
    """Call ``work`` on slices of models that fit in memory, at ``model_bytes`` for the results of one model besides its
    numbers. On the CPU several slices run in parallel, unless ``threads`` is False, and the largest result of a slice
    has at most ``entries``."""
    models = len(batch)
    largest = max((step.shape.rows for step in plan.steps or ()), default=1)
    not_shared = [batch.unary, *(t.values for t in batch.tables if not t.shared)]
    numbers = sum(values.numel() // models * values.element_size() for values in not_shared)
    numbers += _sum_bytes(plan, batch)
    per_model = max(1, model_bytes + numbers)
    size, workers = max(1, memory // per_model), 1
    if batch.device.type == "cpu":
        workers = torch.get_num_threads() if threads and largest <= entries else 1
        size = max(1, min(size // workers, entries // largest))
    parts = [slice(at, min(at + size, models)) for at in range(0, models, size)]
    if workers == 1 or len(parts) == 1:
        for part in parts:
            work(part)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        for _ in pool.map(work, parts):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _sum_bytes(plan: ExactPlan, batch: ModelBatch) -> int:
    """Bytes of the log-potentials of sums that a plan reads and that each model has for itself."""
    inputs = [s for step in plan.steps or () for s in step.inputs if isinstance(s, Source)]
    inputs += [s for s, _ in plan.problem.constants] if plan.problem is not None else []
    total = 0
    for g in {s.group for s in inputs if s.kind == "sum"}:
        group = batch.counted[g]
        bounds = group.bounds()
        sets = len(group.potentials(torch.float64) if bounds is None else bounds[0])  # B, or 1 if models share them
        if sets > 1 and group.counter is not None:
            total += len(group.scopes) * len(group.counter.entries) * 8
    return total


class Clock(Reporter):
    """The time limit and the progress of a call."""

    def __init__(self, limit: float | None, progress: OnProgress | None, models: int, *, method: str = "exact") -> None:
        super().__init__(method, progress)
        self.limit, self.models, self.done = limit, models, 0

    def left(self) -> float | None:
        """Seconds until the time limit; None: no limit."""
        return None if self.limit is None else max(1e-3, self.limit - (time.perf_counter() - self.started))

    def seconds_left(self) -> float:
        return math.inf if self.limit is None else self.limit - (time.perf_counter() - self.started)

    def check(self, step: int, steps: int) -> None:
        """Raise `OutOfTime` after the time limit; report progress if due."""
        if self.seconds_left() <= 0:
            raise OutOfTime
        if self.due():
            single = self.models == 1
            self.send(f"step {step} of {steps}" if single else f"{self.done} of {self.models} models solved")
