"""The best of several methods' answers: assignments, bounds and proofs put together model by model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.oom_retry import solve_with_retry
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.tolerances import PROOF
from fgnn.infer.trivial_bound import factor_maxima
from fgnn.pgm import ModelBatch

Call = Callable[[ModelBatch, OnProgress | None], Answer]


class Best:
    """Collects answers for a batch. What a method says of its own score is not believed: assignments are scored here.

    Args:
        batch: The models.
        tell: Where news go.
        start: When the work began, by `time.perf_counter`.
        lift: Makes an assignment of the whole from one of this batch, where this batch is a part.
        shift: What the rest of the whole scores, (B,).
    """

    def __init__(
        self,
        batch: ModelBatch,
        tell: OnProgress | None,
        start: float,
        lift: Callable[[Tensor], Tensor] = lambda assignment: assignment,
        shift: Tensor | None = None,
    ) -> None:
        self.batch, self.tell, self.start = batch, tell, start
        self._lift = lift
        self._shift = torch.zeros(len(batch), dtype=torch.float64, device=batch.device) if shift is None else shift
        self.assignment = batch.unary.argmax(2)  # shape: (B, N)
        self.score = batch.score(self.assignment)
        self.bound = factor_maxima(batch)
        self.proved = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        self.starts: list[Tensor] = [self.assignment]
        self.stages: list[tuple[str, Any, Any, float]] = []
        self.skipped: dict[str, str] = {}
        self.interrupted = False
        self._methods: list[str] = []
        self._credit = torch.full_like(self.proved, -1, dtype=torch.int64)
        self._iterations = torch.zeros_like(self._credit)

    def is_done(self) -> bool:
        return bool(self.proved.all())

    def among_open(self, assignment: Tensor) -> Tensor:
        """The rows of the models that are not proved yet."""
        return assignment if not bool(self.proved.any()) else assignment[~self.proved]

    def run(self, method: str, call: Call) -> Answer | None:
        """Give the unproved models to a method and take its answer; None where it fails."""
        rows = (~self.proved).nonzero().squeeze(1)
        whole = len(rows) == len(self.batch)
        part = self.batch if whole else self.batch.select(rows)
        began = time.perf_counter()
        try:
            tell = None if self.tell is None else self._reporter(method, rows)
            answer = solve_with_retry(lambda some, *, time_limit, progress: call(some, progress), part, time_limit=None,
                                     progress=tell)  # fmt: skip
        except (ImportError, ValueError, RuntimeError, MemoryError) as error:
            self.skipped[method] = str(error)
            return None
        score, bound = self.take(method, answer, rows)
        self.note(method, score, bound, rows, began)
        self.interrupted = self.interrupted or bool(answer.info.get("interrupted"))
        self._report("auto", f"{method} done", None)
        return answer

    def take(self, method: str, answer: Answer, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keep what is better of an answer for the models in ``rows``; returns its scores and bounds."""
        if rows is None:
            rows = torch.arange(len(self.batch), device=self.batch.device)
        part = self.batch if len(rows) == len(self.batch) else self.batch.select(rows)
        score = part.score(answer.assignment)
        known = self.score[rows]
        slack = PROOF * known.abs().clamp(min=1.0).nan_to_num(posinf=1.0)
        # A proof that a known assignment contradicts is none.
        proved = answer.proved & ((score >= known - slack) | (known == -torch.inf))
        bound = torch.where(answer.proved, torch.where(proved, score, torch.inf), answer.bound.to(score))
        better = score > known
        whole = self.assignment.clone()
        whole[rows] = answer.assignment
        self.starts.append(whole)
        self.assignment[rows] = torch.where(better[:, None], answer.assignment, self.assignment[rows])
        self.score[rows] = torch.where(better, score, known)
        best = self.score[rows]
        # A bound may fall below a score it bounds by rounding only.
        self.bound[rows] = torch.maximum(torch.minimum(self.bound[rows], bound), best)
        gap = self.bound[rows] - best
        closed = (gap <= PROOF * best.abs().clamp(min=1.0)) & (best > -torch.inf)
        counted = better | ((proved | closed) & ~self.proved[rows])
        self.proved[rows] = self.proved[rows] | proved | closed
        if bool(counted.any()):
            if method not in self._methods:
                self._methods.append(method)
            self._credit[rows] = torch.where(counted, self._methods.index(method), self._credit[rows])
            self._iterations[rows] = torch.where(counted, answer.iterations, self._iterations[rows])
        return score, bound

    def note(self, method: str, score: Tensor, bound: Tensor, rows: Tensor, began: float) -> None:
        """Write down what a method found for the models in ``rows``: numbers for one model, lists for several."""
        rest = self._shift[rows]
        one = len(self.batch) == 1
        told = [float(x) if one else x.tolist() for x in (score + rest, bound + rest)]
        self.stages.append((method, told[0], told[1], time.perf_counter() - began))

    def answer(self, timed_out: bool) -> Answer:
        used = torch.unique(self._credit).tolist()
        names = [self._methods[m] for m in used if m >= 0]
        return Answer.of(
            self.assignment,
            bound=self.bound,
            proved=self.proved,
            converged=self.proved,
            timed_out=torch.full_like(self.proved, timed_out) & ~self.proved,
            iterations=self._iterations,
            method="auto:" + "+".join(names) if names else "auto",
            info={"stages": self.stages, "skipped": self.skipped, "interrupted": self.interrupted},
        )

    def _reporter(self, method: str, rows: Tensor) -> OnProgress:
        def report(news: Progress) -> None:
            self._report(f"auto:{method}", news.note, None if news.assignment is None else (rows, news.assignment))

        return report

    def _report(self, method: str, note: str, fresh: tuple[Tensor, Tensor] | None) -> None:
        if self.tell is None:
            return
        assignment, score = self.assignment, self.score
        if fresh is not None:
            rows, found = fresh
            value = self.batch.select(rows).score(found)
            better = value > score[rows]
            assignment, score = assignment.clone(), score.clone()
            assignment[rows] = torch.where(better[:, None], found.to(assignment), assignment[rows])
            score[rows] = torch.where(better, value, score[rows])
        mean = float((score + self._shift).mean()) if len(score) else -math.inf
        bound = float((self.bound + self._shift).mean()) if len(score) else math.inf
        seconds = time.perf_counter() - self.start
        self.tell(Progress(method, seconds, mean, bound, note, self._lift(assignment)))
