"""`auto`: exact where elimination or counting can finish; else random solutions of clauses, or sum-product conditioned
on a few variables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.exact.plan import TooLarge
from fgnn.infer.lowered import reads_structured
from fgnn.infer.probability.attach import needs_gradient
from fgnn.infer.probability.barren import without_barren
from fgnn.infer.probability.clause_samples import log_z_by_sampling
from fgnn.infer.probability.conditioned import conditioned
from fgnn.infer.probability.counting import as_clauses, log_z_by_counting
from fgnn.infer.probability.exact import log_partition_exact, marginals_exact
from fgnn.infer.probability.exchangeable import marginals_exchangeable
from fgnn.infer.probability.mini_bucket import marginals_mini_bucket
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.probability.sum_product import marginals_sum_product
from fgnn.infer.probability.trw import highest, marginals_trw
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch

# Settings that converge where the default does not, in turn.
_CALMER: tuple[dict[str, Any], ...] = (
    {"iterations": 1000, "damping": 0.3, "schedule": "sequential"},
    {"iterations": 2000, "damping": 0.9},
)
# Seconds to count solutions where there is no time limit.
_COUNT_SECONDS = 30.0
_COUNT_SHARE = 0.5
# The same for random solutions.
_SAMPLE_SECONDS = 10.0
_SAMPLE_SHARE = 0.7
# Time for conditioning: seconds where there is no time limit, and a share of what sum-product leaves.
_CUT_SECONDS = 5.0
_CUT_SHARE = 0.75
# Seconds for each bound where there is no time limit.
_BOUND_SECONDS = 5.0
# Share of the time limit that elimination may take; sum-product has the rest.
_EXACT_SHARE = 0.8
_CLAUSE_SHARE = 0.4  # where counting and sampling are the better alternatives


@reads_structured
def marginals_auto(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
) -> Beliefs:
    """Eliminate; if that needs too many states, too much memory or time, pass messages. ``exact`` says which it was."""
    begin = time.perf_counter()
    counted = None if tables else marginals_exchangeable(batch)
    if counted is not None:
        return counted
    common: dict[str, Any] = {"seed": seed, "progress": progress, "tables": tables}
    try:
        return _eliminated(partial(marginals_exact, batch, **common), time_limit, begin)
    except TooLarge as error:
        left = None if time_limit is None else max(1e-3, time_limit - (time.perf_counter() - begin))
        return _approximate(batch, left, common, str(error))


@reads_structured
def log_partition_auto(
    batch: ModelBatch, *, time_limit: float | None = None, seed: int = 0, progress: OnProgress | None = None
) -> Beliefs:
    """log Z alone, by the same rule; differentiable if it is exact."""
    begin = time.perf_counter()
    learning = needs_gradient(batch)
    counted = None if learning else marginals_exchangeable(batch)
    if counted is not None:
        return counted
    batch = batch if learning else without_barren(batch)
    clauses = None if learning else as_clauses(batch)
    common: dict[str, Any] = {"seed": seed, "progress": progress}
    try:
        share = _EXACT_SHARE if clauses is None else _CLAUSE_SHARE
        return _eliminated(partial(log_partition_exact, batch, **common), time_limit, begin, share)
    except TooLarge as error:
        reason = str(error)

    def left(share: float = 1.0) -> float | None:
        return None if time_limit is None else max(1e-3, share * (time_limit - (time.perf_counter() - begin)))

    if clauses is not None:
        found = log_z_by_counting(batch, left(_COUNT_SHARE) or _COUNT_SECONDS)
        if found is not None:
            return found
        found = log_z_by_sampling(batch, clauses, left(_SAMPLE_SHARE) or _SAMPLE_SECONDS, seed)
        if found is not None:
            found = _within_bounds(batch, found, left(0.8), seed)
            return replace(found, method="sampling", info={**found.info, "not exact": reason})
    return _approximate(batch, left(), common, reason, bounded=not learning)


def _eliminated(
    exact: Callable[..., Beliefs], time_limit: float | None, begin: float, share: float = _EXACT_SHARE
) -> Beliefs:
    """The exact answer; `TooLarge` if it takes too many states, too much memory or time."""
    seconds = None
    if time_limit is not None:
        seconds = max(1e-3, share * time_limit - (time.perf_counter() - begin))
    beliefs = exact(time_limit=seconds)
    if bool(beliefs.timed_out.any()):
        raise TooLarge("the time limit was reached")
    return replace(beliefs, method="exact")


def _approximate(
    batch: ModelBatch, time_limit: float | None, common: dict[str, Any], reason: str, *, bounded: bool = True
) -> Beliefs:
    """Messages, and for a single model an upper bound on log Z unless ``bounded`` is false."""
    begin = time.perf_counter()

    def left(share: float) -> float | None:
        return None if time_limit is None else max(1e-3, share * (time_limit - (time.perf_counter() - begin)))

    beliefs = _converged(batch, left, common)
    if bounded and len(batch) == 1 and not bool(beliefs.exact):
        seconds = left(_CUT_SHARE)
        beliefs = conditioned(batch, beliefs, _CUT_SECONDS if seconds is None else seconds, **common)
    if bounded and len(batch) == 1 and not bool(beliefs.exact):
        beliefs = _within_bounds(batch, beliefs, left(0.8), common["seed"])
    # A share of the limit ended the messages; they are an answer all the same.
    late = beliefs.timed_out & ~beliefs.log_z.isfinite()
    return replace(beliefs, timed_out=late, method="sum-product", info={**beliefs.info, "not exact": reason})


def _converged(batch: ModelBatch, left: Callable[[float], float | None], common: dict[str, Any]) -> Beliefs:
    """Pass messages with more and more damping until they converge."""
    beliefs = marginals_sum_product(batch, time_limit=left(1 / 5), iterations=500, **common)
    for settings in _CALMER:
        if len(batch) > 1 or bool(beliefs.converged.all()):
            break
        again = marginals_sum_product(batch, time_limit=left(1 / 5), **settings, **common)
        beliefs = again if bool(again.converged.all()) else beliefs
    return beliefs


def _within_bounds(batch: ModelBatch, beliefs: Beliefs, time_limit: float | None, seed: int) -> Beliefs:
    """Keep Bethe's log Z between what is proved. If messages did not converge it can be anything."""
    from fgnn.infer.api import solve  # imports this package

    methods = 2 if bool(beliefs.converged) else 3
    share = _BOUND_SECONDS if time_limit is None else time_limit / methods
    above = highest(batch)
    for method in (marginals_mini_bucket, marginals_trw):
        above = torch.minimum(above, method(batch, time_limit=share, seed=seed).bound)
    if bool(beliefs.converged):
        return replace(beliefs, log_z=torch.minimum(beliefs.log_z, above), bound=above)
    best = solve(batch.detach(), "auto", time_limit=share, seed=seed)
    proved = torch.tensor([status == "infeasible" for status in best.status], device=above.device)
    above = above.masked_fill(proved, -torch.inf)
    below = torch.maximum(best.score.to(above), _lowest(batch))  # one of the terms of Z, or the least it can be
    inside = (beliefs.log_z >= below) & (beliefs.log_z <= above)
    middle = (below + above) / 2
    log_z = torch.where(inside | ~middle.isfinite(), beliefs.log_z, middle)
    return replace(beliefs, log_z=log_z, bound=above)


def _lowest(batch: ModelBatch) -> Tensor:
    """The least that log Z can be if there is a feasible assignment: as if every factor had its least finite value."""
    unary = batch.unary.detach().double()
    total = batch.constant.detach().double() + unary.masked_fill(unary == -torch.inf, torch.inf).amin(2).sum(1)
    for f in batch.factors:
        values = f.potentials(torch.float64).detach().flatten(2)
        total = total + values.masked_fill(values == -torch.inf, torch.inf).amin(2).sum(1)
    return torch.where(total.isfinite(), total, -torch.inf)
