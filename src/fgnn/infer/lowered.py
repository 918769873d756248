"""Methods that read only tables and counters, applied to models with structured factors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from fgnn.infer.certificate import certify
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.pgm import ModelBatch
from fgnn.pgm.factors import Kind
from fgnn.pgm.lowering import Keep, Lowered, lower

Function = TypeVar("Function", bound=Callable[..., Any])


def reads_structured(method: Function) -> Function:
    """Mark a method that asks structured factors itself; `solve` lowers models for all others."""
    method.reads_structured = True  # type: ignore[attr-defined]
    return method


# Which factors a solver asks itself, on a batch and within a time limit.
Asked = Callable[[ModelBatch, float | None], Keep]


def _none(batch: ModelBatch, time_limit: float | None) -> Keep:
    return lambda kind, shape: False


def counts(kind: Kind, shape: tuple[int, ...]) -> bool:
    """Whether factors depend on a sum alone, for methods that read tables and counters."""
    return kind.counter(shape) is not None


def counting(batch: ModelBatch, time_limit: float | None) -> Keep:
    """Keep the factors that count."""
    return counts


def lowers(solver: Callable[..., Answer], *, local: bool = False, keep: Asked = _none) -> Callable[..., Answer]:
    """Let a solver work on tables and counters: auxiliary variables are added before it and dropped after it.

    ``local`` is for solvers that change one variable at a time, see `lower`. Kinds to ``keep`` stay as they are.
    """

    @reads_structured
    @wraps(solver)
    def solve(batch: ModelBatch, *, progress: OnProgress | None = None, **options: Any) -> Answer:
        if not batch.structured:
            return solver(batch, progress=progress, **options)
        begin, limit = time.perf_counter(), options.get("time_limit")
        lowered = lower(batch, local=local, keep=keep(batch, limit))
        if limit is not None:
            options["time_limit"] = max(1e-3, limit - (time.perf_counter() - begin))
        starts = {name: _completed(lowered, batch, value) for name, value in options.items()}
        answer = solver(lowered.batch, progress=_own_progress(lowered, progress), **starts)
        whole = lowered.complete(answer.assignment[:, : batch.num_variables])
        if not torch.equal(whole, answer.assignment):  # a rounding whose auxiliary variables do not fit
            answer = certify(lowered.batch, replace(answer, assignment=whole, certified=False))
        return replace(
            answer, assignment=whole[:, : batch.num_variables], info=own_info(answer.info, lowered.batch, batch)
        )

    return solve


def lowers_except(keep: Asked) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """As `lowers`, for solvers that ask some kinds themselves."""
    return partial(lowers, keep=keep)


def taking(solver: Callable[..., Answer], batch: ModelBatch) -> Callable[..., Answer]:
    """The solver itself if it can read the factors of a batch, else the solver on tables and counters."""
    return lowers(solver) if batch.structured and not getattr(solver, "reads_structured", False) else solver


def own_info(info: Mapping[str, Any], lowered: ModelBatch, batch: ModelBatch) -> dict[str, Any]:
    """Further results without the auxiliary variables: tensors (B, N + M, ...) become (B, N, ...)."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != lowered.num_variables:
            return value
        own = value[:, : batch.num_variables]
        return own[..., : batch.unary.shape[2]] if value.shape[1:] == lowered.unary.shape[1:] else own

    return {name: cut(value) for name, value in info.items()}


def _completed(lowered: Lowered, batch: ModelBatch, option: Any) -> Any:
    """An option with the states of the auxiliary variables, where it holds assignments (B, N)."""
    if isinstance(option, list | tuple):
        return [_completed(lowered, batch, item) for item in option]
    whole = isinstance(option, Tensor) and option.shape == (len(batch), batch.num_variables)
    return lowered.complete(option.to(batch.device, torch.int64)) if whole else option


def _own_progress(lowered: Lowered, progress: OnProgress | None) -> OnProgress | None:
    if progress is None:
        return None

    def report(update: Progress) -> None:
        assignment = update.assignment
        own = None if assignment is None else assignment[..., : lowered.num_variables]
        progress(replace(update, assignment=own))

    return report
