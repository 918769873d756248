"""Threads that search one model and share a pool of the best assignments."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from threading import Event, Thread

import numpy as np
import torch
from torch import Tensor

from fgnn.infer.search.arrays import arrays_of
from fgnn.infer.search.guide import beliefs
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.worker import Worker
from fgnn.pgm import ModelBatch

_FIRST = 64.0  # slices that are expected to follow the first


class Crew:
    """Workers on model ``b`` of a batch, which begin with an assignment (N,).

    ``guide`` holds a network's scores (N, K) of all states.
    """

    def __init__(
        self, batch: ModelBatch, b: int, start: Tensor, seed: int, moves: Sequence[str], guide: Tensor | None = None
    ) -> None:
        self._seed, self._moves = (seed, b), moves
        self.model = Penalised.of(*arrays_of(batch, b))
        self._belief = None if guide is None else beliefs(guide, self.model.arrays.cards)
        self.pool = Pool()
        self.workers: list[Worker] = []
        self._threads: list[Thread] = []
        self._stop = Event()
        self._errors: list[BaseException] = []
        self.offer(start)

    def offer(self, assignment: Tensor) -> None:
        """Give an assignment (N,) of another method to the pool."""
        x = assignment.cpu().numpy().astype(np.int64)
        self.pool.offer(x, self.model.rank(x))

    def best(self) -> Tensor:
        """The best assignment so far, (N,)."""
        return torch.from_numpy(self.pool.best().x)

    def score(self) -> float:
        """Its standard score, ``-inf`` if it is infeasible."""
        far, score = self.pool.best().rank
        return score if far == 0 else -float("inf")

    def hire(self, count: int) -> None:
        """Add workers."""
        for _ in range(count):
            seed = (*self._seed, len(self.workers))
            worker = Worker(self.model.copy(), self.pool, seed, self._moves, self._belief)
            self.pool.offer(worker.start, self.model.rank(worker.start))
            self.workers.append(worker)

    def begin(self, end: float) -> None:
        """Let all workers without a thread search until ``end`` in threads of their own."""
        for worker in self.workers[len(self._threads) :]:
            thread = Thread(target=self._work, args=(worker, end), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the threads, at most this long; return whether all have ended."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)
                break
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End all threads, after the slices that they are at."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def check(self) -> None:
        """Raise the error of a thread that failed."""
        if self._errors:
            raise self._errors[0]

    def slices(self) -> Counter[str]:
        """How many slices each strategy got."""
        counts: Counter[str] = Counter()
        for worker in self.workers:
            counts.update({name: s.slices for name, s in worker.strategies.items()})
        return counts

    def _work(self, worker: Worker, end: float) -> None:
        began, done, left = time.perf_counter(), 0, _FIRST
        try:
            while (now := time.perf_counter()) < end and not self.pool.solved and not self._stop.is_set():
                if done:
                    left = (end - now) * done / (now - began)
                worker.slice(left)
                done += 1
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()
