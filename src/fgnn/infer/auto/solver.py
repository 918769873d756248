"""`auto`: elimination where the induced width allows it, otherwise search, with bounds and proofs beside it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.auto.portfolio import Best
from fgnn.infer.certificate import StandardForm
from fgnn.infer.dual.solver import KERNELS
from fgnn.infer.exact.parts import Part, take_apart
from fgnn.infer.exact.solver import OutOfTime, TooLarge, exact_plan, solve_exact
from fgnn.infer.local_search.decode import decode
from fgnn.infer.lowered import reads_structured
from fgnn.infer.search.ready import Kernels
from fgnn.infer.solution import Answer, OnProgress, sum_rounded_up
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import lower

# Seconds per joint state of an elimination on a CPU, at worst; only decides whether to begin.
_STATE_SECONDS = 2e-8
# Shares of the remaining time: for the plan, for elimination as a whole, and for each method of the search.
_PLAN_SHARE, _EXACT_SHARE = 0.4, 0.85
_LOADING = 0.3  # of a stage, to wait for its compiled loops
_MOST_MOVES = 1 << 22  # for local search: evaluating all of them cannot be interrupted
# What the wide models get: the method and its share of the remaining time. The first search gives an early answer, the
# last one gets the rest. Local search takes its place where numba is not installed.
_STAGES = (
    ("search", 0.08),
    ("max-product", 0.05),
    ("ad3", 0.15),
    ("local-search", 0.1),
    ("toulbar2", 0.3),
    ("search", 1.0),
)
_MANY = 1000  # variables from which on planning takes seconds
_PROVABLE = 4096  # states of all variables up to which toulbar2 may prove an optimum before the last search


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

    Elimination solves the connected components it can. The others get an early answer by ``search``, then max-
    product and, for the bound, ``dual`` (``ad3`` for several models), toulbar2 if they are small enough for a
    proof, and ``search`` from the best answers for the rest of the time. The best feasible assignment and the
    lowest bound are kept. Methods that are not installed or fail are skipped; without numba, local search and
    toulbar2 take the place of ``search``.

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
    timed_out = bool(len(batch)) and _solve(best, deadline, limits, jobs)
    return form.certify(best.answer(timed_out))


def _solve(best: Best, deadline: float | None, limits: dict[str, Any], jobs: int) -> bool:
    """Eliminate what can be eliminated and search the rest; return True if the time limit was reached."""
    try:
        _eliminate(best, deadline, limits)
    except OutOfTime:
        best.skipped["exact"] = "the time limit was reached while planning"
    except TooLarge as error:
        best.skipped["exact"] = str(error)
        split = None if best.batch.structured else error.split
        if split is not None and split.divides and not _is_over(deadline):
            easy, hard = take_apart(best.batch, split)
            best.skipped["exact"] = f"for {len(hard.variables):,} of {best.batch.num_variables:,} variables: {error}"
            if _solve_apart(best, easy, hard, deadline, limits, jobs):
                return _is_over(deadline)
    return _search(best, deadline, limits["seed"], jobs)


def _eliminate(best: Best, deadline: float | None, limits: dict[str, Any]) -> None:
    """Solve by elimination if it can be expected to end in time."""
    if deadline is not None and best.batch.num_variables >= _MANY and _far_too_wide(best, deadline, limits):
        best.skipped["exact"] = "the model is far too wide for elimination"
        return
    plan = exact_plan(lower(best.batch).batch, time_limit=_share(deadline, _PLAN_SHARE), **limits)
    limit = _share(deadline, _EXACT_SHARE)
    needed = plan.total_states * len(best.batch) * _STATE_SECONDS
    if limit is not None and best.batch.device.type == "cpu" and needed > limit:
        best.skipped["exact"] = f"{plan.total_states:,} joint states per model would exceed the time limit"
        return
    best.run("exact", solve_exact, time_limit=limit, **limits)


def _far_too_wide(best: Best, deadline: float, limits: dict[str, Any]) -> bool:
    """Whether to save the time of planning; False without the compiled loops that tell."""
    try:
        if Kernels.load().wait(_share(deadline, _LOADING)):
            from fgnn.infer.search.width import far_too_wide

            return far_too_wide(best.batch, limits["max_states"])
    except ImportError:
        pass
    return False


def _solve_apart(best: Best, easy: Part, hard: Part, deadline: float | None, limits: dict[str, Any], jobs: int) -> bool:
    """Eliminate the easy components and search the hard ones; False if the easy ones together are too large."""
    began = time.perf_counter()
    try:
        solved = solve_exact(easy.batch, time_limit=_share(deadline, 0.5), **limits)
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
    timed_out = _search(rest, deadline, limits["seed"], jobs)
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


def _search(best: Best, deadline: float | None, seed: int, jobs: int) -> bool:
    """Run the stages of a wide model; return True if the time limit was reached."""
    answer: Answer | None = None
    small = int(best.batch.state_mask.sum()) <= _PROVABLE
    for stage, (method, share) in enumerate(_stages(deadline, small)):
        if best.is_done() or best.interrupted or _is_over(deadline):
            return not best.is_done()
        has_search = "search" not in best.skipped
        if method == ("local-search" if has_search else "search") and stage:
            continue
        solver, options = None, dict[str, Any]()
        one = has_search and len(best.batch) == 1 and best.batch.device.type == "cpu"
        if method == "max-product":
            options = {"decode": "best"}
            if one:  # the compiled loops of the next method load beside this one
                KERNELS.begin()
        elif method == "ad3" and one and KERNELS.wait(_LOADING * (_share(deadline, share) or math.inf)):
            method, options = "dual", {"start": best.assignment}  # a lower bound, but one model at a time
        elif method == "search":
            options = {"starts": best.starts}
        elif method == "local-search":
            solver, options = _local_search, {"starts": best.starts}
        elif method == "toulbar2":
            options = {"start": best.assignment, "jobs": jobs}
            share = share if has_search else 1.0
        answer = best.run(method, solver, time_limit=_share(deadline, share), seed=seed, **options) or answer
    return answer is not None and bool(answer.timed_out.any())


def _stages(deadline: float | None, small: bool) -> list[tuple[str, float]]:
    """The methods in order. Without a time limit toulbar2 is last, since it runs until it has a proof."""
    if deadline is None:
        return [stage for stage in _STAGES[:-1] if stage[0] != "toulbar2"] + [("toulbar2", 1.0)]
    return [stage for stage in _STAGES if small or stage[0] != "toulbar2"]


@reads_structured
def _local_search(
    batch: ModelBatch, *, time_limit: float | None, seed: int, progress: OnProgress | None, starts: list[Tensor]
) -> Answer:
    """Repair and improve the other methods' assignments, (B, N) each."""
    if batch.unary[0].numel() > _MOST_MOVES:
        raise ValueError(f"Expected at most {_MOST_MOVES:,} moves of single variables (got {batch.unary[0].numel():,})")
    return Answer.of(decode(batch, starts=starts, seed=seed, time_limit=time_limit))


def _share(deadline: float | None, share: float) -> float | None:
    """A share of the remaining time, at least a millisecond."""
    return None if deadline is None else max(1e-3, share * (deadline - time.perf_counter()))


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.perf_counter() >= deadline
