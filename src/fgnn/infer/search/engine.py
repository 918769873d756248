"""Threads that search the models of a batch, one model after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from torch import Tensor

from fgnn.infer.reporter import Reporter
from fgnn.infer.search.anneal import anneal, descend, fill_field
from fgnn.infer.search.arrays import Ints, arrays_of
from fgnn.infer.search.crew import Crew
from fgnn.infer.search.guide import sample
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.worker import MOVES, Worker
from fgnn.pgm import GraphicalModel, ModelBatch

_POLL = 0.02  # seconds between looks at the threads


class Engine:
    """Searches models until a deadline, or for a number of rounds.

    In a round every worker makes one slice; what it offers to the pool counts from the next round on, in the order of
    the workers. So the seed determines the result, whatever the threads do. Without rounds, workers do not wait for
    each other. ``guide`` holds a network's scores (B, N, K).
    """

    def __init__(
        self,
        seed: int,
        rounds: int | None,
        workers: int,
        moves: Sequence[str],
        reporter: Reporter,
        guide: Tensor | None = None,
    ) -> None:
        self.seed, self.rounds, self.workers, self.moves, self.reporter = seed, rounds, workers, moves, reporter
        self.guide = guide
        self.slices: Counter[str] = Counter()

    def run(self, batch: ModelBatch, best: Tensor, deadline: float) -> tuple[Tensor, bool]:
        """Improve assignments (B, N); return them, and whether Ctrl-C was pressed."""
        best = best.clone()
        interrupted = False
        for b in range(len(batch)):
            now = time.perf_counter()
            if now >= deadline or interrupted:
                break
            end = now + (deadline - now) / (len(batch) - b)
            guide = None if self.guide is None else self.guide[b]
            crew = Crew(batch, b, best[b], self.seed, self.moves, guide)
            crew.hire(self.workers)
            try:
                if self.rounds is not None:
                    self._rounds(crew, end)
                else:
                    self._until(crew, end, best, b)
            except KeyboardInterrupt:
                interrupted = True
            best[b] = crew.best().to(best)
            self.slices.update(crew.slices())
        return best, interrupted

    def _rounds(self, crew: Crew, end: float) -> None:
        assert self.rounds is not None
        with ThreadPoolExecutor(len(crew.workers)) as threads:
            for done in range(self.rounds):
                if crew.pool.solved or time.perf_counter() >= end:
                    break
                left = float(self.rounds - done)
                with crew.pool.deferred():
                    list(threads.map(lambda worker: worker.slice(left), crew.workers))  # noqa: B023

    def _until(self, crew: Crew, end: float, best: Tensor, b: int) -> None:
        try:
            crew.begin(end)
            while not crew.wait(_POLL):
                if self.reporter.due():
                    best[b] = crew.best().to(best)
                    self.reporter.send("", crew.score(), 0.0, best.clone())
        finally:
            crew.stop()
        crew.check()


def warm_up() -> None:
    """Call every compiled loop once, on a tiny model."""
    model = GraphicalModel([2, 3, 2, 2])
    model.add_unaries(-np.arange(9.0))
    model.add_table((0, 1), -np.ones((2, 3)))
    model.add_table((1, 2), -np.ones((3, 2)))
    model.add_linear((0, 2, 3), [1, 1, 1], at_most=2)
    penalised = Penalised.of(*arrays_of(ModelBatch.stack([model]), 0))
    pool = Pool()
    other: Ints = np.zeros(4, np.int64)
    pool.offer(other, penalised.rank(other))
    for move in MOVES:  # alone, none is left out
        worker = Worker(penalised, pool, (0,), (move,), np.full(len(penalised.arrays.unary), 0.5))
        strategy = worker.strategies[move]
        strategy.step(1.0)
        worker.offer(other, strategy)
    assert worker.repair is not None  # for the sum
    worker.repair.step(1.0)
    sample(worker.m, penalised.arrays.unary, other, worker.rng)
    fill_field(worker.m, other, worker.field, worker.sums)
    descend(worker.m, other, worker.field, worker.sums, 0.0, 1, worker.rng)
    anneal(worker.m, other, worker.field, worker.sums, 1.0, 0.5, 1, 1, worker.rng, worker.scratch)
