"""`ad3`: the linear relaxation by alternating directions, batched over models."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fgnn.infer.ad3.kinds import asked
from fgnn.infer.ad3.layout import Layout, build_layout
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, Relaxed, Warm, relax
from fgnn.infer.ad3.rounding import rows_to_states
from fgnn.infer.ad3.search import search, unsolved
from fgnn.infer.certificate import certified, proof_tolerance
from fgnn.infer.lowered import lowers_except
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer, OnProgress
from fgnn.infer.threads import shares, side_by_side, worth_threads
from fgnn.pgm import ModelBatch

_TENSORS = 24  # numbers held per model and row, roughly
_CPU_CHUNK = 1 << 18  # rows x models of a chunk: tensors of that many floats stay in the cache
_GPU_FRACTION = 0.4  # of the free memory, for a chunk
_NUMBER_SECONDS = 1e-6  # to set up and to evaluate a number of a model
_FIRST_WAVE = 400  # iterations after which the remaining models of all chunks are gathered


@lowers_except(asked)
@certified
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

    The relaxation of `lp` is decomposed into its factors, which agree on the marginals of the variables through
    multipliers λ; alternating directions update both (`steps` has the equations). ``bound`` is the lowest dual value,
    :math:`\min_k D(\lambda_k)`, computed in float64 and raised by a bound on the rounding errors: an upper bound on the
    optimum, converged or not.

    A model has converged if bound and relaxation differ by at most ``tolerance``, relative to the ranges of its
    factors, if its rounding is proved optimal, or if it is proved infeasible: its bound is below the score of any
    feasible assignment. Converged models are removed from the batch.

    Args:
        batch: The models.
        time_limit: Seconds after which the best answer so far is returned.
        seed: Unused: the method is deterministic.
        progress: Called about twice a second.
        iterations: Upper limit on the iterations.
        tolerance: Gap between the bound and the value of the relaxation, relative to half the sum of factor ranges.
        rounding: ``argmax`` takes each variable's state of largest marginal (the lowest of those within 1e-3);
            ``best`` the best feasible rounding of all iterations, or ``argmax`` if there is none.
        branch_and_bound: Search for the optimum, branching on the most fractional variable, until no open node can be
            better by more than the tolerance of a proof.
        max_nodes: Upper limit on the relaxations per model in the search.
    """
    if rounding not in ("best", "argmax"):
        raise ValueError(f"Expected the rounding best or argmax (got {rounding!r})")
    if iterations < 1 or max_nodes < 1:
        raise ValueError(f"Expected at least one iteration and one node (got {iterations} and {max_nodes})")
    if not tolerance > 0:
        raise ValueError(f"Expected a positive tolerance (got {tolerance})")
    deadline = time.monotonic() + (float("inf") if time_limit is None else time_limit)
    reporter = Reporter("ad3", progress)
    # float32 resolves marginals to about 1e-6, enough for a gap of 1e-5
    dtype = torch.float32 if tolerance >= 1e-5 else torch.float64
    # Setting up and evaluating a model once cannot be interrupted.
    numbers = batch.state_mask.sum().item() + sum(t.values[:1].numel() for t in batch.tables)
    if time_limit is not None and numbers * _NUMBER_SECONDS > time_limit:
        return unsolved(batch)
    if batch.unary.shape[2] < 2:  # the code below refers to states 0 and 1
        batch = replace(batch, unary=torch.nn.functional.pad(batch.unary, (0, 1), value=-torch.inf))
    layout = build_layout(batch)
    limits = Limits(iterations, tolerance, proof_tolerance(batch) / 2, deadline)  # half, for the rounding of scores
    size = _chunk(batch, layout)
    if branch_and_bound:
        answers = []
        for start in range(0, max(1, len(batch)), size):
            chunk = batch.select(slice(start, start + size))
            late = time.monotonic() >= deadline
            answers.append(unsolved(chunk) if late else search(chunk, layout, dtype, limits, max_nodes, reporter))
        return Answer.join(answers)
    rows = layout.num_edges + layout.num_cells
    parts: list[_Part] = []
    for share in shares(len(batch), rows, batch.device):
        silent = Reporter("ad3", None)
        parts.append(_Part(batch.select(share), layout, rounding, silent if parts else reporter, parts))
    if worth_threads(len(batch), rows, batch.device):
        side_by_side([partial(part.relax_all, dtype, limits, size) for part in parts], limits.stopped.set)
    else:
        parts[0].relax_all(dtype, limits, size)
    return _answer(parts, iterations)


class _Part:
    """A part of the batch, and the best results so far for each of its models.

    Args:
        batch: The models.
        layout: Their structure.
        rounding: See `solve_ad3`.
        reporter: Receives the progress.
        parts: All parts of the call, for reports on all models.
    """

    def __init__(
        self, batch: ModelBatch, layout: Layout, rounding: str, reporter: Reporter, parts: list[_Part]
    ) -> None:
        self.batch, self.layout, self.rounding, self.reporter, self.parts = batch, layout, rounding, reporter, parts
        self.states = batch.unary.argmax(2)  # shape: (B, N)
        self.bound = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)  # no standard score is above 0
        self.score = torch.full_like(self.bound, -torch.inf)  # shape: (B,), of the best feasible rounding
        self.iterations = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
        self.converged = self.iterations.bool()

    def relax_all(self, dtype: torch.dtype, limits: Limits, size: int) -> None:
        """Relax chunk by chunk; the few models of each that take long continue together."""
        todo = torch.arange(len(self.batch), device=self.batch.device)
        warm: Warm | None = None
        cap = limits.iterations if len(self.batch) <= size else min(limits.iterations, _FIRST_WAVE)
        while len(todo):
            left, ends = [], []
            for start in range(0, len(todo), size):
                if limits.late():
                    return
                which = todo[start : start + size]
                chunk = self.batch.select(slice(start, start + size) if warm is None else which)
                exact = build_numbers(chunk, self.layout)
                warm_chunk = None if warm is None else warm.columns(slice(start, start + size))
                report = self._report_one if len(self.batch) == 1 else None
                chunk_limits = replace(limits, iterations=cap)
                relaxed = relax(self.layout, exact, dtype, chunk_limits, warm=warm_chunk, report=report)
                self._store(which, relaxed, exact.scale)
                slow = torch.nonzero(~relaxed.converged).squeeze(1)
                left.append(which[slow])
                ends.append(relaxed.end.columns(slow))
                if len(self.batch) > 1 and self.reporter.due():
                    self._report_all()
            if cap >= limits.iterations:
                return
            todo = torch.cat(left)
            warm = Warm(torch.cat([e.z for e in ends], 1), torch.cat([e.cells for e in ends], 1), cap)
            cap = min(limits.iterations, 4 * cap)

    def _store(self, which: Tensor, relaxed: Relaxed, scale: Tensor) -> None:
        states = rows_to_states(self.layout, relaxed.x if self.rounding == "best" else relaxed.last)
        score = relaxed.score * scale
        if self.rounding == "best":
            keep = (score <= self.score[which]) & (self.score[which] > -torch.inf)
            states = torch.where(keep[:, None], self.states[which], states)
        self.states[which] = states
        self.score[which] = torch.maximum(self.score[which], score)
        self.bound[which] = torch.minimum(self.bound[which], relaxed.bound * scale)
        self.converged[which], self.iterations[which] = relaxed.converged, relaxed.iterations

    def _report_one(self, relaxed: Relaxed, scale: Tensor) -> None:
        """Report on a single model."""
        if self.reporter.due():
            score, bound = (float((v * scale)[0]) for v in (relaxed.score, relaxed.bound))
            note = f"iteration {int(relaxed.iterations[0])}"
            self.reporter.send(note, score, bound, rows_to_states(self.layout, relaxed.x))

    def _report_all(self) -> None:
        """Report on all models of the call."""
        converged = sum(int(part.converged.sum()) for part in self.parts)
        states = torch.cat([part.states for part in self.parts])
        self.reporter.send(f"{converged} of {len(states)} models", assignment=states)


def _answer(parts: list[_Part], iterations: int) -> Answer:
    names = ("states", "bound", "converged", "iterations")
    states, bound, converged, done = (torch.cat([getattr(part, name) for part in parts]) for name in names)
    return Answer.of(
        states,
        bound=bound,
        converged=converged,
        iterations=done,
        timed_out=~converged & (done < iterations),
    )


def _chunk(batch: ModelBatch, layout: Layout) -> int:
    """How many models to process at once."""
    rows = layout.num_rows + layout.num_edges + layout.num_cells
    if batch.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(batch.device)
        return max(1, int(_GPU_FRACTION * free) // (8 * _TENSORS * max(1, rows)))
    return max(16, _CPU_CHUNK // max(1, rows))
