"""`ad3`: the linear relaxation by alternating directions, for many models at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, build_layout
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, Relaxed, relax
from fgnn.infer.ad3.rounding import rows_to_states
from fgnn.infer.ad3.search import search
from fgnn.infer.bounds import factor_maxima
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.pgm import ModelBatch

_PROOF = 1e-9
# Numbers held per model and row, roughly: what a chunk may take decides how many models it has.
_TENSORS = 24
_CPU_CHUNK = 1 << 17  # rows x models: a tensor of that many floats stays in the cache
_GPU_FRACTION = 0.4


def solve_ad3(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    iterations: int = 5000,
    tolerance: float = 1e-4,
    rounding: str = "best",
    branch_and_bound: bool = False,
    max_nodes: int = 10_000,
) -> Answer:
    r"""Solve the local-polytope relaxation by AD3 (Martins et al., 2015), batched over models.

    The relaxation of `lp` is decomposed into its factors, which agree on the variables' marginals through multipliers
    λ; alternating directions move both (see `steps` for the equations). ``bound`` is the least dual value seen,
    :math:`\min_k D(\lambda_k)`, computed in float64: an upper bound on the optimum whatever has converged.

    A model is ``converged`` when bound and relaxation differ by no more than ``tolerance`` (relative), or when it is
    proved infeasible: its bound is below what any feasible assignment scores. Converged models leave the batch.

    Args:
        iterations: At most this many.
        tolerance: Relative gap between the bound and the relaxation's value.
        rounding: ``best``: of the feasible roundings seen on the way the best, otherwise as ``argmax``, which takes
            each variable's state of largest marginal (the lowest of those within 1e-3).
        branch_and_bound: Search on, best bound first, on the most fractional variable; `proved` when no open node can
            be better by more than 1e-9 (relative).
        max_nodes: At most this many relaxations per model in the search.
    """
    if rounding not in ("best", "argmax"):
        raise ValueError(f"Expected the rounding best or argmax (got {rounding!r})")
    if iterations < 1 or max_nodes < 1:
        raise ValueError(f"Expected at least one iteration and one node (got {iterations} and {max_nodes})")
    if not tolerance > 0:
        raise ValueError(f"Expected a positive tolerance (got {tolerance})")
    begin = time.monotonic()
    deadline = begin + (float("inf") if time_limit is None else time_limit)
    # float32 knows marginals to about 1e-6, enough for a gap of 1e-5
    dtype = torch.float32 if tolerance >= 1e-5 else torch.float64
    if batch.unary.shape[2] < 2:  # all code below may speak of states 0 and 1
        batch = replace(batch, unary=torch.nn.functional.pad(batch.unary, (0, 1), value=-torch.inf))
    layout = build_layout(batch)
    limits = Limits(iterations, tolerance, deadline)
    parts: list[Answer] = []
    size = _chunk(batch, layout)
    for start in range(0, max(1, len(batch)), size):
        chunk = batch.select(slice(start, start + size))
        if time.monotonic() >= deadline:
            parts.append(_unsolved(chunk))
            continue
        if branch_and_bound:
            parts.append(search(chunk, layout, dtype, limits, max_nodes, begin, progress))
            continue
        exact = build_numbers(chunk, layout)
        found = relax(layout, exact, dtype, limits, tell=_teller(layout, chunk, begin, progress))
        parts.append(_answer(chunk, layout, found, exact.scale, rounding, limits))
        if progress is not None and len(batch) > 1:
            note = f"{min(start + size, len(batch))} of {len(batch)} models"
            progress(Progress("ad3", time.monotonic() - begin, -torch.inf, torch.inf, note))
    return _join(parts)


def _answer(chunk: ModelBatch, layout: Layout, found: Relaxed, scale: Tensor, rounding: str, limits: Limits) -> Answer:
    assignment = rows_to_states(layout, found.x if rounding == "best" else found.last)
    bound = torch.minimum(found.bound * scale, factor_maxima(chunk))
    score = chunk.score(assignment)
    met = (score >= bound - _PROOF * bound.abs().clamp(min=1.0)) & (score > -torch.inf)
    return Answer.of(
        assignment,
        bound=bound,
        proved=met | ((bound == -torch.inf) & (score == -torch.inf)),
        converged=found.converged,
        iterations=found.iterations,
        timed_out=~found.converged & (found.iterations < limits.iterations),
    )


def _unsolved(chunk: ModelBatch) -> Answer:
    """For models the time limit left no time for: the best states by the unaries, each factor's own maximum."""
    late = torch.ones(len(chunk), dtype=torch.bool, device=chunk.device)
    nodes = {"nodes": torch.zeros(len(chunk), dtype=torch.int64, device=chunk.device)}
    return Answer.of(chunk.unary.argmax(2), bound=factor_maxima(chunk), converged=~late, timed_out=late, info=nodes)


def _teller(
    layout: Layout, chunk: ModelBatch, begin: float, progress: OnProgress | None
) -> Callable[[Relaxed, Tensor], None] | None:
    """News of a single model, at most twice a second."""
    if progress is None or len(chunk) != 1:
        return None
    told = begin

    def tell(found: Relaxed, scale: Tensor) -> None:
        nonlocal told
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            score, bound = (float((v * scale)[0]) for v in (found.score, found.bound))
            note = f"iteration {int(found.iterations[0])}"
            progress(Progress("ad3", told - begin, score, bound, note, rows_to_states(layout, found.x)))

    return tell


def _chunk(batch: ModelBatch, layout: Layout) -> int:
    """How many models to work on at once."""
    rows = layout.num_rows + layout.num_edges + layout.num_cells
    if batch.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(batch.device)
        return max(1, int(_GPU_FRACTION * free) // (8 * _TENSORS * max(1, rows)))
    return max(16, _CPU_CHUNK // max(1, rows))


def _join(parts: list[Answer]) -> Answer:
    if len(parts) == 1:
        return parts[0]
    names = ("bound", "proved", "converged", "iterations", "timed_out")
    known = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    info = {key: torch.cat([part.info[key] for part in parts]) for key in parts[0].info}
    return Answer.of(torch.cat([part.assignment for part in parts]), **known, info=info)
