"""`solve`: one door to every solver."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from threading import RLock
from typing import Any, overload

import torch

from fgnn.infer.magnitude import check_magnitude
from fgnn.infer.oom_retry import solve_with_retry
from fgnn.infer.solution import Answer, OnProgress, Progress, Solution, SolutionBatch, conclude
from fgnn.pgm import GraphicalModel, ModelBatch

# Where each method lives. Modules are named, not imported, so that `import fgnn` stays light and a missing
# optional package is only missed by the method that needs it.
SOLVERS: dict[str, str] = {
    "auto": "fgnn.infer.auto.solver:solve_auto",
    "brute-force": "fgnn.infer.brute_force:solve_brute_force",
    "exact": "fgnn.infer.exact.solver:solve_exact",
    "toulbar2": "fgnn.infer.toulbar2.solver:solve_toulbar2",
    "lp": "fgnn.infer.lp:solve_lp",
    "ad3": "fgnn.infer.ad3.solver:solve_ad3",
    "max-product": "fgnn.infer.max_product.solver:solve_max_product",
    "fgnn": "fgnn.models.map.learned:solve_fgnn",
}
# They are imported when they are first asked for, by one thread at a time: two that import modules of one package by
# different ways can wait for each other.
_IMPORTING = RLock()


@overload
def solve(
    model: GraphicalModel,
    method: str = ...,
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
    method: str = ...,
    *,
    time_limit: float | None = ...,
    device: torch.device | str | None = ...,
    seed: int = ...,
    progress: OnProgress | None = ...,
    **options: Any,
) -> SolutionBatch: ...
def solve(
    model: GraphicalModel | ModelBatch,
    method: str = "auto",
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
        model: One model, or many of one structure as a `ModelBatch`.
        method: ``auto``, ``brute-force``, ``exact``, ``toulbar2``, ``lp``, ``ad3``, ``max-product`` or ``fgnn``.
        time_limit: Seconds after which the best answer so far is returned.
        device: Where tensor methods run; by default where the batch lies, the CPU for one model.
        seed: Seeds whatever is random in a method.
        progress: Called with news from long solves. Ctrl-C returns the best answer told so far (``time-limit``).
        options: Those of the method, e.g. ``iterations=200, damping=0.5`` for ``max-product``.
    """
    solver = solver_named(method)
    _check_options(method, solver, options)
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise ValueError(f"Expected a positive time limit in seconds (got {time_limit!r})")
    _check_device(device)
    start = time.perf_counter()
    if isinstance(model, GraphicalModel):
        batch = ModelBatch.stack([model], device=device or "cpu")
    elif isinstance(model, ModelBatch):
        batch = model if device is None else model.to(device)
    else:
        raise TypeError(f"Expected a GraphicalModel or a ModelBatch (got {type(model).__name__})")
    check_magnitude(batch)
    best = _BestSoFar(progress)
    try:
        answer = solve_with_retry(solver, batch, time_limit=time_limit, progress=best, seed=seed, **options)
    except KeyboardInterrupt:
        if best.assignment is None:
            raise
        stopped = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
        answer = Answer.of(best.assignment.to(batch.device), timed_out=stopped, info={"interrupted": True})
    if not answer.method:
        answer = replace(answer, method=method)
    solutions = conclude(batch, answer, time.perf_counter() - start)
    return solutions[0] if isinstance(model, GraphicalModel) else solutions


class _BestSoFar:
    """Passes a solver's news on and keeps the best assignment told, for when the solve is interrupted."""

    def __init__(self, listener: OnProgress | None) -> None:
        self.listener = listener
        self.score = -math.inf
        self.assignment: torch.Tensor | None = None

    def __call__(self, news: Progress) -> None:
        if news.assignment is not None and (self.assignment is None or news.score >= self.score):
            self.assignment, self.score = news.assignment, news.score
        if self.listener is not None:
            self.listener(news)


def solver_named(method: str) -> Callable[..., Answer]:
    """The solver behind a method's name: ``(batch, *, time_limit, seed, progress, **options) -> Answer``."""
    if method not in SOLVERS:
        close = get_close_matches(str(method), SOLVERS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"Expected a method among {', '.join(SOLVERS)} (got {method!r}{hint})")
    module, name = SOLVERS[method].split(":")
    with _IMPORTING:
        solver: Callable[..., Answer] = getattr(import_module(module), name)
    return solver


def _check_device(device: torch.device | str | None) -> None:
    try:
        kind = "cpu" if device is None else torch.device(device).type
    except RuntimeError:
        raise ValueError(f"Expected a device such as cpu or cuda (got {device!r})") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Expected a device this machine has (got {device}, and torch sees no CUDA device)")


def _check_options(method: str, solver: Callable[..., Answer], options: dict[str, Any]) -> None:
    known = [
        p.name
        for p in inspect.signature(solver).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in ("time_limit", "seed", "progress")
    ]
    for name in options:
        if name not in known:
            told = ", ".join(known) if known else "none"
            raise ValueError(f"Expected an option of {method} ({told}) (got {name!r})")
