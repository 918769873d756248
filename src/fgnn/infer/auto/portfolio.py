"""The best of several methods' answers: assignments, bounds and proofs merged model by model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.api import Solver, solver_named
from fgnn.infer.certificate import StandardForm, meets, rounding
from fgnn.infer.lowered import taking
from fgnn.infer.oom_retry import call_with_retry, select_rows
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.pgm import ModelBatch


class Best:
    """The best assignment, bound and proof known for each model of a batch, in standard form.

    Assignments are scored here: a method's own scores are not trusted.

    Args:
        form: The models.
        report: Receives progress, in the models' own numbers.
        start: When the solve began, by `time.perf_counter`.
        lift: Extends assignments of this batch to the whole models, if this batch is a part of them.
    """

    def __init__(
        self,
        form: StandardForm,
        report: OnProgress | None,
        start: float,
        lift: Callable[[Tensor], Tensor] = lambda assignment: assignment,
    ) -> None:
        self.form, self.report, self.start = form, report, start
        self.batch = batch = form.batch
        self._lift = lift
        self.assignment = batch.unary.argmax(2)  # shape: (B, N)
        self.score = batch.score(self.assignment)
        self._rounding = rounding(batch)
        self.bound = torch.zeros_like(self.score)  # no standard score is above 0
        self.proved = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        self.starts: list[Tensor] = [self.assignment]  # every method's assignments, (B, N) each
        self.stages: list[tuple[str, Any, Any, float]] = []
        self.skipped: dict[str, str] = {}
        self.interrupted = False
        self.live: Callable[[], Tensor | None] = lambda: None  # a better assignment (B, N) from elsewhere, for reports
        self._methods: list[str] = []
        self._credit = torch.full_like(self.proved, -1, dtype=torch.int64)  # index into _methods
        self._iterations = torch.zeros_like(self._credit)

    def is_done(self) -> bool:
        return bool(self.proved.all())

    def run(
        self, method: str, solver: Solver | None = None, *, time_limit: float | None, **options: Any
    ) -> Answer | None:
        """Give the unproved models to a solver and merge its answer; None if it fails.

        Args:
            method: The name to report; also the name of the solver unless one is given.
            options: The solver's own. Those with a row per model have one for every model of the batch.
        """
        rows = (~self.proved).nonzero().squeeze(1)
        began = time.perf_counter()

        def report(update: Progress) -> None:
            """Pass a method's progress on, with the best assignment known when its own is included."""
            self.report_progress(f"auto:{method}", update.note, rows, update.assignment, update.bound)

        try:
            answer = call_with_retry(
                taking(solver or solver_named(method), self.batch),
                self._select(rows),
                Answer.join,
                time_limit=time_limit,
                progress=None if self.report is None else report,
                **{name: select_rows(value, rows) for name, value in options.items()},
            )
        except (ImportError, ValueError, RuntimeError, MemoryError) as error:
            self.skipped[method] = str(error)
            return None
        score, bound = self.take(method, answer, rows)
        self.note(method, score, bound, rows, began)
        self.interrupted = self.interrupted or bool(answer.info.get("interrupted"))
        self.report_progress("auto", f"{method} done")
        return answer

    def take(self, method: str, answer: Answer, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keep what an answer improves for the models ``rows``; return its scores and bounds."""
        if rows is None:
            rows = torch.arange(len(self.batch), device=self.batch.device)
        score = self._select(rows).score(answer.assignment)
        previous = self.score[rows]
        better = score > previous
        bound = answer.bound
        start = self.assignment.clone()
        start[rows] = answer.assignment
        self.starts.append(start)
        self.assignment[rows] = torch.where(better[:, None], answer.assignment, self.assignment[rows])
        best = self.score[rows] = torch.where(better, score, previous)
        # Discard bounds contradicted by a known assignment.
        bounds = torch.stack([self.bound[rows], bound])
        lowest = bounds.masked_fill(~(bounds >= best * (1 + self._rounding[rows])), 0.0).amin(0).clamp(max=0.0)
        self.bound[rows] = lowest
        proved = meets(self.batch, best, lowest) | (lowest == -torch.inf)
        counted = better | (proved & ~self.proved[rows])
        self.proved[rows] = self.proved[rows] | proved
        if bool(counted.any()):
            if method not in self._methods:
                self._methods.append(method)
            self._credit[rows] = torch.where(counted, self._methods.index(method), self._credit[rows])
            self._iterations[rows] = torch.where(counted, answer.iterations, self._iterations[rows])
        return score, bound

    def note(self, method: str, score: Tensor, bound: Tensor, rows: Tensor, began: float) -> None:
        """Record a stage's scores and bounds for the models ``rows``: numbers for one model, lists for several."""
        totals = [self.form.scores(value, rows) for value in (score, bound)]
        scores, bounds = (float(t) if len(self.batch) == 1 else t.tolist() for t in totals)
        self.stages.append((method, scores, bounds, time.perf_counter() - began))

    def answer(self, timed_out: bool) -> Answer:
        names = [self._methods[m] for m in torch.unique(self._credit).tolist() if m >= 0]
        return Answer.of(
            self.assignment,
            bound=self.bound,
            converged=self.proved,
            timed_out=torch.full_like(self.proved, timed_out) & ~self.proved,
            iterations=self._iterations,
            method="auto:" + "+".join(names) if names else "auto",
            info={"stages": self.stages, "skipped": self.skipped, "interrupted": self.interrupted},
        )

    def _select(self, rows: Tensor) -> ModelBatch:
        return self.batch if len(rows) == len(self.batch) else self.batch.select(rows)

    def report_progress(
        self,
        method: str,
        note: str,
        rows: Tensor | None = None,
        candidate: Tensor | None = None,
        lower: float = math.inf,
    ) -> None:
        """Report the best known, or a method's candidate and, for a single model, its bound where they are better."""
        if self.report is None:
            return
        assignment, score = self.assignment.clone(), self.score.clone()
        every = torch.arange(len(score), device=score.device)
        for which, found in ((every if rows is None else rows, candidate), (every, self.live())):
            if found is not None:
                value = self.batch.select(which).score(found)
                better = value > score[which]
                assignment[which] = torch.where(better[:, None], found.to(assignment), assignment[which])
                score[which] = torch.where(better, value, score[which])
        mean = float(self.form.scores(score).mean()) if len(score) else -math.inf
        bound = float(self.form.scores(self.bound).mean()) if len(score) else math.inf
        if len(score) == 1:
            bound = min(bound, float(self.form.scores(self.bound.new_tensor([lower]))))
        seconds = time.perf_counter() - self.start
        self.report(Progress(method, seconds, mean, bound, note, self._lift(assignment)))
