"""Ways to search a model in slices: annealing, tabu search, and exact solutions of random subgraphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from fgnn.infer.search.anneal import anneal, descend, fill_field
from fgnn.infer.search.arrays import Ints
from fgnn.infer.search.chance import uniform
from fgnn.infer.search.eliminate import improve
from fgnn.infer.search.guide import fill_doubt, sample
from fgnn.infer.search.propagate import propagate
from fgnn.infer.search.subgraph import workspace
from fgnn.infer.search.tabu import tabu_memory, tabu_search

if TYPE_CHECKING:
    from fgnn.infer.search.worker import Worker

WORK = 1 << 20  # joint states, or moves weighed, in a slice: about 10 to 20 ms
LEAST = 1e-12  # a smaller gain is none
_CELLS = tuple(1 << b for b in (6, 8, 10, 12, 14, 16, 18))  # joint states per step of a subgraph, by level
_MOST = 1 << 22  # joint states of one subgraph
_SWEEPS = 64  # of an annealing run that gives a climb a new start
_DISTURBED = 2000.0  # variables at most
_PATIENCE = 1000  # steps per variable that tabu search goes on without gain, at first


class Strategy(ABC):
    """A way to search that works in slices."""

    def __init__(self, worker: Worker) -> None:
        self.w = worker
        self.x: Ints | None = None
        self.slices = 0
        self.gained = self.spent = 0.0  # of the best score, and in slices; lately
        self.shortfall = 0.0  # of its results, behind the best; lately
        self.failed = 0  # offers in a row that were not the best

    @abstractmethod
    def step(self, left: float) -> None:
        """Work for one slice, with ``left`` seconds left in all."""


class Annealing(Strategy):
    """Annealing runs: from high temperature in ever longer runs, and in between from an elite and a lower one."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.runs = 0
        self.length = 64  # sweeps
        self.pace = 16.0  # sweeps per slice

    def _begin(self, left: float) -> Ints:
        w = self.w
        elites = w.pool.elites
        self.hot = w.hot
        if self.runs % 2 == 1:
            x = elites[int(uniform(w.rng) * len(elites))].x.copy()
            self.hot *= 0.2 + 0.4 * uniform(w.rng)
        else:
            x = w.start.copy()
            self.length *= 2 if self.runs else 1
        self.runs += 1
        self.sweeps = int(max(16, min(self.length, self.pace * left)))
        self.ratio = (w.cold / self.hot) ** (1 / self.sweeps) if self.hot > 0 else 1.0
        self.done = 0
        return x

    def step(self, left: float) -> None:
        w = self.w
        if self.x is None:
            self.x = self._begin(left)
        fill_field(w.m, self.x, w.field, w.sums)
        temperature = self.hot * self.ratio**self.done
        rest = self.sweeps - self.done
        _, done = anneal(w.m, self.x, w.field, w.sums, temperature, self.ratio, rest, WORK, w.rng, w.scratch)
        self.done += done
        if self.done < self.sweeps:
            self.pace = 0.9 * self.pace + 0.1 * done
            return
        fill_field(w.m, w.scratch, w.field, w.sums)
        descend(w.m, w.scratch, w.field, w.sums, LEAST, 50, w.rng)
        w.offer(w.scratch, self)
        self.x = None


class TabuSearch(Strategy):
    """Runs of tabu search from the elites; one that gains nothing for long ends, and the next may last longer."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.memory = tabu_memory(worker.m)
        self.patience = _PATIENCE * len(worker.m.cards)  # steps without gain
        self.runs = 0

    def _begin(self) -> Ints:
        w = self.w
        elites = w.pool.elites
        self.runs += 1
        self.since = 0
        self.patience = int(1.1 * self.patience)
        self.memory.until[:] = 0
        self.memory.counts[1] = 0
        x = (w.start if self.runs % 2 == 0 else elites[int(uniform(w.rng) * len(elites))].x).copy()
        self.best, self.top = x.copy(), w.model.penalised(x)
        return x

    def step(self, left: float) -> None:
        w = self.w
        if self.x is None:
            self.x = self._begin()
        fill_field(w.m, self.x, w.field, w.sums)
        lead = self.top - w.model.penalised(self.x)
        top, since = tabu_search(w.m, self.x, w.field, w.sums, self.memory, lead, WORK, w.rng, w.scratch)
        if top > lead:
            self.best, self.since = w.scratch.copy(), since
            self.top = w.model.penalised(self.best)
            w.submit(self.best, self)
        else:
            self.since += since
        if self.since > self.patience or not self.memory.counts[0]:
            w.offer(self.best, self)
            self.x = None


class Repair(Strategy):
    """Tabu search by the constraints alone, from starts that propagate them, until an assignment is feasible."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.m = worker.model.constraints()
        self.memory = tabu_memory(self.m)
        self.patience = _PATIENCE * len(self.m.cards)

    def _begin(self) -> Ints:
        self.since, self.top = 0, -np.inf
        self.memory.until[:] = 0
        self.memory.counts[1] = 0
        return propagate(self.m, self.w.m.unary, self.w.rng)

    def step(self, left: float) -> None:
        w = self.w
        if self.x is None:
            self.x = self._begin()
            w.submit(self.x, self)
        score = fill_field(self.m, self.x, w.field, w.sums)
        lead = max(0.0, self.top - score)
        top, since = tabu_search(self.m, self.x, w.field, w.sums, self.memory, lead, WORK, w.rng, w.scratch)
        if top > lead:
            w.submit(w.scratch, self)
        self.since = since if top > lead else self.since + since
        self.top = score + top
        if not self.memory.counts[0] or self.since > self.patience:
            self.x = None


class Climb(Strategy):
    """Solve one random subgraph after another, small ones first; when none helps any more, start again elsewhere."""

    def __init__(self, worker: Worker, trees: bool = False) -> None:
        super().__init__(worker)
        m = worker.m
        widest = int(m.cards.max()) ** 2 if len(m.cards) else 1
        levels = [widest] if trees else [c for c in _CELLS if c >= widest] or [widest]
        self.cells = [min(c, _MOST) for c in levels]
        self.ws = workspace(m, max(self.cells), _MOST)
        self.sizes = [float(min(16, len(m.cards)))] * len(self.cells)
        self.trees = trees
        self.free = int((m.cards > 1).sum())
        self.top = 3  # levels in use
        self.runs = 0
        self.climbed = np.zeros(0, np.int64)

    def _begin(self) -> Ints:
        w = self.w
        elites = w.pool.elites
        self.level, self.idle = 0, 0
        self.runs += 1
        best = elites[0].x
        if not np.array_equal(best, self.climbed):  # what another strategy found
            return best.copy()
        if self.runs % 3 == 0:  # a new start
            x = w.start.copy()
            if w.belief is not None and self.runs % 2 == 1:
                sample(w.m, w.belief, x, w.rng)
                return x
            fill_field(w.m, x, w.field, w.sums)
            ratio = (w.cold / w.hot) ** (1 / _SWEEPS) if w.hot > 0 else 1.0
            anneal(w.m, x, w.field, w.sums, w.hot, ratio, _SWEEPS, 2 * WORK, w.rng, w.scratch)
            return x
        x = elites[int(uniform(w.rng) ** 2 * len(elites))].x.copy()
        self._disturb(x)
        return x

    def _disturb(self, x: Ints) -> None:
        """Draw the states in some balls at random, near the best."""
        w = self.w
        n = len(x)
        wanted = min(_DISTURBED, (0.02 + 0.2 * uniform(w.rng)) * n)
        heat = w.hot * 2.0 ** (1 - 4 * uniform(w.rng))
        size = float(min(n, 4.0 + 60.0 * uniform(w.rng) ** 2))
        done = 0.0
        while done < wanted:
            improve(w.m, x, self.ws, size, self.cells[0], 1, heat, w.rng)
            done += size

    def step(self, left: float) -> None:
        w = self.w
        if self.x is None:
            self.x = self._begin()
            self.strict = w.model.hard and w.model.rank(self.x)[0] == 0.0 and self.runs % 4 != 0
            if w.belief is not None:  # every other climb, as a guide may be wrong where it is sure
                self.ws.doubt[:] = 0.0
                if self.runs % 2 == 1:
                    fill_doubt(w.m, w.belief, self.x, self.ws.doubt)
        with w.model.strictly(self.strict):
            self._climb(self.x)

    def _climb(self, x: Ints) -> None:
        """Solve subgraphs for a slice, larger ones where the small ones gain nothing."""
        w, level, n = self.w, self.level, len(x)
        before = w.model.penalised(x)
        whole = self.trees and uniform(w.rng) < 0.5
        size = float(n) if whole else self.sizes[level]
        size, freed, most = improve(w.m, x, self.ws, size, self.cells[level], WORK, 0.0, w.rng)
        if not whole:
            self.sizes[level] = size
        if w.model.penalised(x) > before + LEAST:
            self.idle = 0
            w.submit(x, self)
        else:
            self.idle += freed
        if most == self.free and w.model.rank(x)[0] == 0.0:  # all variables at once, so this is the best assignment
            w.pool.optimal = True
            self.idle, self.level = 2 * n, self.top
        if self.idle >= 2 * n:
            self.level, self.idle = level + 1, 0
        if self.level >= min(self.top, len(self.cells)):
            w.offer(x, self)
            self.climbed = w.pool.best().x
            if self.failed >= 8:
                self.top, self.failed = self.top + 1, 0
            self.x = None
