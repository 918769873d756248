"""One thread of the search: annealing runs and climbs by subgraphs, whichever has paid off lately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from fgnn.infer.search.anneal import anneal, best_alone, descend, energy_gaps, fill_field
from fgnn.infer.search.arrays import Ints
from fgnn.infer.search.chance import State, generator, uniform
from fgnn.infer.search.crossover import cross
from fgnn.infer.search.eliminate import improve
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.subgraph import workspace

WORK = 1 << 20  # joint states, or moves weighed, in a slice: about 10 to 20 ms
_CELLS = tuple(1 << b for b in (6, 8, 10, 12, 14, 16, 18))  # joint states per step of a subgraph, by level
_MOST = 1 << 22  # joint states of one subgraph
_LEAST = 1e-12
_REPAIRS = 6
_SWEEPS = 64  # of an annealing run that gives a climb a new start
_DISTURBED = 2000.0  # variables at most
_FLOOR = 0.15  # share of every strategy; one whose results come closest to the best gets 1 more, gains another
_EVEN = 12  # slices of every strategy before gains count
_MEMORY = 0.99  # weight of the past, per slice


class Worker:
    """Searches one model in slices.

    Args:
        model: The model; its penalty changes.
        pool: Shared by all workers of the model.
        seed: Of all random choices.
        moves: ``trees``, ``subgraphs`` and ``anneal``, or some of them.
    """

    def __init__(self, model: Penalised, pool: Pool, seed: Sequence[int], moves: Sequence[str]) -> None:
        self.model, self.pool = model, pool
        self.m = m = model.arrays
        self.rng = generator(*seed)
        self.field = np.empty(len(m.unary))
        self.sums = np.zeros(len(m.count_first) - 1, np.int64)
        self.scratch = np.zeros(len(m.cards), np.int64)
        self.order = seed[-1]
        self.start = self._start()
        self.slices = 0
        strategies: dict[str, Callable[[], Strategy]] = {
            "anneal": lambda: Annealing(self),
            "trees": lambda: Climb(self, trees=True),
            "subgraphs": lambda: Climb(self),
        }
        self.strategies = {name: make() for name, make in strategies.items() if name in moves}

    def _start(self) -> Ints:
        """Set temperatures and return a first assignment."""
        m = self.m
        x = best_alone(m)
        fill_field(m, x, self.field, self.sums)
        descend(m, x, self.field, self.sums, _LEAST, 20, self.rng)
        self._repair(x)
        gaps = energy_gaps(m, x, self.field)
        gaps = gaps[np.isfinite(gaps) & (gaps > 1e-9)]
        self.hot = float(np.median(gaps)) if len(gaps) else 0.0
        self.cold = min(0.05 * self.hot, 0.2 * float(np.quantile(gaps, 0.05))) if len(gaps) else 0.0
        return x

    def _repair(self, x: Ints) -> None:
        """Try to make an assignment feasible: descend under ever higher penalties."""
        penalty = self.model.penalty
        for power in range(_REPAIRS):
            if self.model.rank(x)[0] == 0.0:
                break
            self.model.set_penalty(penalty * 4.0**power)
            fill_field(self.m, x, self.field, self.sums)
            descend(self.m, x, self.field, self.sums, _LEAST, 20, self.rng)
        self.model.set_penalty(penalty)
        fill_field(self.m, x, self.field, self.sums)

    def slice(self, left: float) -> None:
        """Search for some 15 ms; about ``left`` more slices will follow."""
        strategies = list(self.strategies.values())
        self.slices += 1
        if self.slices <= _EVEN * len(strategies):
            chosen = strategies[self.slices % len(strategies)]
        else:
            rates = [s.gained / (1.0 + s.spent) for s in strategies]
            closest = min(s.shortfall for s in strategies)
            shares = [
                _FLOOR + (s.shortfall == closest) + (rate / sum(rates) if sum(rates) > 0 else 0.0)
                for s, rate in zip(strategies, rates, strict=True)
            ]
            chosen = strategies[choose(shares, self.rng)]
        for s in strategies:
            s.gained, s.spent = _MEMORY * s.gained, _MEMORY * s.spent
        chosen.slices += 1
        chosen.spent += 1.0
        chosen.step(left)

    def offer(self, x: Ints, strategy: Strategy) -> None:
        """Note how good a strategy's result is, cross it with the elites and offer both to the pool."""
        rank = self.submit(x, strategy)
        far, score = self.pool.best().rank
        shortfall = (far - rank[0]) * self.model.penalty + max(0.0, score - rank[1])
        strategy.shortfall = shortfall if strategy.shortfall == 0.0 else 0.7 * strategy.shortfall + 0.3 * shortfall
        child = x.copy()
        gain = sum(cross(self.m, child, elite.x, self.rng) for elite in self.pool.elites)
        if gain > 0:
            rank = self.submit(child, strategy)
        if self.model.hard:
            self.model.set_penalty(self.model.penalty * (1.3 if rank[0] < 0 else 0.97))

    def submit(self, x: Ints, strategy: Strategy) -> tuple[float, float]:
        """Offer an assignment to the pool as it is, and credit what it gains to the strategy."""
        rank, best = self.model.rank(x), self.pool.best().rank
        self.pool.offer(x, rank, self.order)
        strategy.failed += 1
        if rank > best:
            strategy.failed = 0
            strategy.gained += (rank[0] - best[0]) * self.model.penalty + max(0.0, rank[1] - best[1])
        return rank


def choose(shares: Sequence[float], rng: State) -> int:
    """An index with probability in proportion to its share."""
    left = uniform(rng) * sum(shares)
    for index, share in enumerate(shares):
        left -= share
        if left < 0:
            return index
    return len(shares) - 1


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
        descend(w.m, w.scratch, w.field, w.sums, _LEAST, 50, w.rng)
        w.offer(w.scratch, self)
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
        x, level, n = self.x, self.level, len(self.x)
        before = w.model.penalised(x)
        whole = self.trees and uniform(w.rng) < 0.5
        size = float(n) if whole else self.sizes[level]
        size, freed, most = improve(w.m, x, self.ws, size, self.cells[level], WORK, 0.0, w.rng)
        if not whole:
            self.sizes[level] = size
        if w.model.penalised(x) > before + _LEAST:
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
