"""Threads that search the models of a batch, one model after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import torch
from torch import Tensor

from fgnn.infer.reporter import Reporter
from fgnn.infer.search.anneal import anneal, descend, fill_field
from fgnn.infer.search.arrays import Ints, arrays_of
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.worker import Worker
from fgnn.pgm import GraphicalModel, ModelBatch

_POLL = 0.02  # seconds between looks at the threads


class Engine:
    """Searches models until a deadline, or for a number of rounds.

    In a round every worker makes one slice; what it offers to the pool counts from the next round on, in the order of
    the workers. So the seed determines the result, whatever the threads do. Without rounds, workers do not wait for
    each other.
    """

    def __init__(self, seed: int, rounds: int | None, workers: int, moves: Sequence[str], reporter: Reporter) -> None:
        self.seed, self.rounds, self.workers, self.moves, self.reporter = seed, rounds, workers, moves, reporter
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
            model = Penalised.of(*arrays_of(batch, b))
            pool = Pool()
            start = best[b].cpu().numpy()
            pool.offer(start, model.rank(start))
            crew = [Worker(model.copy(), pool, (self.seed, b, w), self.moves) for w in range(self.workers)]
            for worker in crew:
                pool.offer(worker.start, model.rank(worker.start))
            try:
                if self.rounds is not None:
                    self._rounds(crew, pool, end)
                else:
                    self._until(crew, pool, end, best, b)
            except KeyboardInterrupt:
                interrupted = True
            best[b] = torch.from_numpy(pool.best().x).to(best)
            for worker in crew:
                self.slices.update({name: s.slices for name, s in worker.strategies.items()})
        return best, interrupted

    def _rounds(self, crew: list[Worker], pool: Pool, end: float) -> None:
        assert self.rounds is not None
        with ThreadPoolExecutor(len(crew)) as threads:
            for done in range(self.rounds):
                if pool.solved or time.perf_counter() >= end:
                    break
                left = float(self.rounds - done)
                with pool.deferred():
                    list(threads.map(lambda worker: worker.slice(left), crew))  # noqa: B023

    def _until(self, crew: list[Worker], pool: Pool, end: float, best: Tensor, b: int) -> None:
        stop = Event()
        errors: list[BaseException] = []
        began = time.perf_counter()

        def work(worker: Worker) -> None:
            try:
                done, left = 0, 64.0
                while (now := time.perf_counter()) < end and not pool.solved and not stop.is_set():
                    if done:
                        left = (end - now) * done / (now - began)
                    worker.slice(left)
                    done += 1
            except BaseException as error:
                errors.append(error)
                stop.set()

        threads = [Thread(target=work, args=(worker,), daemon=True) for worker in crew]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                threads[0].join(_POLL)
                if self.reporter.due():
                    best[b] = torch.from_numpy(pool.best().x).to(best)
                    far, score = pool.best().rank
                    self.reporter.send("", score if far == 0 else -float("inf"), 0.0, best.clone())
        finally:
            stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if errors:
            raise errors[0]


def warm_up() -> None:
    """Call every compiled loop once, on a tiny model."""
    model = GraphicalModel([2, 3, 2, 2])
    model.add_unaries(-np.arange(9.0))
    model.add_table((0, 1), -np.ones((2, 3)))
    model.add_table((1, 2), -np.ones((3, 2)))
    model.add_budget((0, 2, 3), 2)
    penalised = Penalised.of(*arrays_of(ModelBatch.stack([model]), 0))
    pool = Pool()
    worker = Worker(penalised, pool, (0,), ("anneal", "trees", "subgraphs"))
    other: Ints = worker.start.copy()
    pool.offer(other, penalised.rank(other))
    for strategy in worker.strategies.values():
        strategy.step(1.0)
        worker.offer(other, strategy)
    fill_field(worker.m, other, worker.field, worker.sums)
    descend(worker.m, other, worker.field, worker.sums, 0.0, 1, worker.rng)
    anneal(worker.m, other, worker.field, worker.sums, 1.0, 0.5, 1, 1, worker.rng, worker.scratch)
