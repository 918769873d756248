"""Models as cost function networks of integer costs, and the search for one model's optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.toulbar2.process import Toulbar2Process
from fgnn.pgm import Kind, ModelBatch, StructuredBatch
from fgnn.pgm.factors.kind import Row
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
    limits: Ints  # the budgets' lower and upper bounds
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


def asked(batch: ModelBatch, time_limit: float | None) -> Keep:
    """Which factors become linear constraints: those that are, with weights small enough for integer costs."""

    def small(kind: Kind, shape: tuple[int, ...]) -> bool:
        return kind.has("rows") and all(_total_weight(row) <= _MOST_WEIGHT for row in kind.rows(shape))

    return small


def _total_weight(row: Row) -> int:
    return sum(max(abs(w) for w in weights) for weights in row.weights)


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
        self.budget_scopes = [u.scopes.cpu().numpy() for u in batch.budgets]
        self.at_least = [u.at_least.cpu().numpy() for u in batch.budgets]
        self.at_most = [u.at_most.cpu().numpy() for u in batch.budgets]
        self.constant = batch.constant.double().cpu().numpy()
        self.header = {
            "variables": len(self.cards),
            "tables": [[len(s), list(shape)] for s, shape in zip(self.scopes, self.shapes, strict=True)],
            "budgets": [[len(s), s.shape[1]] for s in self.budget_scopes],
            "rows": [text for f in batch.structured for text in _knapsacks(f)],
        }
        self.structured = batch.to("cpu").structured
        self.longest = max((_total_weight(row) for f in batch.structured for row in f.kind.rows(f.shape)), default=1)
        self.ints = np.concatenate([self.cards, *(s.ravel() for s in (*self.scopes, *self.budget_scopes))])
        self.first = np.cumsum(self.cards) - self.cards
        self.strides = [np.cumprod([1, *shape[:0:-1]])[::-1] for shape in self.shapes]

    def task(self, b: int, start: Tensor | None) -> Task:
        unary = self.unary[b]
        drops = [-unary, *(-v[b] for v in self.values)]
        limits = np.concatenate([np.zeros(0, np.int64), *(a[b] for a in self.at_least), *(a[b] for a in self.at_most)])
        best = np.zeros(len(self.cards), np.int64) if not unary.size else unary.argmax(1)
        task = Task(b, np.zeros(0), limits, 1.0, 1, best, self._stages())
        if self.constant[b] == -np.inf or any((d.min(1, initial=np.inf) == np.inf).any() for d in drops):
            task.finished = True  # a factor forbids all its states
            return task
        widest = np.concatenate([np.where(np.isfinite(d), d, 0.0).max(1, initial=0.0) for d in drops])
        factors, span = int((widest > 0).sum()), float(widest.sum())
        longest = max([self.longest, *(s.shape[1] for s in self.budget_scopes)])
        bits = _TOP_BITS - max(0, int(np.log2(longest)) - 8)  # toulbar2 multiplies costs by budget sizes
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
        if self.budget_scopes:
            low, high = np.split(task.limits, 2)
            ones = np.concatenate([x[s].sum(1) for s in self.budget_scopes])
            if (ones < low).any() or (ones > high).any():
                return
        for f in self.structured:
            if not bool((f.score(torch.from_numpy(x)[None, None]) == 0).all()):
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


def _knapsacks(factors: StructuredBatch) -> Iterator[tuple[list[int], str]]:
    """The linear constraints of some factors, as scopes and as toulbar2 reads them.

    "4 2 0 0 1 3 2 0 0 1 5": a total weight of at least 4, over two variables of two values each, 0 of weight 0 and 1 of
    weight 3 or 5.
    """
    for row in factors.kind.rows(factors.shape):
        for sign, bound in ((1, row.at_least), (-1, -row.at_most)):
            if bound <= sum(min(sign * w for w in weights) for weights in row.weights):
                continue  # nothing can break it
            pairs = (" ".join(f"{s} {sign * w}" for s, w in enumerate(weights)) for weights in row.weights)
            values = (f"{len(weights)} {pair}" for weights, pair in zip(row.weights, pairs, strict=True))
            text = " ".join([str(bound), *values])
            for scope in factors.scopes[:, list(row.positions)].tolist():
                yield scope, text
