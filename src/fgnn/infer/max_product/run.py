"""Messages passed until they stand still, for as many models at once as fit: how `max-product` runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.max_product.fused_flooding import FusedFlooding
from fgnn.infer.max_product.messages import LIMIT
from fgnn.infer.max_product.sweeps import Sweep
from fgnn.infer.max_product.wiring import Numbers, Wiring
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.pgm import ModelBatch

# Message bytes worked on at once: about what the caches hold on a CPU, and a share of the memory on a GPU.
_CPU_BYTES = 1 << 21
_CPU_BYTES_IN_TURNS = 1 << 22
_GPU_BYTES = 1 << 28
# Iterations between looks at what has converged: each look waits for the device.
_CHECK_EVERY = 8
_CHECK_EVERY_FUSED = 16  # where these iterations are one operation
# The share of a pool that may stand still before it is exchanged: an exchange costs about half an iteration.
_MOST_AT_REST = 0.125
_NEWS_EVERY_SECONDS = 0.5


class MessageRun:
    """The answers of a batch, filled in as its models stop moving.

    A pool of models is worked on at once, as many as fit the caches or the memory. Those that have stopped make room
    for those that wait, so that the work stays in large operations until the last.
    """

    def __init__(
        self,
        batch: ModelBatch,
        wiring: Wiring,
        sweep: Sweep,
        fused: FusedFlooding | None,
        in_turns: bool,
        iterations: int,
        rate: float,
        tolerance: float,
        best: bool,
        normalise: bool,
        keep_beliefs: bool,
        deadline: float,
        progress: OnProgress | None,
        crew: list[MessageRun],
    ) -> None:
        self.batch, self.wiring, self.sweep, self.fused, self.in_turns = batch, wiring, sweep, fused, in_turns
        self.iterations, self.tolerance = iterations, tolerance
        settings = (rate, tolerance, LIMIT[batch.dtype])
        self.settings = torch.tensor(settings, dtype=batch.dtype, device=batch.device)
        self.rate = self.settings[0]
        self.best, self.normalise = best, normalise
        self.started, self.deadline, self.progress = time.perf_counter(), deadline, progress
        self.news_due = self.started + _NEWS_EVERY_SECONDS
        self.turns = 0
        self.crew, self.moving = crew, len(batch)  # all runs of a call; the models of this one that still move
        self.numbers = Numbers.of(batch, wiring)
        count, device = len(batch), batch.device
        self.assignment = torch.zeros(count, batch.num_variables, dtype=torch.int64, device=device)
        self.score = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.done = torch.zeros(count, dtype=torch.int64, device=device)
        self.converged = torch.zeros(count, dtype=torch.bool, device=device)
        self.timed_out = torch.zeros_like(self.converged)
        self.impossible = torch.zeros_like(self.converged)
        self.deltas = torch.zeros(min(iterations, 256) + 1, count, dtype=batch.dtype, device=device)
        self.beliefs = torch.zeros_like(batch.unary) if keep_beliefs else None

    def solve(self) -> None:
        """Pass messages until all models stand still, or iterations or time run out."""
        count = len(self.batch)
        every = _CHECK_EVERY if self.batch.device.type == "cuda" else 1
        every = every if self.fused is None else _CHECK_EVERY_FUSED
        width, waiting, turn = self._width(), 0, 0
        pool = self._pool(torch.zeros(0, dtype=torch.int64, device=self.batch.device))
        while True:
            if turn % every == 0:
                late = time.perf_counter() > self.deadline
                left = int(pool.active.sum())
                if late or self.iterations == 0:
                    self._stop(pool, range(waiting, count, width), late)
                    return
                size = pool.models.shape[0]
                if size - left >= size * _MOST_AT_REST:
                    self._retire(pool.at(~pool.active))
                    # under a shared order all models of a pool are at the same iteration, so none may join
                    fresh = min(width - left, count - waiting) if left == 0 or not self.in_turns else 0
                    coming = torch.arange(waiting, waiting + fresh, device=self.batch.device)
                    pool = pool.at(pool.active).joined(self._pool(coming), self.numbers)
                    waiting += fresh
                    turn = 0 if left == 0 else turn
                    if not len(pool.models):
                        self.moving = 0
                        return
                self.moving = count - waiting + pool.models.shape[0]
                self._tell(pool)
            if self.fused is not None:
                self._make_room(every)
                self.fused.run(
                    pool.numbers, pool.messages, pool.models, pool.active, pool.settled, pool.done, self.deltas,
                    self.settings, self.iterations, every,
                )  # fmt: skip
                turn += every
                continue
            pool.messages, change = self.sweep(pool.numbers, pool.messages, pool.active * self.rate, turn)
            turn += 1
            self._record(pool, change)
            if self.best:
                self._consider(pool)

    def answer(self) -> Answer:
        """What the messages say, after `solve`."""
        info: dict[str, Any] = {"deltas": self.deltas[: int(self.done.max()) if len(self.batch) else 0].t()}
        if self.beliefs is not None:
            info["beliefs"] = self.beliefs
        return Answer.of(
            self.assignment,
            proved=self.impossible,
            converged=self.converged,
            iterations=self.done,
            timed_out=self.timed_out,
            info=info,
        )

    def _pool(self, models: Tensor) -> Pool:
        """Models that have not begun."""
        return Pool(
            models=models,
            numbers=self.numbers.columns(models),
            messages=self.numbers.unary.new_zeros(len(self.wiring.belief_of), len(models)),
            active=torch.ones_like(models, dtype=torch.bool),
            settled=torch.zeros_like(models, dtype=torch.bool),
            done=torch.zeros_like(models),
        )

    def _width(self) -> int:
        """How many models to work on at once: what fits with the messages and the largest group of tables."""
        cells = max((math.prod(t.values.shape[1:]) for t in self.batch.tables), default=0)
        each = (len(self.wiring.belief_of) + cells + 1) * self.batch.unary.element_size()
        if self.batch.device.type != "cpu":
            return max(1, _GPU_BYTES // each)
        on_cpu = _CPU_BYTES_IN_TURNS if self.in_turns else _CPU_BYTES
        return max(1, on_cpu // each)

    def _stop(self, pool: Pool, waiting: range, late: bool) -> None:
        """Read off every answer as it stands: those in the pool, and those that never came into it."""
        self._retire(pool)
        self.timed_out[pool.models] = pool.active
        for at in waiting:
            rest = self._pool(torch.arange(at, min(at + waiting.step, waiting.stop), device=self.batch.device))
            rest.settled |= not late and not self.wiring.groups
            self._retire(rest)
            self.timed_out[rest.models] = late

    def _record(self, pool: Pool, change: Tensor) -> None:
        """Count the iteration and note its change, for the models that moved."""
        self._make_room(1)
        # a model at rest writes a zero into its next row, which is one past the last where its iterations are spent
        self.deltas.index_put_((pool.done, pool.models), change.masked_fill(~pool.active, 0.0))
        moves = change > self.tolerance
        pool.done += pool.active
        pool.settled |= pool.active > moves
        pool.active &= moves
        if self.turns >= self.iterations:  # no model has more behind it
            pool.active &= pool.done < self.iterations

    def _make_room(self, more: int) -> None:
        """Rows of deltas for so many more iterations, which are counted."""
        while self.turns + more >= self.deltas.shape[0] <= self.iterations:
            self.deltas = torch.cat([self.deltas, torch.zeros_like(self.deltas)])[: self.iterations + 1]
        self.turns += more

    def _consider(self, pool: Pool) -> None:
        """Keep what the present beliefs decode to where it scores higher than all before."""
        candidate = self._decode(pool)
        score = self.batch.select(pool.models).score(candidate)
        better = score > self.score[pool.models]
        self.score[pool.models] = torch.where(better, score, self.score[pool.models])
        self.assignment[pool.models] = torch.where(better[:, None], candidate, self.assignment[pool.models])

    def _decode(self, pool: Pool) -> Tensor:
        """Each variable's best state, the lowest of equals, shape (B, N)."""
        beliefs = self.wiring.beliefs(pool.numbers.unary, pool.messages)
        return self.wiring.padded_beliefs(beliefs, normalise=False).argmax(2)

    def _retire(self, pool: Pool) -> None:
        """Read the answers off the messages."""
        models = pool.models
        beliefs = self.wiring.padded_beliefs(self.wiring.beliefs(pool.numbers.unary, pool.messages), self.normalise)
        last = beliefs.argmax(2)
        if self.best:
            none = self.score[models] == -torch.inf
            last = torch.where(none[:, None], last, self.assignment[models])
        self.assignment[models] = last
        self.converged[models] = pool.settled
        self.done[models] = pool.done
        # A state is only ever ruled out by proof, so a variable without states proves that there is no answer; but
        # messages that are not normalised may grow beyond all numbers, and then look ruled out.
        if self.normalise:
            self.impossible[models] = (beliefs == -torch.inf).all(2).any(1)
        if self.beliefs is not None:
            self.beliefs[models] = beliefs

    def _tell(self, pool: Pool) -> None:
        now = time.perf_counter()
        if self.progress is None or now < self.news_due:
            return
        self.news_due = now + _NEWS_EVERY_SECONDS
        count = sum(len(run.batch) for run in self.crew)
        if count > 1:
            note = f"{sum(run.moving for run in self.crew)} of {count} models still move"
            self.progress(Progress("max-product", now - self.started, -math.inf, math.inf, note))
            return
        found = self.assignment if self.best else self._decode(pool)
        score = float(self.batch.score(found))
        note = f"iteration {self.turns}"
        self.progress(Progress("max-product", now - self.started, score, math.inf, note, assignment=found.clone()))


@dataclass(eq=False)
class Pool:
    """The models being worked on, and how far they are."""

    models: Tensor  # shape: (b,), their places in the batch
    numbers: Numbers
    messages: Tensor  # shape: (Q or 2Q, b)
    active: Tensor  # shape: (b,), bool: still moving, with iterations left
    settled: Tensor  # shape: (b,), bool: converged
    done: Tensor  # shape: (b,), iterations

    def at(self, which: Tensor) -> Pool:
        """Those where a mask holds."""
        kept = which.nonzero().flatten()
        return Pool(
            self.models[kept],
            self.numbers.columns(kept),
            self.messages.index_select(1, kept),
            self.active[kept],
            self.settled[kept],
            self.done[kept],
        )

    def joined(self, other: Pool, numbers: Numbers) -> Pool:
        """These and others; ``numbers`` are those of the whole batch."""
        models = torch.cat([self.models, other.models])
        return Pool(
            models,
            numbers.columns(models),
            torch.cat([self.messages, other.messages], 1),
            torch.cat([self.active, other.active]),
            torch.cat([self.settled, other.settled]),
            torch.cat([self.done, other.done]),
        )
