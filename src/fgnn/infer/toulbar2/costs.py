"""Models as cost function networks of integer costs, and the search for one model's optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.counted import Weights
from fgnn.infer.toulbar2.process import Toulbar2Process
from fgnn.pgm import Kind, ModelBatch
from fgnn.pgm.factors.counter import padded
from fgnn.pgm.lowering import Keep

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TOP_BITS = 50  # all finite costs together stay below 2^50, far from toulbar2's largest cost of about 2^58.8
_FOREVER = 1e9
_MOST_WEIGHT = 1 << 16  # of a linear constraint, by which toulbar2 multiplies costs

# toulbar2's settings for each kind of search.
SEARCHES: dict[str, dict[str, Any]] = {
    "hbfs": {},  # hybrid best-first search: good bounds, good solutions
    "vns": {"vns": -4},  # variable neighbourhood search: the best solutions on large loopy models
    "btd": {"btdMode": 1, "order": "-3"},  # along a min-fill tree decomposition: long thin models
}


@dataclass(eq=False)
class Task:
    """The search for one model's optimum: its costs, the best so far, and what is left to try.

    Costs are rounded down, so that the negative of a lower bound on them is an upper bound on standard scores.
    """

    index: int
    costs: Floats
    limits: Ints  # the lower bounds of all sums, then the upper ones
    scale: float  # costs are integers, about scale times the loss
    top: int  # an upper bound on every finite cost
    best: Ints
    stages: Iterator[tuple[str, float]]
    cost: int | None = None  # of the best; None: no feasible assignment yet
    lower: int = 0
    nodes: int = 0
    finished: bool = False
    errors: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    exhausted: bool = False  # every search has failed twice

    @property
    def bound(self) -> float:
        if self.finished and self.cost is None:
            return -np.inf
        return -(self.cost if self.finished and self.cost is not None else self.lower) / self.scale

    @property
    def score(self) -> float:
        return -np.inf if self.cost is None else -self.cost / self.scale

    def fail(self, search: str, why: str) -> None:
        self.errors.append(f"{search}: {why}")
        self.failed[search] = self.failed.get(search, 0) + 1


@dataclass(frozen=True, eq=False)
class _Sums:
    """Linear constraints with the same weights: bounds on a sum over the variables of each scope."""

    scopes: Ints  # shape: (C, n)
    weights: Weights
    low: Ints  # shape: (B or 1, C)
    high: Ints  # shape: (B or 1, C)

    @cached_property
    def table(self) -> Ints:
        """The weights with zeros up to the largest cardinality.  # shape: (n, K)"""
        return padded(self.weights, max(map(len, self.weights)))

    def of(self, x: Ints) -> Ints:
        """The sums of an assignment.  # shape: (C,)"""
        total: Ints = self.table[np.arange(len(self.weights)), x[self.scopes]].sum(1)
        return total


def asked(batch: ModelBatch, time_limit: float | None) -> Keep:
    """Which factors become linear constraints: those that are, with weights small enough for integer costs."""

    def small(kind: Kind, shape: tuple[int, ...]) -> bool:
        counter = kind.counter(shape)
        if counter is not None and counter.interval is not None:
            return _total_weight(counter.weights) <= _MOST_WEIGHT
        return kind.has("rows") and all(_total_weight(row.weights) <= _MOST_WEIGHT for row in kind.rows(shape))

    return small


def _total_weight(weights: Weights) -> int:
    return sum(max(abs(w) for w in of_states) for of_states in weights)


def _sums(batch: ModelBatch) -> Iterator[_Sums]:
    """The linear constraints of all factors but tables: bounds on what they count, else the rows of their kind."""
    for group in batch.counted:
        if group.counter is not None and (bounds := group.bounds()) is not None:
            low, high = (bound.cpu().numpy() for bound in bounds)
            yield _Sums(group.scopes.cpu().numpy(), group.counter.weights, low, high)
    for other in batch.structured:
        if other.bounds() is None:
            scopes = other.scopes.cpu().numpy()
            for row in other.kind.rows(other.shape):
                low, high = (np.full((1, len(scopes)), bound) for bound in (row.at_least, row.at_most))
                yield _Sums(scopes[:, list(row.positions)], row.weights, low, high)


class CostNetwork:
    """The models of a batch as cost function networks of the same structure."""

    def __init__(self, batch: ModelBatch, seed: int, search: str, settings: dict[str, Any]) -> None:
        self.seed, self.search, self.settings = seed % 2**31, search, settings
        self.key = object()
        self.cards = batch.cardinalities.cpu().numpy()
        self.real = batch.state_mask.cpu().numpy()
        self.unary = batch.unary.double().cpu().numpy()
        self.scopes = [t.scopes.cpu().numpy() for t in batch.tables]
        self.shapes = [t.shape for t in batch.tables]
        self.values = [t.values.double().flatten(2).cpu().numpy() for t in batch.tables]
        self.sums = tuple(_sums(batch))
        self.constant = batch.constant.double().cpu().numpy()
        self.header = {
            "variables": len(self.cards),
            "tables": [[len(s), list(shape)] for s, shape in zip(self.scopes, self.shapes, strict=True)],
            "sums": [[len(s.scopes), s.weights] for s in self.sums],
        }
        self.longest = max((_total_weight(s.weights) for s in self.sums), default=1)
        scopes = (*self.scopes, *(s.scopes for s in self.sums))
        self.ints = np.concatenate([self.cards, *(s.ravel() for s in scopes)])
        self.first = np.cumsum(self.cards) - self.cards
        self.strides = [np.cumprod([1, *shape[:0:-1]])[::-1] for shape in self.shapes]

    def task(self, b: int, start: Tensor | None) -> Task:
        unary = self.unary[b]
        drops = [-unary, *(-v[b] for v in self.values)]
        bounds = [s.low for s in self.sums] + [s.high for s in self.sums]
        limits = np.concatenate([np.zeros(0, np.int64), *(bound[b if len(bound) > 1 else 0] for bound in bounds)])
        best = np.zeros(len(self.cards), np.int64) if not unary.size else unary.argmax(1)
        task = Task(b, np.zeros(0), limits, 1.0, 1, best, self._stages())
        if self.constant[b] == -np.inf or any((d.min(1, initial=np.inf) == np.inf).any() for d in drops):
            task.finished = True  # a factor forbids all its states
            return task
        widest = np.concatenate([np.where(np.isfinite(d), d, 0.0).max(1, initial=0.0) for d in drops])
        factors, span = int((widest > 0).sum()), float(widest.sum())
        bits = _TOP_BITS - max(0, int(np.log2(max(1, self.longest))) - 8)  # toulbar2 multiplies costs by weights
        exponent = 0 if span == 0 else bits - int(np.ceil(np.log2(span)))
        task.scale = float(2.0 ** np.clip(exponent, -1000, 900))
        task.costs = np.floor(np.concatenate([drops[0][self.real], *(d.ravel() for d in drops[1:])]) * task.scale)
        task.top = int(np.ceil(span * task.scale)) + factors + 1
        if start is not None:
            self.improve(task, start[b].cpu().numpy().astype(np.int64))
        if not len(self.cards):
            task.finished, task.cost = True, 0
        return task

    def improve(self, task: Task, x: Ints) -> None:
        """Keep an assignment if it is feasible and of lower cost, both computed here."""
        if x.shape != self.cards.shape or (x < 0).any() or (x >= self.cards).any():
            return
        total = task.costs[self.first + x].sum()
        at = int(self.cards.sum())
        for scopes, strides, values in zip(self.scopes, self.strides, self.values, strict=True):
            size = values.shape[2]
            total += task.costs[at + size * np.arange(len(scopes)) + x[scopes] @ strides].sum()
            at += size * len(scopes)
        if self.sums:
            low, high = np.split(task.limits, 2)
            sums = np.concatenate([s.of(x) for s in self.sums])
            if (sums < low).any() or (sums > high).any():
                return
        if np.isfinite(total) and (task.cost is None or total < task.cost):
            task.cost, task.best = int(total), x

    def begin(self, process: Toulbar2Process, task: Task, search: str, seconds: float) -> None:
        hint = task.best if task.cost is not None else np.zeros(0, np.int64)
        process.send_structure(self.key, self.header, self.ints, seconds)
        header = {
            "settings": SEARCHES[search] | self.settings,
            "seed": self.seed,
            "top": task.top if task.cost is None else task.cost,
            "forbidden": task.top,
        }
        process.start(task.index, header, np.concatenate([task.limits, hint]), task.costs, seconds)

    def harvest(self, process: Toulbar2Process, task: Task) -> None:
        """Take the solutions and the bound that the child has printed so far."""
        process.read_output()
        for x in process.solutions:
            self.improve(task, x)
        process.solutions = []
        task.lower = max(task.lower, process.lower)

    def conclude(self, process: Toulbar2Process, task: Task, search: str, answer: dict[str, Any]) -> None:
        if "error" in answer:
            if not answer.get("killed"):
                task.fail(search, answer["error"])
            self.harvest(process, task)
            return
        task.nodes += answer["nodes"]
        if answer["limited"]:
            self.harvest(process, task)
        if answer["x"] is not None:
            self.improve(task, np.array(answer["x"], dtype=np.int64))
        if answer["limited"]:
            task.lower = max(task.lower, int(min(answer["lower"], 2.0**62)))
            return
        if answer["x"] is not None and task.cost is None:
            task.fail(search, "its solution breaks a constraint")
            process.kill()
            return
        task.finished = True

    def _stages(self) -> Iterator[tuple[str, float]]:
        """Searches to try with their seconds, endlessly."""
        if self.search != "auto":
            while True:
                yield self.search, _FOREVER
        for k in count():
            for search, share in (("hbfs", 1.0), ("vns", 0.5), ("btd", 1.0)):
                yield search, 2.0 * share * 2.0**k
