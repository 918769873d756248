"""Branch and bound by toulbar2, in child processes that keep to the time limit."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.errors import need
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.tolerances import PROOF
from fgnn.infer.toulbar2.process import Toulbar2Process, give_back, take
from fgnn.infer.trivial_bound import factor_maxima
from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TOP_BITS = 50  # all finite costs together stay below 2^50, far from toulbar2's largest cost of about 2^58.8
_FOREVER = 1e9

# What each kind of search tells toulbar2.
SEARCHES: dict[str, dict[str, Any]] = {
    "hbfs": {},  # hybrid best-first search: good bounds, good solutions
    "vns": {"vns": -4},  # variable neighbourhood search: the best solutions on large loopy models
    "btd": {"btdMode": 1, "order": "-3"},  # along a min-fill tree decomposition: long thin models
}


def solve_toulbar2(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    start: Tensor | None = None,
    search: str = "auto",
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Answer:
    r"""Find the optimum by branch and bound over soft arc consistency, or the best within the time limit.

    Scores become integral costs :math:`\text{round}(2^s (\max \theta_c - \theta_c))` with the largest s that keeps
    their sum below 2^50; ``-inf`` is forbidden whatever s is, and budgets are linear constraints. Rounding is at most
    half a unit per factor, so an optimum of the costs is within ``factors / 2^s`` of the true one: it is ``proved``
    where that is at most 1e-9 (relative). Every assignment is scored again in float64.

    Args:
        start: Assignments (B, N) to improve upon; infeasible ones are ignored.
        search: ``hbfs``, ``btd`` or ``vns`` (see `SEARCHES`), or ``auto``: all three in turn, with growing time, each
            from the best answer of those before, until one proves optimality.
        jobs: Child processes that share the batch.
        settings: Further settings of toulbar2 itself, as attributes of its option object.

    Each child is asked to stop at its time and killed if it does not; a child that dies costs one attempt. An
    interrupt (Ctrl-C) is taken as the end of the time limit once there is an answer.
    """
    need("pytoulbar2")
    if search != "auto" and search not in SEARCHES:
        raise ValueError(f"Expected a search among auto, {', '.join(SEARCHES)} (got {search!r})")
    if jobs < 1:
        raise ValueError(f"Expected at least one job (got {jobs})")
    if start is not None and tuple(start.shape) != (len(batch), batch.num_variables):
        raise ValueError(f"Expected a start of shape ({len(batch)}, {batch.num_variables}) (got {tuple(start.shape)})")
    problem = _Problem(batch, seed, search, dict(settings or {}))
    tasks = [problem.task(b, start) for b in range(len(batch))]
    interrupted = _run(tasks, problem, time_limit, jobs, progress)
    for t in tasks:
        if t.exhausted and t.cost is None:
            raise RuntimeError(f"toulbar2 failed on model {t.index}: {t.errors[-1]}")

    device = batch.device
    assignment = torch.from_numpy(np.stack([t.best for t in tasks]) if tasks else np.zeros((0, batch.num_variables)))
    bound = torch.tensor([t.bound for t in tasks], dtype=torch.float64, device=device)
    return Answer.of(
        assignment.to(device, torch.int64),
        bound=torch.minimum(bound, factor_maxima(batch)),
        proved=torch.tensor([t.proved for t in tasks], dtype=torch.bool, device=device),
        converged=torch.tensor([t.finished for t in tasks], dtype=torch.bool, device=device),
        iterations=torch.tensor([t.nodes for t in tasks], dtype=torch.int64, device=device),
        timed_out=torch.tensor([not (t.finished or t.exhausted) for t in tasks], dtype=torch.bool, device=device),
        info={"interrupted": interrupted, "errors": {t.index: t.errors for t in tasks if t.errors}},
    )


@dataclass(eq=False)
class _Task:
    """One model's search: its costs, the best so far, and what is left to try."""

    index: int
    costs: Floats
    limits: Ints  # the budgets' lower and upper bounds
    offset: float  # score = offset - cost / scale
    scale: float
    slack: float  # what rounding may hide, in units of the score
    top: int  # costs from here on are not looked for
    best: Ints
    stages: Iterator[tuple[str, float]]
    cost: int | None = None  # of the best
    lower: int = 0
    nodes: int = 0
    finished: bool = False
    proved: bool = False
    errors: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    exhausted: bool = False  # every search has failed twice

    @property
    def bound(self) -> float:
        if self.finished and self.cost is None:
            return -np.inf
        lower = self.cost if self.finished and self.cost is not None else self.lower
        return self.offset - lower / self.scale + self.slack / 2

    @property
    def score(self) -> float:
        return -np.inf if self.cost is None else self.offset - self.cost / self.scale

    def fail(self, search: str, why: str) -> None:
        self.errors.append(f"{search}: {why}")
        self.failed[search] = self.failed.get(search, 0) + 1


class _Problem:
    """What the tasks of a batch share, in the child's terms."""

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
        }
        self.ints = np.concatenate([self.cards, *(s.ravel() for s in (*self.scopes, *self.budget_scopes))])
        self.first = np.cumsum(self.cards) - self.cards
        self.strides = [np.cumprod([1, *shape[:0:-1]])[::-1] for shape in self.shapes]

    def task(self, b: int, start: Tensor | None) -> _Task:
        unary = self.unary[b]
        tables = [v[b] for v in self.values]
        peaks = [unary.max(1, initial=-np.inf), *(t.max(1) for t in tables)]
        offset = float(self.constant[b] + sum(p.sum() for p in peaks))
        limits = np.concatenate([np.zeros(0, np.int64), *(a[b] for a in self.at_least), *(a[b] for a in self.at_most)])
        best = np.zeros(len(self.cards), np.int64) if not unary.size else unary.argmax(1)
        task = _Task(b, np.zeros(0), limits, offset, 1.0, 0.0, 1, best, self._stages())
        if offset == -np.inf:  # some factor forbids everything
            task.finished = task.proved = True
            return task
        drops = [peaks[0][:, None] - unary, *(p[:, None] - t for p, t in zip(peaks[1:], tables, strict=True))]
        widest = np.concatenate([np.where(np.isfinite(d), d, 0.0).max(1, initial=0.0) for d in drops])
        factors, span = int((widest > 0).sum()), float(widest.sum())
        longest = max((s.shape[1] for s in self.budget_scopes), default=1)
        bits = _TOP_BITS - max(0, int(np.log2(longest)) - 8)  # costs are multiplied by budget sizes somewhere
        exponent = 0 if span == 0 else bits - int(np.ceil(np.log2(span)))
        task.scale = float(2.0 ** np.clip(exponent, -1000, 900))
        task.costs = np.rint(np.concatenate([drops[0][self.real], *(d.ravel() for d in drops[1:])]) * task.scale)
        task.slack = factors / task.scale
        task.top = int(np.ceil(span * task.scale)) + factors + 1
        if start is not None:
            self.improve(task, start[b].cpu().numpy().astype(np.int64))
        if not len(self.cards):
            task.finished, task.proved, task.cost = True, True, 0
        return task

    def improve(self, task: _Task, x: Ints) -> None:
        """Keep an assignment if it is feasible and better by the rounded costs, which are counted again here."""
        if x.shape != self.cards.shape or (x < 0).any() or (x >= self.cards).any():
            return
        total = task.costs[self.first + x].sum()
        at = int(self.cards.sum())
        for scopes, strides, values in zip(self.scopes, self.strides, self.values, strict=True):
            size = values.shape[2]
            total += task.costs[at + size * np.arange(len(scopes)) + x[scopes] @ strides].sum()
            at += size * len(scopes)
        ones = [x[s].sum(1) for s in self.budget_scopes]
        if ones:
            low, high = np.split(task.limits, 2)
            kept = np.concatenate(ones)
            if (kept < low).any() or (kept > high).any():
                return
        if np.isfinite(total) and (task.cost is None or total < task.cost):
            task.cost, task.best = int(total), x

    def begin(self, process: Toulbar2Process, task: _Task, search: str, seconds: float) -> None:
        hint = task.best if task.cost is not None else np.zeros(0, np.int64)
        process.send_structure(self.key, self.header, self.ints, seconds)
        header = {
            "settings": SEARCHES[search] | self.settings,
            "seed": self.seed,
            "top": task.top if task.cost is None else task.cost,
            "forbidden": task.top,
        }
        process.start(task.index, header, np.concatenate([task.limits, hint]), task.costs, seconds)

    def harvest(self, process: Toulbar2Process, task: _Task) -> None:
        """Take what the child has printed so far."""
        process.read_chatter()
        for x in process.solutions:
            self.improve(task, x)
        process.solutions = []
        task.lower = max(task.lower, process.lower)

    def conclude(self, process: Toulbar2Process, task: _Task, search: str, answer: dict[str, Any]) -> None:
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
        task.proved = task.cost is None or task.slack <= PROOF * max(1.0, abs(task.score))

    def _stages(self) -> Iterator[tuple[str, float]]:
        """What to try and for how many seconds, for ever."""
        if self.search != "auto":
            while True:
                yield self.search, _FOREVER
        for k in count():
            for search, share in (("hbfs", 1.0), ("vns", 0.5), ("btd", 1.0)):
                yield search, 2.0 * share * 2.0**k


def _run(
    tasks: list[_Task], problem: _Problem, time_limit: float | None, jobs: int, progress: OnProgress | None
) -> bool:
    """Work through the tasks with up to ``jobs`` children; True if interrupted."""
    waiting = [t for t in tasks if not t.finished]
    began = told = time.monotonic()
    end = began + (_FOREVER if time_limit is None else time_limit)
    queue, done = waiting[::-1], 0
    busy: dict[Toulbar2Process, tuple[_Task, str, float]] = {}

    def next_stage(process: Toulbar2Process, task: _Task, until: float) -> bool:
        """Start the task's next stage on a living child; False when there is nothing more to try or no time."""
        left = until - time.monotonic()
        usable = [s for s in (SEARCHES if problem.search == "auto" else [problem.search]) if task.failed.get(s, 0) < 2]
        task.exhausted = not usable
        if left <= 0.01 or not usable:
            busy.pop(process, None)
            give_back(process)
            return False
        search, seconds = next(s for s in task.stages if s[0] in usable)
        if not process.alive:
            busy.pop(process, None)
            process.close()
            process = take()
        # A stage that would leave only a little gets that too.
        problem.begin(process, task, search, left if left < 1.5 * seconds else seconds)
        busy[process] = (task, search, until)
        return True

    interrupted = False
    try:
        while queue or busy:
            while queue and len(busy) < jobs:
                task = queue.pop()
                share = (end - time.monotonic()) / max(1.0, np.ceil((len(queue) + 1) / jobs))
                if not next_stage(take(), task, min(end, time.monotonic() + share)):
                    done += 1
            if not busy:
                continue
            channels = [c for p in busy for c in p.channels]
            select.select(channels, [], [], max(0.0, min(p.wait_hint() for p in busy)))
            for process, (task, search, until) in list(busy.items()):
                answer = process.poll()
                if answer is None:
                    continue
                problem.conclude(process, task, search, answer)
                if task.finished:
                    del busy[process]
                    give_back(process)
                    done += 1
                elif not next_stage(process, task, until):
                    done += 1
            if progress is not None and time.monotonic() - told > 0.5 and busy:
                told = time.monotonic()
                for process, (task, _, _) in busy.items():
                    problem.harvest(process, task)
                best = torch.from_numpy(np.stack([t.best for t in tasks]))
                if len(tasks) == 1:
                    progress(Progress("toulbar2", told - began, task.score, task.bound, search, best))
                else:
                    note = f"{done} of {len(waiting)} models"
                    progress(Progress("toulbar2", told - began, -np.inf, np.inf, note, best))
    except KeyboardInterrupt:
        for process, (task, _, _) in busy.items():
            problem.harvest(process, task)
        if not any(task.cost is not None for task in waiting):
            raise
        interrupted = True
    finally:
        for process in busy:
            process.close()
    return interrupted
