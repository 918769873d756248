r"""Proofs of optimality that hold in the models' own numbers.

Methods that prove work on the *standard form* of a model: in float64, with the largest allowed entry of every factor
moved into an offset, and in a unit, a power of two, that keeps the widest factor between 1/2 and 2^100. A standard
score is at most 0; its negative, the *loss*, is what an assignment gives up against every factor at its best,

.. math:: \ell(x) = \sum_c \big( \max_{x'_c} \theta_c(x'_c) - \theta_c(x_c) \big) .

The loss changes with neither a constant nor, up to its unit, with the scale of a model. All its terms have one sign,
so a float64 sum of k of them has a relative error below k · 2^-52, in any order. That makes bounds and gaps rigorous:
an assignment is called optimal if no other can be better by more than 1e-13 of its loss per factor (1e-9 at most).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.solution import Answer, OnProgress, Progress, sum_rounded_up
from fgnn.pgm import ModelBatch

# The gap of an optimal assignment relative to its loss: for each factor, and at most.
_PER_FACTOR, _MOST = 1e-13, 1e-9
_EPSILON = 2.0**-52
_CHUNK = 1 << 18  # numbers examined at a time
# Widest factors that keep their unit: float32 holds sums of such numbers, and float64 their differences.
_LEAST_WIDTH, _MOST_WIDTH = 0.5, 2.0**100


def num_factors(batch: ModelBatch) -> int:
    """The number of terms of a score."""
    return batch.num_variables + sum(f.num_terms for f in batch.factors)


def _potentials(batch: ModelBatch) -> list[Tensor]:
    """All log-potentials, (B or 1, C, ...) each: of variables, then of factors that have any."""
    return [batch.unary, *(f.potentials(batch.dtype) for f in batch.factors if f.num_terms)]


def rounding(batch: ModelBatch, dtype: torch.dtype = torch.float64) -> Tensor:
    """A bound on the relative error of a sum of standard numbers in ``dtype``, one term per factor, in any order.

    It is 0 for models whose numbers are so few bits long, such as small integers, that sums are exact.
    """  # shape: (B,)
    epsilon = torch.finfo(dtype).eps
    grid = 2.0 ** (math.log2(epsilon) // 3)
    short = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    most = grid / epsilon / max(1, num_factors(batch))
    for values in _potentials(batch):
        for part in torch.split(values.flatten(1), max(1, _CHUNK // max(1, len(values))), 1):
            steps = part / grid
            short = short & ((steps == steps.round()) & ((part > -most) | (part == -torch.inf))).all(1)
            if not bool(short.any()):
                break
    return torch.zeros_like(short, dtype=torch.float64).masked_fill(~short, (num_factors(batch) + 4) * epsilon)


def meets(batch: ModelBatch, score: Tensor, bound: Tensor) -> Tensor:
    """Whether standard scores reach their upper bounds, up to the tolerance of `optimal`.  # shape: (B,), bool"""
    return (score > -torch.inf) & (bound - score <= proof_tolerance(batch) * -score)


def proof_tolerance(batch: ModelBatch) -> float:
    """The largest gap of an optimal assignment, relative to its loss."""
    return min(_MOST, _PER_FACTOR * num_factors(batch))


@dataclass(frozen=True, eq=False)
class StandardForm:
    """Models in standard form, and the way back: score = offset + unit · standard score."""

    batch: ModelBatch  # float64
    offset: Tensor  # shape: (B,)
    unit: Tensor  # shape: (B,), powers of two
    size: Tensor  # shape: (B,), of the numbers that were added to the offset
    lost: Tensor  # shape: (B,), at most this much of a standard score has underflowed; nearly always 0

    @classmethod
    def of(cls, batch: ModelBatch) -> StandardForm:
        """Bring a batch into standard form. What models share stays shared, unless their units differ."""
        batch = batch.to(dtype=torch.float64)
        live = batch.unary > -torch.inf
        some_forbidden = bool((~live & batch.state_mask).any())
        constant = batch.constant.masked_fill(batch.constant == -torch.inf, 0.0)
        offset, size = constant.clone(), constant.abs()
        width = torch.zeros_like(constant)
        centred: list[Tensor] = []
        weighed = [f for f in batch.factors if f.num_terms]
        for g, values in enumerate(_potentials(batch)):
            allowed = values
            if g and some_forbidden and len(values) == len(batch):
                allowed = weighed[g - 1].potentials(batch.dtype, live)
            peak = _finite(allowed.flatten(2).amax(2)) if values.numel() else values.new_zeros(values.shape[:2])
            part = values - peak.view(*peak.shape, *(1 for _ in values.shape[2:]))
            centred.append(part.clamp_(max=0.0) if allowed is not values else part)
            offset, size = offset + peak.sum(1), size + peak.abs().sum(1)
            if part.numel():
                lowest = part.flatten(1).amin(1)
                if bool((lowest == -torch.inf).any()):
                    lowest = _finite(part).flatten(1).amin(1)
                width = torch.maximum(width, -lowest)
        parts = iter(centred[1:])
        factors = [f.with_potentials(next(parts), len(batch)) if f.num_terms else f for f in batch.factors]
        standard = batch.with_factors(factors)
        standard = replace(standard, unary=centred[0], constant=batch.constant - constant)
        form = cls(standard, offset, torch.ones_like(width), size, torch.zeros_like(width))
        extreme = (width > 0) & ((width < _LEAST_WIDTH) | (width > _MOST_WIDTH))
        return form._rescaled(torch.where(extreme, width, 0.75)) if bool(extreme.any()) else form

    def _rescaled(self, width: Tensor) -> StandardForm:
        """The same in units in which ``width`` (B,) is between 1/2 and 1."""
        unit = width / torch.frexp(width).mantissa
        lost = torch.zeros_like(width)

        def scale(values: Tensor) -> Tensor:
            nonlocal lost
            by = unit.view(-1, *(1 for _ in values.shape[1:]))
            scaled = values / by  # exact, unless it underflows
            lost = torch.where((scaled * by != values).flatten(1).any(1), num_factors(self.batch) * 2.0**-1073, lost)
            return scaled

        factors = [f.with_potentials(scale(f.potentials(torch.float64)), len(unit)) for f in self.batch.factors]
        batch = replace(self.batch.with_factors(factors), unary=scale(self.batch.unary))
        return replace(self, batch=batch, unit=unit, lost=lost)

    def scores(self, standard: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Standard scores or bounds of the models ``rows`` in their own numbers."""
        return self.offset[rows] + self.unit[rows] * standard

    def standard_bounds(self, bound: Tensor) -> Tensor:
        """Bounds in the models' own numbers as standard bounds, raised by the rounding errors of both."""
        error = rounding(self.batch) * (self.size + bound.abs())
        raised = (bound - self.offset + error) / self.unit * (1 - 4 * _EPSILON)
        return torch.where(bound.isinf(), bound, raised)

    def certify(self, answer: Answer) -> Answer:
        """Turn standard bounds into gaps and proofs. Assignments are scored here; a solver's scores are not trusted.

        The bound 0 holds for every model. A bound below a score is wrong and is dropped.
        """
        score = self.batch.score(answer.assignment)
        lowest = score * (1 + rounding(self.batch)) - self.lost
        bound = torch.where((bound := answer.bound.double()) >= lowest, bound.clamp(max=0.0), 0.0)  # also if it is NaN
        feasible = score > -torch.inf
        gap = torch.where(feasible, sum_rounded_up(bound, self.lost - lowest), torch.inf)
        impossible = ~feasible & (bound == -torch.inf)
        proved = torch.where(feasible, gap <= proof_tolerance(self.batch) * -score, impossible)
        return replace(
            answer,
            bound=self.scores(bound) + (num_factors(self.batch) + 4) * _EPSILON * self.size,
            gap=torch.where(impossible, 0.0, gap * self.unit),
            proved=proved,
            certified=True,
        )

    def own_progress(self, progress: OnProgress | None) -> OnProgress | None:
        """Progress in a model's own numbers; that of a batch has no numbers."""
        if progress is None or len(self.offset) != 1:
            return progress
        offset, unit = float(self.offset), float(self.unit)

        def report(update: Progress) -> None:
            score, bound = (offset + unit * value for value in (update.score, update.bound))
            progress(replace(update, score=score, bound=bound))

        return report


def certified(solver: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a solver work on the standard form of the models it gets; its ``bound`` becomes a certificate."""

    @wraps(solver)
    def solve(
        batch: ModelBatch, *, time_limit: float | None = None, progress: OnProgress | None = None, **options: Any
    ) -> Answer:
        start = time.perf_counter()
        form = StandardForm.of(batch)
        if time_limit is not None:
            time_limit = max(1e-3, time_limit - (time.perf_counter() - start))
        report = form.own_progress(progress)
        return form.certify(solver(form.batch, time_limit=time_limit, progress=report, **options))

    return solve


def certify(batch: ModelBatch, answer: Answer) -> Answer:
    """Check what an answer claims by bounds in the models' own numbers."""
    if answer.certified:
        return answer
    if not bool(answer.bound.isfinite().any()):
        impossible = (answer.bound == -torch.inf) & (batch.score(answer.assignment) == -torch.inf)
        none = torch.full_like(answer.bound, torch.inf)
        bound, gap = none.masked_fill(impossible, -torch.inf), none.masked_fill(impossible, 0.0)
        return replace(answer, bound=bound, gap=gap, proved=impossible, certified=True)
    form = StandardForm.of(batch)
    return form.certify(replace(answer, bound=form.standard_bounds(answer.bound.double())))


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)
