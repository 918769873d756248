"""Run max-product on a batch until its messages converge, with as many models at once as fit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.max_product.fused_flooding import FusedFlooding
from fgnn.infer.max_product.numbers import Numbers, Rule
from fgnn.infer.max_product.pair_lanes import PairLanes
from fgnn.infer.max_product.pool import Pool
from fgnn.infer.max_product.sweeps import Sweep
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer
from fgnn.pgm import ModelBatch
from fgnn.pgm.factors.ones import LIMIT

# Bytes of messages processed at once: about the size of the caches on a CPU, a share of the memory on a GPU.
_CPU_BYTES = 1 << 21
_CPU_BYTES_IN_TURNS = 1 << 22
_GPU_BYTES = 1 << 28
# Iterations between checks for convergence, each of which waits for the device.
_CHECK_EVERY = 8
# Messages that compiled loops update in one call, a few tenths of a second.
_UPDATES = 1 << 26
# Share of a pool that may be inactive before it is replaced, which costs about half an iteration.
_MOST_INACTIVE = 0.125


# Many iterations in one call.
Fused = FusedFlooding | PairLanes


@dataclass(frozen=True)
class RunOptions:
    """The options of `solve_max_product` that a run needs."""

    rule: Rule
    iterations: int
    damping: float
    tolerance: float
    in_turns: bool  # sequential: all models of a pool are at the same iteration
    best: bool  # keep the assignment of the highest score instead of the last
    keep_beliefs: bool
    keep_messages: bool = False


class MessageRun:
    """The answers for a batch, filled in as its models converge.

    A pool of models is processed at once, as many as fit the caches or the memory. Inactive models are replaced by
    waiting ones, so that operations stay large until the end.

    Args:
        batch: The models.
        wiring: Their structure.
        sweep: One iteration.
        fused: Many iterations in one launch, instead of ``sweep``.
        options: Of the solver.
        deadline: When to stop, by ``time.perf_counter``.
        reporter: Receives the progress.
        runs: All runs of the call, for reports on all models.
    """

    def __init__(
        self,
        batch: ModelBatch,
        wiring: Wiring,
        sweep: Sweep,
        fused: Fused | None,
        options: RunOptions,
        deadline: float,
        reporter: Reporter,
        runs: list[MessageRun],
    ) -> None:
        self.batch, self.wiring, self.sweep, self.fused, self.options = batch, wiring, sweep, fused, options
        self.iterations = options.iterations if wiring.groups else 0
        settings = (1.0 - options.damping, options.tolerance, LIMIT[batch.dtype])
        self.settings = torch.tensor(settings, dtype=batch.dtype, device=batch.device)
        self.rate = self.settings[0]
        self.deadline, self.reporter = deadline, reporter
        self.counted = 0  # iterations since the start
        self.runs, self.unfinished = runs, len(batch)
        self.numbers = Numbers.of(batch, wiring, total=options.rule.total)
        count, device = len(batch), batch.device
        self.assignment = torch.zeros(count, batch.num_variables, dtype=torch.int64, device=device)
        self.score = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.done = torch.zeros(count, dtype=torch.int64, device=device)
        self.converged = torch.zeros(count, dtype=torch.bool, device=device)
        self.timed_out = torch.zeros_like(self.converged)
        self.infeasible = torch.zeros_like(self.converged)
        self.deltas = torch.zeros(min(self.iterations, 256) + 1, count, dtype=batch.dtype, device=device)
        self.beliefs = torch.zeros_like(batch.unary) if options.keep_beliefs else None
        self.messages = batch.unary.new_zeros(len(wiring.belief_of), count) if options.keep_messages else None

    def solve(self) -> None:
        """Pass messages until all models have converged, or iterations or time run out."""
        count = len(self.batch)
        every = _CHECK_EVERY if self.batch.device.type == "cuda" else 1
        every = every if self.fused is None else self.fused.every
        most = 1.0 if self.fused is not None and not self.fused.replaces else _MOST_INACTIVE
        width, waiting, turn = self._width(), 0, 0
        pool = self._pool(range(0))
        while True:
            if turn % every == 0:
                late = time.perf_counter() > self.deadline
                active = int(pool.active.sum())
                if late or self.iterations == 0:
                    self._stop(pool, range(waiting, count, width), late)
                    return
                size = pool.models.shape[0]
                if size - active >= size * most:
                    self._retire(pool.at(~pool.active))
                    # In turns, all models of a pool are at the same iteration, so none may join a running pool.
                    joining = min(width - active, count - waiting) if active == 0 or not self.options.in_turns else 0
                    fresh = self._pool(range(waiting, waiting + joining))
                    pool = pool.at(pool.active).joined(fresh, self.numbers)
                    waiting += joining
                    turn = 0 if active == 0 else turn
                    if not len(pool.models):
                        self.unfinished = 0
                        return
                self.unfinished = count - waiting + pool.models.shape[0]
                self._report(pool)
            turn += self._advance(pool, turn, every)

    def answer(self) -> Answer:
        """The answer after `solve`."""
        info: dict[str, Any] = {"deltas": self.deltas[: int(self.done.max()) if len(self.batch) else 0].t()}
        if self.beliefs is not None:
            info["beliefs"] = self.beliefs
        return Answer.of(
            self.assignment,
            bound=torch.where(self.infeasible, -torch.inf, torch.inf).double(),
            converged=self.converged,
            iterations=self.done,
            timed_out=self.timed_out,
            info=info,
        )

    def _pool(self, models: range) -> Pool:
        """Models that have not begun."""
        index = torch.arange(models.start, models.stop, device=self.batch.device)
        return Pool.fresh(index, self.numbers, len(self.wiring.belief_of))

    def _width(self) -> int:
        """How many models to process at once: as many as fit with their messages and largest group of tables."""
        cells = max((math.prod(t.values.shape[1:]) for t in self.batch.tables), default=0)
        each = (len(self.wiring.belief_of) + cells + 1) * self.batch.unary.element_size()
        if self.fused is not None and not self.fused.replaces:
            return max(1, _UPDATES // (self.fused.every * len(self.wiring.belief_of)))
        if self.batch.device.type != "cpu":
            return max(1, _GPU_BYTES // each)
        return max(1, (_CPU_BYTES_IN_TURNS if self.options.in_turns else _CPU_BYTES) // each)

    def _advance(self, pool: Pool, turn: int, every: int) -> int:
        """Run one iteration, or ``every`` fused ones; returns how many."""
        if self.fused is not None:
            self._make_room(every)
            own = self.options.rule.own
            self.fused.run(pool, self.deltas, self.settings, own=own, iterations=self.iterations, steps=every)
            return every
        pool.messages, change = self.sweep(pool.numbers, pool.messages, pool.active * self.rate, turn)
        self._record(pool, change)
        if self.options.best:
            self._keep_better(pool)
        return 1

    def _stop(self, pool: Pool, waiting: range, late: bool) -> None:
        """Read off the answers of the pool as they are, and of the models that never joined it."""
        self._retire(pool)
        self.timed_out[pool.models] = pool.active
        for at in waiting:
            rest = self._pool(range(at, min(at + waiting.step, waiting.stop)))
            rest.converged |= not late and not self.wiring.groups
            self._retire(rest)
            self.timed_out[rest.models] = late

    def _record(self, pool: Pool, change: Tensor) -> None:
        """Count the iteration and store its change, for the active models."""
        self._make_room(1)
        # Inactive models write a zero into their next row, which is one past the last if their iterations are used up.
        self.deltas.index_put_((pool.done, pool.models), change.masked_fill(~pool.active, 0.0))
        moves = change > self.options.tolerance
        pool.done += pool.active
        pool.converged |= pool.active > moves
        pool.active &= moves
        if self.counted >= self.iterations:  # no model has done more
            pool.active &= pool.done < self.iterations

    def _make_room(self, more: int) -> None:
        """Count ``more`` iterations and grow ``deltas`` to hold them."""
        while self.counted + more >= self.deltas.shape[0] <= self.iterations:
            self.deltas = torch.cat([self.deltas, torch.zeros_like(self.deltas)])[: self.iterations + 1]
        self.counted += more

    def _keep_better(self, pool: Pool) -> None:
        """Keep the assignments of the current beliefs that score higher than all before."""
        candidate = self._decode(pool)
        score = self.batch.select(pool.models).score(candidate)
        better = score > self.score[pool.models]
        self.score[pool.models] = torch.where(better, score, self.score[pool.models])
        self.assignment[pool.models] = torch.where(better[:, None], candidate, self.assignment[pool.models])

    def _decode(self, pool: Pool) -> Tensor:
        """Each variable's best state, the lowest on ties, shape (B, N)."""
        return self.wiring.padded_beliefs(pool.numbers.unary, pool.messages, normalise=False).argmax(2)

    def _retire(self, pool: Pool) -> None:
        """Store the answers of a pool."""
        models, normalise = pool.models, self.options.rule.normalise
        beliefs = self.wiring.padded_beliefs(pool.numbers.unary, pool.messages, normalise)
        last = beliefs.argmax(2)
        if self.options.best:
            none = self.score[models] == -torch.inf
            last = torch.where(none[:, None], last, self.assignment[models])
        self.assignment[models] = last
        self.converged[models] = pool.converged
        self.done[models] = pool.done
        # States are only excluded by proof, so a variable without states proves infeasibility. Messages that are not
        # normalised may overflow, which looks the same.
        if normalise:
            self.infeasible[models] = (beliefs == -torch.inf).all(2).any(1)
        if self.beliefs is not None:
            self.beliefs[models] = beliefs
        if self.messages is not None:
            self.messages[:, models] = pool.messages

    def _report(self, pool: Pool) -> None:
        if not self.reporter.due():
            return
        count = sum(len(run.batch) for run in self.runs)
        if count > 1:
            self.reporter.send(f"{sum(run.unfinished for run in self.runs)} of {count} models not converged")
        else:
            current = self.assignment if self.options.best else self._decode(pool)
            score = float(self.batch.score(current))
            self.reporter.send(f"iteration {self.counted}", score, assignment=current.clone())
