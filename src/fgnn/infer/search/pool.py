"""The best assignments found for a model, and penalties in place of what it forbids."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fgnn.infer.search.anneal import evaluate
from fgnn.infer.search.arrays import Arrays, Floats, Ints

_ELITES = 8
_PER_RANGE = 1.5  # the first penalty, in units of the mean range of a factor


@dataclass
class Penalised:
    """A model whose forbidden entries cost ``penalty`` per unit, in arrays that the penalty is written to."""

    arrays: Arrays  # finite
    far_values: Floats  # how far each entry of arrays.values is from allowed
    far_sums: Floats
    penalty: float
    ban: float  # what a forbidden state of a variable costs
    hard: bool = False
    strict: bool = False  # whether the penalty exceeds everything else, see `strictly`
    _cells: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _totals: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, model: Arrays, far_values: Floats, far_sums: Floats) -> Penalised:
        """The first penalty is of the size of the factors' ranges; forbidden states of a variable cost more than
        everything else together."""
        unary = np.where(np.isfinite(model.unary), model.unary, 0.0)
        widest = [_ranges(model.values, model.cell), _ranges(model.sums, model.total), float(np.abs(unary).sum())]
        counts = (len(model.first) - 1, len(model.count_first) - 1, len(model.cards))
        mean = sum(width / max(1, count) for width, count in zip(widest, counts, strict=True))
        penalty = _PER_RANGE * mean if mean > 0 else 1.0
        cells, totals = np.nonzero(far_values)[0], np.nonzero(far_sums)[0]
        units = float(far_values.sum() + far_sums.sum())
        ban = -4.0 * (sum(widest) + penalty * (1.0 + units)) - 1.0
        arrays = model._replace(
            unary=np.where(np.isneginf(model.unary), ban, model.unary),
            values=model.values.copy() if len(cells) else model.values,
            sums=model.sums.copy(),
        )
        made = cls(arrays, far_values, far_sums, penalty, ban, bool(len(cells) or len(totals)), False, cells, totals)
        made.set_penalty(penalty)
        return made

    def copy(self) -> Penalised:
        """The same for another thread, which may set another penalty."""
        if not self.hard:
            return self
        arrays = self.arrays._replace(values=self.arrays.values.copy(), sums=self.arrays.sums.copy())
        return replace(self, arrays=arrays)

    def constraints(self) -> Arrays:
        """The constraints alone: what is forbidden costs its distance from allowed, everything else nothing."""
        ban = 1.0 + float(self.far_values.sum() + self.far_sums.sum())
        unary = np.where(self.arrays.unary <= self.ban, -ban, 0.0)
        return self.arrays._replace(unary=unary, values=-self.far_values, sums=-self.far_sums)

    def set_penalty(self, penalty: float) -> None:
        self.penalty = penalty
        self.arrays.values[self._cells] = -penalty * self.far_values[self._cells]
        self.arrays.sums[self._totals] = -penalty * self.far_sums[self._totals]

    @contextmanager
    def strictly(self, strict: bool) -> Iterator[None]:
        """If ``strict``, let violations cost more than all else for a while, so that what is feasible stays so."""
        penalty, self.strict = self.penalty, strict
        if strict:
            self.set_penalty(-self.ban)
        yield
        self.strict = False
        if strict:
            self.set_penalty(penalty)

    def penalised(self, x: Ints) -> float:
        """The score with penalties."""
        return evaluate(self.arrays, x, self.far_values, self.far_sums)[0]

    def rank(self, x: Ints) -> tuple[float, float]:
        """What assignments are compared by: minus the distance from feasible, then the score without penalties."""
        score, far = evaluate(self.arrays, x, self.far_values, self.far_sums)
        return -far, score + self.penalty * far


def _ranges(values: Floats, starts: Ints) -> float:
    """The sum of the largest finite sizes among the entries of each factor."""
    sizes = np.abs(np.where(np.isfinite(values), values, 0.0))
    return float(np.maximum.reduceat(sizes, starts[:-1]).sum()) if len(sizes) else 0.0


@dataclass
class Elite:
    x: Ints
    rank: tuple[float, float]


class Pool:
    """The best assignments of a model, shared by all threads that search it."""

    def __init__(self) -> None:
        self.elites: list[Elite] = []  # the best first; replaced, never changed
        self.optimal = False  # whether one of them is known to be a best assignment
        self._lock = threading.Lock()
        self._held: list[tuple[int, Elite]] | None = None

    @property
    def solved(self) -> bool:
        """Whether there is nothing left to search for: no standard score is above 0."""
        return self.optimal or (bool(self.elites) and self.elites[0].rank >= (0.0, 0.0))

    def best(self) -> Elite:
        return self.elites[0]

    def offer(self, x: Ints, rank: tuple[float, float], order: int = 0) -> None:
        """Keep an assignment if it is among the best; ``order`` ranks offers of one round."""
        elite = Elite(x.copy(), rank)
        with self._lock:
            if self._held is not None:
                self._held.append((order, elite))
            else:
                self._keep(elite)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let offers count only afterwards, in an order that does not depend on when they came."""
        self._held = []
        yield
        held, self._held = sorted(self._held, key=lambda entry: entry[0]), None
        for _, elite in held:
            self._keep(elite)

    def _keep(self, elite: Elite) -> None:
        if any(elite.rank == e.rank and np.array_equal(elite.x, e.x) for e in self.elites):
            return
        if len(self.elites) < _ELITES or elite.rank >= self.elites[-1].rank:
            self.elites = sorted([elite, *self.elites], key=lambda e: e.rank, reverse=True)[:_ELITES]
