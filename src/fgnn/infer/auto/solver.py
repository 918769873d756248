"""The method that chooses: elimination where the width allows, else toulbar2 from the best cheap answer."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from fgnn.infer.api import solver_named
from fgnn.infer.auto.portfolio import Best
from fgnn.infer.exact.parts import Part, take_apart
from fgnn.infer.exact.solver import OutOfTime, TooLarge, exact_plan, solve_exact
from fgnn.infer.local_search.decode import decode
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import ModelBatch

# What a joint state of an elimination takes at worst on a CPU; decides only whether to begin.
_STATE_SECONDS = 2e-8
# Shares of the time that is left: for the plan, for elimination as a whole, and for each cheap method.
_PLAN_SHARE, _EXACT_SHARE = 0.4, 0.85
_CHEAP_SHARES = {"max-product": 0.1, "ad3": 0.2, "local-search": 0.1}


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
    """Solve exactly where elimination can; otherwise start toulbar2 from the best cheap answer.

    Components that elimination can solve are solved by it; the others get max-product, ad3, a local search from their
    answers, and toulbar2 under what is left of the time limit. The best feasible assignment and the lowest bound of
    all are kept. Methods that are not installed, fail or refuse are passed over. ``info["stages"]`` lists
    ``(method, score, bound, seconds)``, ``info["skipped"]`` the reasons of those passed over, and the answer's method
    names, after ``auto:``, those whose assignment or proof counted.

    Args:
        batch: Models of one structure.
        time_limit: Seconds; without it toulbar2 runs until it has a proof.
        seed: Of whatever is random in the methods.
        progress: Told the methods' news and their outcomes.
        max_states: The most joint states a step of the elimination may have.
        memory: The bytes elimination stays within.
        jobs: Child processes for toulbar2.
    """
    start = time.perf_counter()
    deadline = None if time_limit is None else start + time_limit
    best = Best(batch, progress, start)
    width: dict[str, Any] = {"max_states": max_states, "memory": memory, "seed": seed}
    try:
        _eliminate(best, deadline, width)
    except OutOfTime:
        best.skipped["exact"] = "the time limit came before the plan"
    except TooLarge as error:
        best.skipped["exact"] = str(error)
        if error.split is not None and error.split.divides and not _is_out(deadline):
            easy, hard = take_apart(batch, error.split)
            best.skipped["exact"] = f"for {len(hard.variables):,} of {batch.num_variables:,} variables: {error}"
            if _solve_apart(best, easy, hard, deadline, width, jobs):
                return best.answer(timed_out=_is_out(deadline))
    timed_out = _search(best, deadline, seed, jobs)
    return best.answer(timed_out)


def _eliminate(best: Best, deadline: float | None, width: dict[str, Any]) -> None:
    """Solve by elimination, if that can be expected to end in time."""
    plan = exact_plan(best.batch, time_limit=_share(deadline, _PLAN_SHARE), **width)
    limit = _share(deadline, _EXACT_SHARE)
    needed = plan.total_states * len(best.batch) * _STATE_SECONDS
    if limit is not None and best.batch.device.type == "cpu" and needed > limit:
        best.skipped["exact"] = f"{plan.total_states:,} joint states a model would outlast the time limit"
        return
    best.run("exact", lambda part, tell: solve_exact(part, time_limit=limit, progress=tell, **width))


def _solve_apart(best: Best, easy: Part, hard: Part, deadline: float | None, width: dict[str, Any], jobs: int) -> bool:
    """Eliminate the easy components and search the hard ones; False where even the easy ones are too much together."""
    began = time.perf_counter()
    try:
        done = solve_exact(easy.batch, time_limit=_share(deadline, 0.5), **width)
    except TooLarge:
        return False
    if not bool(done.proved.all()):
        return False
    score = easy.batch.score(done.assignment)

    def lift(assignment: torch.Tensor) -> torch.Tensor:
        whole = torch.empty_like(best.assignment)
        whole[:, easy.variables] = done.assignment
        whole[:, hard.variables[hard.own]] = assignment[:, hard.own]
        return whole

    rest = Best(hard.batch, best.tell, best.start, lift=lift, shift=score)
    every = torch.arange(len(hard.batch), device=score.device)
    rest.note("exact", rest.score, rest.bound, every, began)
    rest.proved |= score == -torch.inf  # nothing in the hard part can help these
    timed_out = _search(rest, deadline, width["seed"], jobs)
    best.skipped.update(rest.skipped)
    best.stages += rest.stages
    found = rest.answer(timed_out)
    hopeless = (score == -torch.inf) | (rest.proved & (rest.score == -torch.inf))
    best.take(
        "exact+" + found.method.removeprefix("auto:"),
        Answer.of(
            lift(found.assignment),
            bound=torch.where(hopeless, -torch.inf, score + found.bound),
            proved=found.proved | hopeless,
        ),
    )
    return True


def _search(best: Best, deadline: float | None, seed: int, jobs: int) -> bool:
    """Cheap methods first, toulbar2 last; says whether the time ended it."""
    for method, share in _CHEAP_SHARES.items():
        if best.is_done() or best.interrupted or _is_out(deadline):
            break
        call = partial(_local_search, best) if method == "local-search" else partial(_by_name, method)
        options: dict[str, Any] = {"decode": "best"} if method == "max-product" else {}
        best.run(method, partial(call, time_limit=_share(deadline, share), seed=seed, **options))
    if best.is_done() or best.interrupted or _is_out(deadline):
        return not best.is_done()
    start = best.among_open(best.assignment)
    call = partial(_by_name, "toulbar2", time_limit=_share(deadline, 1.0), seed=seed, start=start, jobs=jobs)
    answer = best.run("toulbar2", call)
    return answer is not None and bool(answer.timed_out.any())


def _by_name(method: str, batch: ModelBatch, progress: OnProgress | None, **options: Any) -> Answer:
    return solver_named(method)(batch, progress=progress, **options)


def _local_search(
    best: Best, batch: ModelBatch, progress: OnProgress | None, *, time_limit: float | None, seed: int
) -> Answer:
    """Repair and improve what the other methods found."""
    starts = [best.among_open(start) for start in best.starts]
    return Answer.of(decode(batch, starts=starts, seed=seed, time_limit=time_limit))


def _share(deadline: float | None, share: float) -> float | None:
    """A part of the time that is left, never quite nothing."""
    return None if deadline is None else max(1e-3, share * (deadline - time.perf_counter()))


def _is_out(deadline: float | None) -> bool:
    return deadline is not None and time.perf_counter() >= deadline
