"""`solve`: one entry point to every solver."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

import torch

from fgnn.infer.certificate import certify
from fgnn.infer.lowered import taking
from fgnn.infer.magnitude import check_magnitude
from fgnn.infer.methods import check_options, named
from fgnn.infer.oom_retry import call_with_retry
from fgnn.infer.solution import Answer, OnProgress, Progress, Solution, SolutionBatch, conclude
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.runtime.devices import check_device

Solver = Callable[..., Answer]  # (batch, *, time_limit, seed, progress, **options) -> Answer

# The threads of OpenMP do not survive a fork: a child that relied on them would wait for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# A solver by name, as a function or as "module:function", which is imported at its first use: `import fgnn` stays
# light, and only the method that needs an optional package misses it.
SOLVERS: dict[str, Solver | str] = {
    "auto": "fgnn.infer.auto.solver:solve_auto",
    "brute-force": "fgnn.infer.brute_force:solve_brute_force",
    "exact": "fgnn.infer.exact.solver:solve_exact",
    "toulbar2": "fgnn.infer.toulbar2.solver:solve_toulbar2",
    "lp": "fgnn.infer.lp.solver:solve_lp",
    "ad3": "fgnn.infer.ad3.solver:solve_ad3",
    "dual": "fgnn.infer.dual.solver:solve_dual",
    "max-product": "fgnn.infer.max_product.solver:solve_max_product",
    "search": "fgnn.infer.search.solver:solve_search",
}


@overload
def solve(
    model: GraphicalModel,
    method: str | Solver = ...,
    *,
    time_limit: float | None = ...,
    device: torch.device | str | None = ...,
    seed: int = ...,
    progress: OnProgress | None = ...,
    **options: Any,
) -> Solution: ...
@overload
def solve(
    model: ModelBatch,
    method: str | Solver = ...,
    *,
    time_limit: float | None = ...,
    device: torch.device | str | None = ...,
    seed: int = ...,
    progress: OnProgress | None = ...,
    **options: Any,
) -> SolutionBatch: ...
def solve(
    model: GraphicalModel | ModelBatch,
    method: str | Solver = "auto",
    *,
    time_limit: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    **options: Any,
) -> Solution | SolutionBatch:
    r"""Find the assignment of highest score, eq. (map_def).

    .. math:: x^* = \operatorname{argmax}_x \sum_c \theta_c(x_c) + \sum_i \theta_i(x_i)

    Args:
        model: One model, or a `ModelBatch` of models with the same structure.
        method: A name in `SOLVERS` (``auto``, ``brute-force``, ``exact``, ``toulbar2``, ``lp``, ``ad3``,
            ``dual``, ``max-product``, ``search``; `fgnn.solve` adds ``fgnn``), or a solver function.
        time_limit: Seconds after which the best answer so far is returned.
        device: Where tensor methods run; by default the batch's device, the CPU for a single model.
        seed: Seeds the random choices of a method.
        progress: Called with updates during long solves. Ctrl-C returns the best assignment reported so far, with
            status ``time-limit``.
        options: The method's own, e.g. ``iterations=200, damping=0.5`` for ``max-product``.
    """
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    solver = solver_named(method) if isinstance(method, str) else method
    check_options(name, solver, options)
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise ValueError(f"Expected a positive time limit in seconds (got {time_limit!r})")
    if device is not None:
        check_device(device)
    start = time.perf_counter()
    if isinstance(model, GraphicalModel):
        batch = ModelBatch.stack([model], device=device or "cpu")
    elif isinstance(model, ModelBatch):
        batch = model if device is None else model.to(device)
    else:
        raise TypeError(f"Expected a GraphicalModel or a ModelBatch (got {type(model).__name__})")
    check_magnitude(batch)
    solver = taking(solver, batch)
    best = _BestSoFar(progress)
    if time_limit is not None:
        time_limit = max(1e-3, time_limit - (time.perf_counter() - start))
    try:
        answer = call_with_retry(solver, batch, Answer.join, time_limit=time_limit, progress=best, seed=seed, **options)
    except KeyboardInterrupt:
        if best.assignment is None:
            raise
        answer = Answer.of(best.assignment.to(batch.device), timed_out=True, info={"interrupted": True})
    if not answer.method:
        answer = replace(answer, method=name)
    solutions = conclude(batch, certify(batch, answer), time.perf_counter() - start)
    return replace(solutions[0], model=model.copy()) if isinstance(model, GraphicalModel) else solutions


class _BestSoFar:
    """Forward progress and keep the best assignment reported, in case the solve is interrupted."""

    def __init__(self, listener: OnProgress | None) -> None:
        self.listener = listener
        self.score = -math.inf
        self.assignment: torch.Tensor | None = None

    def __call__(self, update: Progress) -> None:
        if update.assignment is not None and (self.assignment is None or update.score >= self.score):
            self.assignment, self.score = update.assignment, update.score
        if self.listener is not None:
            self.listener(update)


def solver_named(method: str) -> Solver:
    """Return the solver of that name in `SOLVERS`, imported if need be."""
    return named(method, SOLVERS)
