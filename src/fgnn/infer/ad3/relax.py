"""Iterate `ad3` until bound and relaxation meet. Models that have ended are removed from the batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fgnn.infer.ad3.average import CHECK, Average, advance
from fgnn.infer.ad3.dual import dual_value
from fgnn.infer.ad3.fused import fused_of
from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import Numbers
from fgnn.infer.ad3.projections import cell_weight
from fgnn.infer.ad3.rounding import objective_rows, round_rows, score_rows
from fgnn.infer.ad3.steps import RHO, State, Terms, initial_state
from fgnn.infer.map_tensors import take_models

# The gap of a solved relaxation, in tolerances and relative to the sum of all ranges: an optimum is about half of that.
_SHARE = 0.5
_RESIDUAL = 10.0  # marginals must agree to this many tolerances
# With the fused kernel an evaluation costs many times a block of iterations: it comes after a few blocks, or after a
# quarter more iterations.
_BLOCKS, _EVALUATE_AFTER = 4, 0.25


@dataclass(frozen=True, eq=False)
class Limits:
    """When to stop, for all models of a call."""

    iterations: int
    tolerance: float
    proof: float  # a gap this large, relative to the score, is a proof
    deadline: float = float("inf")  # by time.monotonic
    stopped: threading.Event = field(default_factory=threading.Event)  # the answer is no longer needed
    cuts: tuple[float, ...] = (0.5,)  # marginals of binary variables above a cut round to 1; all cuts are tried

    def late(self, seconds: float = 0.0) -> bool:
        """Whether to stop now, or within this many seconds."""
        return self.stopped.is_set() or time.monotonic() + seconds >= self.deadline


@dataclass(frozen=True, eq=False)
class Warm:
    """A warm start: the end of an earlier run of the same model, or of a less restricted one."""

    z: Tensor  # shape: (E, B)
    cells: Tensor  # shape: (cells, B)
    done: int = 0  # iterations so far

    def columns(self, which: slice | Tensor) -> Warm:
        return Warm(self.z[:, which], self.cells[:, which], self.done)


@dataclass(eq=False)
class Relaxed:
    """The result for each model; values are those of the scaled models."""

    bound: Tensor  # shape: (B,), float64, the lowest so far
    score: Tensor  # shape: (B,), float64, of the best feasible rounding; -inf: none
    x: Tensor  # shape: (V, B), int8, that rounding, or the last one
    last: Tensor  # shape: (V, B), int8, the rounding of the last marginals
    p: Tensor  # shape: (V, B), the last marginals
    # shape: (V, B), float64, by the last multipliers: how much better state 1 of a binary variable is than state 0, and
    # how much worse a state of another variable is than its best
    slack: Tensor
    value: Tensor  # shape: (B,), float64, the dual value of the last multipliers
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    end: Warm
    multipliers: Tensor  # shape: (E, B), float64, the last: any other dual ascent may go on from them

    @classmethod
    def of(cls, state: State) -> Relaxed:
        """The result before the first iteration; no standard score is above 0."""
        infinity = torch.full(state.p.shape[1:], torch.inf, dtype=torch.float64, device=state.p.device)
        return cls(
            bound=torch.zeros_like(infinity),
            score=-infinity,
            x=torch.zeros_like(state.p, dtype=torch.int8),
            last=torch.zeros_like(state.p, dtype=torch.int8),
            p=state.p.clone(),
            slack=torch.zeros_like(state.p, dtype=torch.float64),
            value=infinity.clone(),
            converged=torch.zeros_like(infinity, dtype=torch.bool),
            iterations=torch.zeros_like(infinity, dtype=torch.int64),
            end=Warm(state.z.clone(), state.cells.clone()),
            multipliers=torch.zeros_like(state.z, dtype=torch.float64),
        )

    def keep_end(self, state: State, here: Tensor) -> None:
        """Store the state of the models ``here`` for a warm start."""
        self.end.z[:, here], self.end.cells[:, here] = state.z, state.cells


def relax(
    layout: Layout,
    exact: Numbers,
    dtype: torch.dtype,
    limits: Limits,
    *,
    warm: Warm | None = None,
    floor: Tensor | None = None,
    report: Callable[[Relaxed, Tensor], None] | None = None,
) -> Relaxed:
    """Iterate until every model has converged, is proved infeasible or optimal, or cannot exceed ``floor``.

    Args:
        layout: The structure.
        exact: The numbers in float64, for bounds and scores.
        dtype: Of the iterations.
        limits: When to stop.
        warm: Where to start from.
        floor: (B,), the score a model must be able to exceed to be of interest.
        report: Called at every evaluation with the results and the scales of the models.
    """
    terms = Terms.of(layout, exact, dtype)
    state = initial_state(layout, terms)
    if warm is not None:
        state.z, state.cells = warm.z.to(dtype).clone(), warm.cells.to(dtype).clone()
    out = Relaxed.of(state)
    here = torch.arange(len(out.bound), device=out.bound.device)  # the models of the columns of state
    floor = torch.full_like(out.bound, -torch.inf) if floor is None else floor
    lowest = _lowest_score(layout, exact)
    done = 0 if warm is None else warm.done
    average = Average.of(state)
    fused = fused_of(layout, out.bound.device)
    while len(here):
        left = limits.iterations - done
        steps = min(CHECK, left)
        if fused is not None and fused.worth(len(here)):
            blocks = max(1, min(max(_BLOCKS, int(_EVALUATE_AFTER * done) // CHECK), left // CHECK))
            fused.advance(terms, state, average, done, steps, blocks)
            done += steps * blocks
        else:
            done += advance(layout, terms, state, average, done, steps, limits.late)
        was_converged = out.converged[here]
        ended = _evaluate(layout, exact, state, out, here, limits, lowest) | (out.bound[here] <= floor[here])
        out.iterations[here] = torch.where(was_converged, out.iterations[here], done)
        last = done >= limits.iterations or limits.late()
        if report is not None:
            report(out, exact.scale)
        going = torch.nonzero(~ended).squeeze(1)  # the only host synchronisation
        if last or len(going) == 0:
            out.keep_end(state, here)
            break
        if len(going) <= 0.75 * len(here):
            out.keep_end(state, here)
            here, lowest = here[going], lowest[going]
            state, average, terms, exact = take_models((state, average, terms, exact), going)
    return out


def _evaluate(
    layout: Layout, exact: Numbers, state: State, out: Relaxed, here: Tensor, limits: Limits, lowest: Tensor
) -> Tensor:
    """Update bounds, roundings and convergence of the models ``here``; returns which have converged (B',)."""
    multipliers = (state.z - state.q).double() * RHO
    taus = [t.double() * RHO for t in state.taus[: len(layout.counts)]]
    value, reduced = dual_value(layout, exact, multipliers, taus)
    value = torch.where(value < lowest, -torch.inf, value)  # below every feasible score: infeasible
    bound = torch.minimum(out.bound[here], value)

    score, x = out.score[here], out.x[:, here]
    rounded = round_rows(layout, state.p)
    for cut in limits.cuts:
        candidate = rounded if cut == 0.5 else round_rows(layout, state.p, cut)
        candidate_score = score_rows(layout, exact, candidate)
        better = candidate_score > score
        score = torch.where(better, candidate_score, score)
        x = torch.where(better, candidate.to(torch.int8), x)
    x = torch.where(score > -torch.inf, x, rounded.to(torch.int8))

    slack = reduced.clone()
    for k, _, rows in layout.many:
        block = fold(reduced[rows], -1, k)
        slack[rows] = (block.amax(1, keepdim=True) - block).flatten(0, 1)
    solved = _is_solved(layout, exact, state, multipliers, bound, value, limits.tolerance)
    tight = (bound - score <= -limits.proof * score) & (score > -torch.inf)
    out.bound[here], out.score[here], out.value[here] = bound, score, value
    out.x[:, here], out.last[:, here], out.p[:, here] = x, rounded.to(torch.int8), state.p
    out.slack[:, here], out.multipliers[:, here] = slack, multipliers
    out.converged[here] |= solved | tight | (bound == -torch.inf)
    return out.converged[here]


def _is_solved(
    layout: Layout,
    exact: Numbers,
    state: State,
    multipliers: Tensor,
    bound: Tensor,
    value: Tensor,
    tolerance: float,
) -> Tensor:
    """Whether the relaxation is solved (B',): its value meets the bound, (p, q) nearly attain the maxima of the dual,
    and they nearly agree. Each alone can hold by chance."""
    difference = state.p.index_select(0, layout.edge_row) - state.q
    torn = (multipliers * difference).sum(0)  # what disagreement adds to the value of the relaxation
    residual = difference.abs().amax(0) if len(difference) else state.z.new_zeros(len(bound))
    for t in layout.tables:
        apart = state.s[t.cells] - state.mu[t.cells]
        force = (state.cells[t.cells] - state.mu[t.cells]) * (cell_weight(t) * RHO)
        torn = torn + (force * apart).double().sum(0)
        residual = torch.maximum(residual, apart.abs().amax(0))
    primal = objective_rows(layout, exact, state.p.double(), state.q.double(), state.s.double())
    for sets in state.sets:
        primal = primal + sets.value.sum(0) * RHO
    factors = [x.tables for x in layout.pairs] + [x.tables for x in layout.tables]
    factors += [f.scopes for f in layout.kinds if f.soft]
    ranges = layout.num_rows + sum(map(len, factors))  # on average, each is 1
    allowed = _SHARE * tolerance * ranges
    met = ((bound - primal).abs() <= allowed) & (value - primal + torn <= allowed)
    return met & (residual <= _RESIDUAL * tolerance)


def _lowest_score(layout: Layout, numbers: Numbers) -> Tensor:
    """A lower bound (B,) on the scaled score of feasible assignments: all factors at their lowest finite entry."""
    total = numbers.constant.clone()
    total = total + numbers.unary[: len(layout.binary)].clamp(max=0.0).sum(0)
    for k, _, rows in layout.many:
        total = total + _lowest_finite(fold(numbers.unary[rows], -1, k)).sum(0)
    for x in numbers.pairs:
        zero = torch.zeros_like(x.alpha)
        total = total + torch.stack([zero, x.alpha, x.beta, x.alpha + x.beta + x.gamma]).amin(0).sum(0)
    for theta in [*numbers.tables, *(w.theta for w in numbers.kinds)]:
        total = total + _lowest_finite(theta.flatten(1, -2)).sum(0)
    return total - 1e-6 * (1.0 + total.abs())


def _lowest_finite(values: Tensor) -> Tensor:
    """The lowest finite entry along axis 1, 0 if there is none."""
    lowest = values.masked_fill(values == -torch.inf, torch.inf).amin(1)
    return lowest.masked_fill(lowest == torch.inf, 0.0)
