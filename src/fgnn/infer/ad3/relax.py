"""Iterate until the bound and the relaxation's value meet, model by model, over a shrinking batch."""

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
from fgnn.infer.tolerances import PROOF

_RESIDUAL = 10.0  # marginals must agree to this many tolerances
# Where blocks of iterations are one operation, a look, which is many, comes after a few of them, or a quarter more.
_BLOCKS, _LOOK_AFTER = 4, 0.25


@dataclass(frozen=True, eq=False)
class Limits:
    """When to stop, for all models of a call."""

    iterations: int
    tolerance: float
    deadline: float = float("inf")  # by time.monotonic
    stopped: threading.Event = field(default_factory=threading.Event)  # nobody waits for the answer any more
    cuts: tuple[float, ...] = (0.5,)  # where marginals of binary variables are rounded up, each tried

    @property
    def late(self) -> bool:
        return self.stopped.is_set() or time.monotonic() >= self.deadline


@dataclass(frozen=True, eq=False)
class Warm:
    """Where to go on from: an earlier run of the same, or of a less restricted, model."""

    z: Tensor  # shape: (E, B)
    cells: Tensor  # shape: (cells, B)
    done: int = 0  # iterations so far

    def columns(self, start: int, end: int) -> Warm:
        return Warm(self.z[:, start:end], self.cells[:, start:end], self.done)


@dataclass(eq=False)
class Relaxed:
    """What is known of each model; values are of the scaled models."""

    bound: Tensor  # shape: (B,), float64, the best seen
    score: Tensor  # shape: (B,), float64, of the best feasible rounding, -inf: none
    x: Tensor  # shape: (V, B), int8, that rounding, or the last one
    last: Tensor  # shape: (V, B), int8, the rounding of the last marginals
    p: Tensor  # shape: (V, B), the last marginals
    slack: (
        Tensor  # shape: (V, B), float64, by the last multipliers: how much better state 1 is than state 0 of a binary
    )
    # variable, and how much worse a state of another is than its best
    value: Tensor  # shape: (B,), float64, the dual value of the last multipliers
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    end: Warm


def relax(
    layout: Layout,
    exact: Numbers,
    dtype: torch.dtype,
    limits: Limits,
    *,
    warm: Warm | None = None,
    floor: Tensor | None = None,
    tell: Callable[[Relaxed, Tensor], None] | None = None,
) -> Relaxed:
    """Run every model to its end: converged, proved infeasible or optimal, bounded by ``floor``, or out of time.

    Args:
        exact: The numbers in float64, in which bounds and scores are computed; iterations run in ``dtype``.
        warm: Where to start from.
        floor: (B,), the score a model must be able to exceed to be of interest.
        tell: Called at every look with what is known and the models' scales.
    """
    terms = Terms.of(layout, exact, dtype)
    state = initial_state(layout, terms)
    if warm is not None:
        state.z, state.cells = warm.z.to(dtype).clone(), warm.cells.to(dtype).clone()
    batch, device = terms.unary.shape[1], terms.unary.device
    out = Relaxed(
        bound=torch.full((batch,), torch.inf, dtype=torch.float64, device=device),
        score=torch.full((batch,), -torch.inf, dtype=torch.float64, device=device),
        x=torch.zeros(layout.num_rows, batch, dtype=torch.int8, device=device),
        last=torch.zeros(layout.num_rows, batch, dtype=torch.int8, device=device),
        p=state.p.clone(),
        slack=torch.zeros(layout.num_rows, batch, dtype=torch.float64, device=device),
        value=torch.full((batch,), torch.inf, dtype=torch.float64, device=device),
        converged=torch.zeros(batch, dtype=torch.bool, device=device),
        iterations=torch.zeros(batch, dtype=torch.int64, device=device),
        end=Warm(state.z.clone(), state.cells.clone()),
    )
    least = torch.full((batch,), -torch.inf, dtype=torch.float64, device=device) if floor is None else floor
    here = torch.arange(batch, device=device)  # which models the columns of state are
    bottom = _worst(layout, exact)
    done = 0 if warm is None else warm.done
    average = Average.of(state)
    fused = fused_of(layout, device)
    while len(here):
        left = limits.iterations - done
        steps = min(CHECK, left)
        if fused is not None and fused.worth(len(here)):
            blocks = max(1, min(max(_BLOCKS, int(_LOOK_AFTER * done) // CHECK), left // CHECK))
            fused.advance(terms, state, average, done, steps, blocks)
        else:
            blocks = 1
            advance(layout, terms, state, average, done, steps, blocks)
        done += steps * blocks
        was = out.converged[here]
        ended = _look(layout, exact, state, out, here, limits, least, bottom)
        out.iterations[here] = torch.where(was, out.iterations[here], done)
        last = done >= limits.iterations or limits.late
        if tell is not None:
            tell(out, exact.scale)
        going = torch.nonzero(~ended).squeeze(1)  # the one wait for the device
        if last or len(going) == 0:
            _keep(state, out, here)
            break
        if len(going) <= 0.75 * len(here):
            _keep(state, out, here)
            here, bottom = here[going], bottom[going]
            state, average = state.select(going), average.select(going)
            terms, exact = terms.select(going), exact.select(going)
    return out


def _look(
    layout: Layout,
    exact: Numbers,
    state: State,
    out: Relaxed,
    here: Tensor,
    limits: Limits,
    least: Tensor,
    bottom: Tensor,
) -> Tensor:
    """Bound, round and compare; which columns (B',) need no more iterations."""
    multipliers = (state.z - state.q).double() * RHO
    taus = [t.double() * RHO for t in state.taus[: len(layout.budgets)]]
    value, left = dual_value(layout, exact, multipliers, taus)
    value = torch.where(value < bottom, -torch.inf, value)  # below every feasible score: there is none
    bound = torch.minimum(out.bound[here], value)

    score, x = out.score[here], out.x[:, here]
    rounded = round_rows(layout, state.p)
    for cut in limits.cuts:
        guess = rounded if cut == 0.5 else round_rows(layout, state.p, cut)
        found = score_rows(layout, exact, guess)
        better = found > score
        score = torch.where(better, found, score)
        x = torch.where(better, guess.to(torch.int8), x)
    x = torch.where(score > -torch.inf, x, rounded.to(torch.int8))

    # The relaxation is solved when its value meets the bound, when (p, q) nearly attain the dual's maxima, and when
    # they nearly agree: each alone can hold by chance.
    difference = state.p.index_select(0, layout.edge_row) - state.q
    torn = (multipliers * difference).sum(0)  # what disagreement adds to the relaxation's value
    residual = difference.abs().amax(0) if len(difference) else state.z.new_zeros(len(here))
    for t in layout.tables:
        cells = slice(*t.cells)
        apart = state.s[cells] - state.mu[cells]
        force = (state.cells[cells] - state.mu[cells]) * (cell_weight(t) * RHO)
        torn = torn + (force * apart).double().sum(0)
        residual = torch.maximum(residual, apart.abs().amax(0))
    primal = objective_rows(layout, exact, state.p.double(), state.q.double(), state.s.double())
    allowed = 0.8 * limits.tolerance * bound.abs().clamp(min=0.01)
    met = ((bound - primal).abs() <= allowed) & (value - primal + torn <= allowed)
    met &= residual <= _RESIDUAL * limits.tolerance

    slack = left.clone()
    for k, _, rows in layout.many:
        block = fold(left[slice(*rows)], -1, k)
        slack[slice(*rows)] = (block.amax(1, keepdim=True) - block).flatten(0, 1)
    tight = score >= bound - PROOF * bound.abs().clamp(min=1e-3)
    ended = met | tight | (bound == -torch.inf) | (bound <= least[here])
    out.bound[here], out.score[here], out.value[here] = bound, score, value
    out.x[:, here], out.last[:, here], out.p[:, here] = x, rounded.to(torch.int8), state.p
    out.slack[:, here] = slack
    out.converged[here] |= met | tight | (bound == -torch.inf)
    return ended | out.converged[here]


def _keep(state: State, out: Relaxed, here: Tensor) -> None:
    out.end.z[:, here], out.end.cells[:, here] = state.z, state.cells


def _worst(layout: Layout, numbers: Numbers) -> Tensor:
    """A scaled score (B,) that every feasible assignment reaches: all factors at their worst finite entry."""
    total = numbers.constant.clone()
    free = len(layout.binary)
    total = total + numbers.unary[:free].clamp(max=0.0).sum(0)
    for k, _, rows in layout.many:
        total = total + _least(fold(numbers.unary[slice(*rows)], -1, k)).sum(0)
    for x in numbers.pairs:
        zero = torch.zeros_like(x.alpha)
        total = total + torch.stack([zero, x.alpha, x.beta, x.alpha + x.beta + x.gamma]).amin(0).sum(0)
    for theta in numbers.tables:
        total = total + _least(theta.flatten(1, -2)).sum(0)
    return total - 1e-6 * (1.0 + total.abs())


def _least(values: Tensor) -> Tensor:
    least = values.masked_fill(values == -torch.inf, torch.inf).amin(1)
    return least.masked_fill(least == torch.inf, 0.0)
