"""The log-sum-exp elimination of a batch: its plan, and passes over slices of models that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.exact.dense_sums import has_numba
from fgnn.infer.exact.estimate import LIST_SHARE
from fgnn.infer.exact.log_sum import Key, LogSum
from fgnn.infer.exact.plan import ExactPlan, TooLarge, too_large
from fgnn.infer.exact.solver import DEFAULT_MEMORY, Clock, default_memory, exact_plan, in_slices
from fgnn.pgm import ModelBatch

# Joint states of a step by default, for tensor operations and for compiled loops, and seconds per state of the latter.
_STATES, _COMPILED_STATES = 1 << 24, 1 << 31
_STATE_SECONDS = 6e-9
# Entries of the largest result of a slice on the CPU: exponentials weigh more than memory, so more than for maxima.
_SLICE = 1 << 17
# See `build_plan`.
_COMPILED_LIST_SHARE = -8.0


@dataclass(frozen=True, eq=False)
class Elimination:
    """A plan and the batch to run it on."""

    batch: ModelBatch
    plan: ExactPlan
    memory: int
    clock: Clock
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        batch: ModelBatch,
        clock: Clock,
        *,
        seed: int = 0,
        max_states: int | None = None,
        memory: int | None = None,
        tries: int = 16,
        dtype: torch.dtype = torch.float64,
    ) -> Elimination:
        """Plan the elimination, or find the plan that an earlier batch of this structure needed.

        Raises:
            TooLarge: A `ValueError` with the induced width, the states and the memory that would be needed.
            OutOfTime: The clock's time limit was reached.
        """
        if dtype not in (torch.float64, torch.float32):
            raise ValueError(f"Expected sums in torch.float64 or torch.float32 (got {dtype})")
        # A compiled loop sums hundreds of states of a full table in the time it takes to list one.
        fast = len(batch) == 1 and batch.device.type == "cpu" and dtype == torch.float64 and has_numba()
        if memory is None:
            memory = default_memory(batch.device, most=None if fast else DEFAULT_MEMORY)
        if max_states is None:
            max_states = _COMPILED_STATES if fast else _STATES
        options: dict[str, Any] = {"seed": seed, "max_states": max_states, "memory": memory, "tries": tries}
        options["list_share"] = _COMPILED_LIST_SHARE if fast else LIST_SHARE
        plan = exact_plan(batch, time_limit=clock.left(), **options)
        needed = plan.total_states * _STATE_SECONDS / torch.get_num_threads()
        clock.check(0, 1)
        if fast and needed > clock.seconds_left():
            raise TooLarge(
                f"Expected an elimination within the time limit (got {plan.total_states:,} joint states, about "
                f"{needed:.0f} s)"
            )
        return cls(batch, plan, memory, clock, dtype)

    @property
    def impossible(self) -> bool:
        """Whether the structure alone shows that no model has a feasible assignment."""
        return self.plan.steps is None

    @cached_property
    def info(self) -> dict[str, int]:
        plan = self.plan
        return {"width": plan.width, "states": plan.states, "total_states": plan.total_states}

    def each_slice(self, work: Callable[[slice, LogSum], None], *, threads: bool = True, keep: bool = True) -> None:
        """Run the forward pass on slices of models and hand each to ``work``; with ``threads`` on several at once.

        Without ``keep`` only log Z is needed.
        """
        if self.impossible or not len(self.batch):
            return

        def run(part: slice) -> None:
            work(part, LogSum(self.plan, self.batch.select(part), self.dtype, self.clock.check, keep))
            self.clock.done += part.stop - part.start

        # All results are kept for the way back, and the largest step needs a few tensors of its joint states.
        rows = sum(step.shape.rows for step in self.plan.steps or ())
        per_model = (2 * rows + 4 * self.plan.states) * self.dtype.itemsize
        if keep and len(self.batch) == 1 and 2 * rows * self.dtype.itemsize > self.memory:
            needed = 2 * rows * self.dtype.itemsize
            raise too_large(self.plan.width, self.plan.states, needed, self.plan.states, self.memory)
        in_slices(run, self.plan, self.batch, self.memory, per_model, threads=threads, entries=_SLICE)

    def log_z(self) -> Tensor:
        """log Z of every model, (B,) in float64, differentiable in every potential; its gradient is the marginals."""
        values = {("table", g): t.distinct("values") for g, t in enumerate(self.batch.tables)}
        for g, counter in enumerate(self.batch.counted):
            potentials = counter.by_sum(self.batch.dtype)
            if potentials.requires_grad:
                values["sum", g] = potentials
        inputs = (self.batch.constant, self.batch.unary, *values.values())
        result: Tensor = _LogZ.apply(self, list(values), *inputs)  # type: ignore[no-untyped-call]
        return result

    def gradient(self, weight: Tensor, wanted: Mapping[Key, Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
        """The gradient of ``(weight * log_z).sum()`` for the unaries and for the ``wanted`` groups, by their shapes."""
        batch = self.batch
        unary = torch.zeros(batch.unary.shape, dtype=self.dtype, device=batch.device)
        groups = [torch.zeros(*shape, dtype=self.dtype, device=batch.device) for shape in wanted.values()]
        lock, models = Lock(), len(batch)

        def work(part: slice, run: LogSum) -> None:
            count = part.stop - part.start
            own = {key: (1 if shape[0] < models else count, *shape[1:]) for key, shape in wanted.items()}
            unary[part], parts = run.gradient(weight[part], own)
            for total, of_slice in zip(groups, parts, strict=True):
                if len(total) < models:  # one for all models
                    with lock:
                        total += of_slice
                else:
                    total[part] = of_slice

        self.each_slice(work)
        return unary, groups


class _LogZ(torch.autograd.Function):
    """Recompute the messages on the way back: storing those of a large batch would take more memory than the models."""

    @staticmethod
    def forward(
        ctx: Any, elimination: Elimination, keys: list[Key], constant: Tensor, unary: Tensor, *values: Tensor
    ) -> Tensor:
        ctx.elimination = replace(elimination, batch=elimination.batch.detach())
        ctx.wanted = {key: tuple(v.shape) for key, v in zip(keys, values, strict=True)}
        ctx.dtypes = [constant.dtype, unary.dtype, *(v.dtype for v in values)]
        log_z = torch.full((len(constant),), -torch.inf, dtype=torch.float64, device=unary.device)

        def work(part: slice, run: LogSum) -> None:
            log_z[part] = run.log_z.double()

        elimination.each_slice(work, keep=False)
        return log_z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        unary, groups = ctx.elimination.gradient(weight, ctx.wanted)
        gradients = [weight, unary, *groups]
        return None, None, *(g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True))
