"""`auto`: elimination where the induced width allows it, otherwise search, with bounds and proofs beside it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.auto.beside import DELAY, Beside
from fgnn.infer.auto.portfolio import Best
from fgnn.infer.certificate import StandardForm
from fgnn.infer.dual.solver import KERNELS
from fgnn.infer.exact.parts import Part, take_apart
from fgnn.infer.exact.solver import OutOfTime, TooLarge, exact_plan, solve_exact
from fgnn.infer.local_search.decode import decode
from fgnn.infer.lowered import counts, reads_structured
from fgnn.infer.reporter import Reporter
from fgnn.infer.search.ready import Kernels
from fgnn.infer.solution import Answer, OnProgress, sum_rounded_up
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import lower

# Seconds per joint state of an elimination on a CPU, at worst; only decides whether to begin.
_STATE_SECONDS = 2e-8
# Shares of the remaining time: for the plan, for elimination as a whole, and for each method of the search.
_PLAN_SHARE, _EXACT_SHARE = 0.3, 0.85
_MOST_MOVES = 1 << 22  # for local search: evaluating all of them cannot be interrupted
# What wide models get: methods and their shares of the remaining time. A single model on the CPU is searched from the
# start, beside the methods for bounds and proofs.
_BOUNDS = (("max-product", 0.05), ("ad3", 0.15), ("toulbar2", 0.3))
# Others are searched early and late. Local search takes the place of search where numba is not installed.
_STAGES = (
    ("search", 0.08),
    ("max-product", 0.05),
    ("ad3", 0.15),
    ("local-search", 0.1),
    ("toulbar2", 0.3),
    ("search", 1.0),
)
_SOME, _MANY = 100, 1000  # variables from which on planning may take long, and takes seconds
_LOADING, _PATIENCE = 0.3, 0.05  # of the time to wait for compiled loops, and for the search in the background
_PROVABLE, _EASY = 4096, 512  # states of all variables up to which toulbar2 may, and does, look for a proof
_ENTRY_SECONDS = 5e-7  # per entry of the tables, until max-product or ``dual`` has something to show
_EXPLAINED = 0.3  # share of the best assignment's loss that the bound must have reached for the former


@reads_structured
def solve_auto(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    max_states: int = 1 << 26,
    memory: int | None = None,
    jobs: int = 1,
) -> Answer:
    """Solve by elimination if possible; otherwise search, with bounds and proofs from other methods.

    Elimination solves the connected components it can. A single model is searched meanwhile, in the background. Where
    elimination cannot end in time, the search goes on beside max-product, ``dual`` for the bound, and toulbar2 if a
    proof is within reach; then it gets all cores for the rest of the time. Several models, and models on a GPU, get
    these methods one after the other, with ``ad3`` in place of ``dual``. The best feasible assignment and the lowest
    bound are kept. Methods that are not installed or fail are skipped; without numba, local search and toulbar2 take
    the place of ``search``.

    ``info["stages"]`` lists ``(method, score, bound, seconds)``, ``info["skipped"]`` the reason for each skipped
    method, and the answer's method names, after ``auto:``, those whose assignment or proof was kept.

    Args:
        batch: Models of the same structure.
        time_limit: Seconds; without it toulbar2 runs until it has a proof.
        seed: Seeds the methods.
        progress: Receives the methods' progress and outcomes.
        max_states: The most joint states in a step of the elimination.
        memory: The most bytes for the elimination.
        jobs: Child processes for toulbar2.
    """
    start = time.perf_counter()
    deadline = None if time_limit is None else start + time_limit
    form = StandardForm.of(batch)
    best = Best(form, progress, start)
    limits: dict[str, Any] = {"max_states": max_states, "memory": memory, "seed": seed}
    timed_out = bool(len(batch)) and _Run(deadline, seed, jobs, limits).solve(best)
    return form.certify(best.answer(timed_out))


@dataclass
class _Run:
    """One call of `solve_auto`."""

    deadline: float | None
    seed: int
    jobs: int
    limits: dict[str, Any]  # of the elimination

    def solve(self, best: Best) -> bool:
        """Eliminate what can be eliminated and search the rest; return True if the time limit was reached."""
        beside = self._beside(best, DELAY)
        split = None
        try:
            self._eliminate(best, beside)
        except OutOfTime:
            best.skipped["exact"] = "the time limit was reached while planning"
        except TooLarge as error:
            best.skipped["exact"] = str(error)
            split = error.split if all(f.counter is not None for f in best.batch.structured) else None
        except BaseException:
            _stop(beside)
            raise
        if split is not None and split.divides and not self._is_over():
            _stop(beside)
            easy, hard = take_apart(best.batch, split)
            why = best.skipped["exact"]
            best.skipped["exact"] = f"for {len(hard.variables):,} of {best.batch.num_variables:,} variables: {why}"
            if self._solve_apart(best, easy, hard):
                return self._is_over()
        return self._search(best, beside)

    def _beside(self, best: Best, delay: float) -> Beside | None:
        """A search in the background: of a single model on the CPU, within a time limit."""
        if self.deadline is None or len(best.batch) != 1 or best.batch.device.type != "cpu":
            return None
        return Beside(best.batch, self.deadline, self.seed, delay)

    def _eliminate(self, best: Best, beside: Beside | None) -> None:
        """Solve by elimination if it can be expected to end in time."""
        if self.deadline is not None and self._far_too_wide(best):
            best.skipped["exact"] = "the model is far too wide for elimination"
            return
        reporter = Reporter("auto", best.report)
        best.live = beside.best if beside is not None else best.live

        def report() -> None:
            if beside is not None and beside.best() is not None and reporter.due():
                best.report_progress("auto:search", "while planning")

        batch, limit = lower(best.batch, keep=counts).batch, self._share(_PLAN_SHARE)
        plan = exact_plan(batch, time_limit=limit, meanwhile=report, **self.limits)
        limit = self._share(_EXACT_SHARE)
        needed = plan.total_states * len(best.batch) * _STATE_SECONDS
        if limit is not None and best.batch.device.type == "cpu" and needed > limit:
            best.skipped["exact"] = f"{plan.total_states:,} joint states per model would exceed the time limit"
            return
        _stop(beside)  # elimination uses all cores
        best.run("exact", solve_exact, time_limit=limit, **self.limits)

    def _far_too_wide(self, best: Best) -> bool:
        """Whether to save the time of planning; False without the compiled loops that tell."""
        count = best.batch.num_variables
        wait = self._share(_LOADING) if count >= _MANY else 0.0
        try:
            if count >= _SOME and Kernels.load().wait(wait):
                from fgnn.infer.search.width import far_too_wide

                deadline = time.perf_counter() + (self._share(0.05) or math.inf)
                return far_too_wide(best.batch, self.limits["max_states"], deadline)
        except ImportError:
            pass
        return False

    def _solve_apart(self, best: Best, easy: Part, hard: Part) -> bool:
        """Eliminate the easy components and search the hard ones; False if the easy ones together are too large."""
        began = time.perf_counter()
        try:
            solved = solve_exact(easy.batch, time_limit=self._share(0.5), **self.limits)
        except TooLarge:
            return False
        if not bool(solved.converged.all()):
            return False
        score = easy.batch.score(solved.assignment)

        def lift(assignment: Tensor) -> Tensor:
            whole = torch.empty_like(best.assignment)
            whole[:, easy.variables] = solved.assignment
            whole[:, hard.variables[hard.own]] = assignment[:, hard.own]
            return whole

        form = replace(best.form, batch=hard.batch, offset=best.form.scores(score))
        rest = Best(form, best.report, best.start, lift)
        rows = torch.arange(len(hard.batch), device=score.device)
        rest.note("exact", rest.score, rest.bound, rows, began)
        rest.proved |= score == -torch.inf  # infeasible already: the hard part cannot change that
        timed_out = self._search(rest, None)
        best.skipped.update(rest.skipped)
        best.stages += rest.stages
        answer = rest.answer(timed_out)
        infeasible = (score == -torch.inf) | (rest.proved & (rest.score == -torch.inf))
        best.take(
            "exact+" + answer.method.removeprefix("auto:"),
            Answer.of(
                lift(answer.assignment),
                bound=torch.where(infeasible, -torch.inf, sum_rounded_up(solved.bound, answer.bound)),
            ),
        )
        return True

    def _search(self, best: Best, beside: Beside | None) -> bool:
        """Search a wide model; return True if the time limit was reached."""
        if best.is_done() or best.interrupted or self._is_over():
            _stop(beside)
            if beside is not None:
                self._take(best, beside)
            return not best.is_done()
        if beside is None or beside.stopped:
            beside = self._beside(best, 0.0)
        if beside is None:
            return self._stages(best)
        try:
            return self._stages_beside(best, beside)
        finally:
            beside.stop()

    def _stages_beside(self, best: Best, beside: Beside) -> bool:
        """Bounds and proofs in turn, while the search goes on; then the rest of the time for the search."""
        best.live = beside.best
        if not beside.ready(_PATIENCE * (self._share(1.0) or 0.0)):  # the first time in an installation
            self._run_stage(best, "local-search", 0.1)
        for method, share in _BOUNDS:
            for assignment in best.starts[-1:]:
                beside.offer(assignment)
            if (found := beside.best()) is not None:
                best.take("search", Answer.of(found, bound=0.0))
                best.report_progress("auto:search", "")
            if best.is_done() or best.interrupted or self._is_over():
                break
            if method != "toulbar2" or _may_be_proved(best):
                self._run_stage(best, method, share)
        beside.offer(best.assignment)
        if beside.error:
            best.skipped["search"] = beside.error
            return self._stages(best) if not best.is_done() else False
        if not best.is_done() and not best.interrupted:
            self._finish(best, beside)
        beside.stop()
        self._take(best, beside)
        return not best.is_done()  # the search ends with the time, a little early to keep the limit

    def _take(self, best: Best, beside: Beside) -> None:
        """Keep what the search in the background has found."""
        if (found := beside.best()) is not None:
            score, bound = best.take("search", Answer.of(found, bound=0.0))
            best.note("search", score, bound, torch.arange(1), beside.began)

    def _finish(self, best: Best, beside: Beside) -> None:
        """Search on all cores until the end."""
        reporter = Reporter("auto", best.report)
        try:
            beside.finish()
            while not beside.wait():
                if reporter.due():
                    best.report_progress("auto:search", "")
        except KeyboardInterrupt:
            best.interrupted = True

    def _stages(self, best: Best) -> bool:
        """One method after the other; return True if the time limit was reached."""
        answer: Answer | None = None
        stages = [s for s in _STAGES if s[0] != "toulbar2" or _may_be_proved(best, by_bound=False)]
        if self.deadline is None:  # toulbar2 is last, since it runs until it has a proof
            stages = [s for s in _STAGES[:-1] if s[0] != "toulbar2"] + [("toulbar2", 1.0)]
        for stage, (method, share) in enumerate(stages):
            if best.is_done() or best.interrupted or self._is_over():
                return not best.is_done()
            if method == ("local-search" if "search" not in best.skipped else "search") and stage:
                continue
            answer = self._run_stage(best, method, share) or answer
        return answer is not None and bool(answer.timed_out.any())

    def _run_stage(self, best: Best, method: str, share: float) -> Answer | None:
        """Let a method improve on the best for a share of the remaining time."""
        solver, options = None, dict[str, Any]()
        has_search = "search" not in best.skipped
        one = has_search and len(best.batch) == 1 and best.batch.device.type == "cpu"
        if method in ("max-product", "ad3") and one and _first_answer(best.batch) > (self._share(share) or math.inf):
            best.skipped["dual" if method == "ad3" else method] = "the time limit is too short for a model of this size"
            return None
        if method == "max-product":
            options = {"decode": "best"}
            if one:  # the compiled loops of the next method load beside this one
                KERNELS.begin()
        elif method == "ad3" and one and KERNELS.wait(_LOADING * (self._share(share) or math.inf)):
            method, options = "dual", {"start": best.assignment}  # a lower bound, but one model at a time
        elif method == "search":
            options = {"starts": best.starts}
        elif method == "local-search":
            solver, options = _local_search, {"starts": best.starts}
        elif method == "toulbar2":
            options = {"start": best.assignment, "jobs": self.jobs}
            share = share if has_search else 1.0
        return best.run(method, solver, time_limit=self._share(share), seed=self.seed, **options)

    def _share(self, share: float) -> float | None:
        """A share of the remaining time, at least a millisecond."""
        return None if self.deadline is None else max(1e-3, share * (self.deadline - time.perf_counter()))

    def _is_over(self) -> bool:
        return self.deadline is not None and time.perf_counter() >= self.deadline


def _stop(beside: Beside | None) -> None:
    if beside is not None:
        beside.stop()


def _first_answer(batch: ModelBatch) -> float:
    """About the seconds until max-product has an assignment, or ``dual`` a bound, of one model."""
    return _ENTRY_SECONDS * sum(t.values[0].numel() for t in batch.tables)


def _may_be_proved(best: Best, by_bound: bool = True) -> bool:
    """Whether branch and bound may find a proof: on few states, and where the bound explains some of the loss."""
    states = int(best.batch.state_mask.sum())
    explained = (best.bound <= _EXPLAINED * best.score) | (best.score == -torch.inf)
    return states <= _PROVABLE and (states <= _EASY or not by_bound or bool(explained.any()))


@reads_structured
def _local_search(
    batch: ModelBatch, *, time_limit: float | None, seed: int, progress: OnProgress | None, starts: list[Tensor]
) -> Answer:
    """Repair and improve the other methods' assignments, (B, N) each."""
    if batch.unary[0].numel() > _MOST_MOVES:
        raise ValueError(f"Expected at most {_MOST_MOVES:,} moves of single variables (got {batch.unary[0].numel():,})")
    return Answer.of(decode(batch, starts=starts, seed=seed, time_limit=time_limit))
