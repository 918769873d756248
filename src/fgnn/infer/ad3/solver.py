"""`ad3`: the linear relaxation by alternating directions, for many models at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, build_layout
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, Relaxed, Warm, relax
from fgnn.infer.ad3.rounding import rows_to_states
from fgnn.infer.ad3.search import search, unsolved
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.threads import shares, side_by_side, worth_threads
from fgnn.infer.tolerances import is_proved
from fgnn.infer.trivial_bound import factor_maxima
from fgnn.pgm import ModelBatch

# Numbers held per model and row, roughly: what a chunk may take decides how many models it has.
_TENSORS = 24
_CPU_CHUNK = 1 << 18  # rows x models: tensors of that many floats stay in the cache
_GPU_FRACTION = 0.4
_FIRST_WAVE = 400  # iterations after which what is left of the chunks is put together


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
        branch_and_bound: Search on, branching on the most fractional variable; `proved` when no open node can be
            better by more than 1e-9 (relative).
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
    size = _chunk(batch, layout)
    if branch_and_bound:
        parts = []
        for start in range(0, max(1, len(batch)), size):
            chunk = batch.select(slice(start, start + size))
            late = time.monotonic() >= deadline
            parts.append(unsolved(chunk) if late else search(chunk, layout, dtype, limits, max_nodes, begin, progress))
        return Answer.join(parts)
    records: list[_Record] = []
    jobs: list[Callable[[], None]] = []
    rows = layout.num_edges + layout.num_cells
    for share in shares(len(batch), rows, batch.device):
        part = batch.select(share)
        records.append(_Record.of(part, rounding))
        told = None if jobs else progress
        jobs.append(partial(_relax_all, part, layout, dtype, limits, size, records[-1], begin, told, records))
    if worth_threads(len(batch), rows, batch.device):
        side_by_side(jobs, limits.stopped.set)
    else:
        jobs[0]()
    record = _Record.joined(records)
    score = batch.score(record.states)
    return Answer.of(
        record.states,
        bound=record.bound,
        proved=is_proved(score, record.bound),
        converged=record.converged,
        iterations=record.iterations,
        timed_out=~record.converged & (record.iterations < iterations),
    )


@dataclass(eq=False)
class _Record:
    """What is known of every model of the batch, over all its chunks."""

    states: Tensor  # shape: (B, N)
    score: Tensor  # shape: (B,), of a feasible rounding
    bound: Tensor  # shape: (B,)
    converged: Tensor  # shape: (B,)
    iterations: Tensor  # shape: (B,)
    rounding: str

    @classmethod
    def of(cls, batch: ModelBatch, rounding: str) -> _Record:
        """Before anything is done: the best states by the unaries, each factor's own maximum."""
        bound = factor_maxima(batch)
        counts = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
        return cls(
            batch.unary.argmax(2), torch.full_like(bound, -torch.inf), bound, counts.bool(), counts.clone(), rounding
        )

    @classmethod
    def joined(cls, parts: list[_Record]) -> _Record:
        if len(parts) == 1:
            return parts[0]
        names = ("states", "score", "bound", "converged", "iterations")
        known = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return cls(**known, rounding=parts[0].rounding)

    def take(self, layout: Layout, which: Tensor, found: Relaxed, scale: Tensor) -> None:
        states = rows_to_states(layout, found.x if self.rounding == "best" else found.last)
        score = found.score * scale
        if self.rounding == "best":
            keep = (score <= self.score[which]) & (self.score[which] > -torch.inf)
            states = torch.where(keep[:, None], self.states[which], states)
        self.states[which] = states
        self.score[which] = torch.maximum(self.score[which], score)
        self.bound[which] = torch.minimum(self.bound[which], found.bound * scale)
        self.converged[which], self.iterations[which] = found.converged, found.iterations


def _relax_all(
    batch: ModelBatch,
    layout: Layout,
    dtype: torch.dtype,
    limits: Limits,
    size: int,
    record: _Record,
    begin: float,
    progress: OnProgress | None,
    records: list[_Record],
) -> None:
    """Relax chunk by chunk; the few models of each that take long are gathered and go on together.

    ``records`` are those of all shares of the call, for the news.
    """
    todo = torch.arange(len(batch), device=batch.device)
    warm: Warm | None = None
    cap = limits.iterations if len(batch) <= size else min(limits.iterations, _FIRST_WAVE)
    told = begin
    while len(todo):
        left, ends = [], []
        for start in range(0, len(todo), size):
            if limits.late:
                return
            which = todo[start : start + size]
            chunk = batch.select(slice(start, start + size) if warm is None else which)
            exact = build_numbers(chunk, layout)
            part = None if warm is None else warm.columns(start, start + size)
            tell = _teller(layout, len(batch), begin, progress)
            found = relax(layout, exact, dtype, replace(limits, iterations=cap), warm=part, tell=tell)
            record.take(layout, which, found, exact.scale)
            slow = torch.nonzero(~found.converged).squeeze(1)
            left.append(which[slow])
            ends.append(Warm(found.end.z[:, slow], found.end.cells[:, slow], cap))
            if progress is not None and time.monotonic() - told > 0.5 and len(batch) > 1:
                told = time.monotonic()
                known = _Record.joined(records)
                note = f"{int(known.converged.sum())} of {len(known.states)} models"
                progress(Progress("ad3", told - begin, -torch.inf, torch.inf, note, known.states.clone()))
        if cap >= limits.iterations:
            return
        todo = torch.cat(left)
        warm = Warm(torch.cat([e.z for e in ends], 1), torch.cat([e.cells for e in ends], 1), cap)
        cap = min(limits.iterations, 4 * cap)


def _teller(
    layout: Layout, models: int, begin: float, progress: OnProgress | None
) -> Callable[[Relaxed, Tensor], None] | None:
    """News of a single model, at most twice a second."""
    if progress is None or models != 1:
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
