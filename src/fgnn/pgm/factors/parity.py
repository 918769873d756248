"""Parity: whether the number of ones is even or odd, as in the checks of a linear code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fgnn.pgm.factors.automaton import AutomatonKind, Steps
from fgnn.pgm.factors.counter import Counter
from fgnn.pgm.factors.kind import Array, Shape


@dataclass(frozen=True)
class Parity(AutomatonKind):
    r"""0 if :math:`\sum_i x_i \equiv \text{value} \pmod 2`, else -inf, over binary variables.

    With :math:`\lambda_i = \nu_i(0) - \nu_i(1)`, the others of a variable are even rather than odd by

    .. math::
        L_i = \prod_{j \ne i} \operatorname{sign} \lambda_j \cdot \min_{j \ne i} |\lambda_j| \text{ (max)}, \qquad
        \tanh \tfrac{L_i}{2} = \prod_{j \ne i} \tanh \tfrac{\lambda_j}{2} \text{ (sum)}

    so all messages take O(n).
    """

    name: ClassVar[str] = "parity"
    numbers: ClassVar[Mapping[str, type]] = {"value": int}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        if set(shape) - {2}:
            raise ValueError(f"Expected binary variables in a parity factor (got cardinalities {shape})")
        if numbers["value"].ndim != 1:
            raise ValueError(f"Expected one value per parity factor (got shape {numbers['value'].shape})")
        wrong = numbers["value"][(numbers["value"] != 0) & (numbers["value"] != 1)]
        if wrong.size:
            raise ValueError(f"Expected a parity of 0 (even) or 1 (odd) (got {wrong[0]})")

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        value = numbers["value"][..., None]  # shape: (B, C, 1)
        other = torch.arange(2, device=value.device) != value
        return torch.zeros(other.shape, dtype=torch.float64, device=value.device).masked_fill(other, -torch.inf)

    def counter(self, shape: Shape) -> Counter:
        return Counter(((0, 1),) * len(shape), np.arange(2), modulus=2)

    def steps(self, shape: Shape) -> Steps:
        swap = np.array([[0, 1], [1, 0]])
        return (swap[:1], *(swap for _ in shape[1:]))

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        odd = (x.sum(-1) % 2)[..., None]
        return theta.expand(*odd.shape[:-1], 2).gather(-1, odd).squeeze(-1).double()

    def messages(self, theta: Tensor, nu: Sequence[Tensor], *, total: bool) -> list[Tensor]:
        both = torch.stack(list(nu))  # shape: (n, 2, C, B)
        dead = (both == -torch.inf).all(1)
        log_ratio = (both[:, 0] - both[:, 1]).masked_fill(dead, 0.0)
        even = _others_even(log_ratio, total) * self._sign(theta)  # of "the others fit state 0"
        best = both.logsumexp(1) if total else both.amax(1)
        rest = _sum_of_others(best)  # shape: (n, C, B)
        lost = [torch.logaddexp(torch.zeros_like(r), r) if total else r.relu() for r in (-even, even)]
        return list(torch.stack([rest - lost[0], rest - lost[1]], 1).unbind(0))

    def ratios(self, theta: Tensor, nu: Tensor, *, total: bool) -> Tensor:
        return _others_even(-nu, total).mul_(-self._sign(theta))

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        """Every variable at its best, and the one that loses least changed if the parity is wrong."""
        value, x = nu.max(2)
        loss = torch.where(value > -torch.inf, value - nu.amin(2), torch.inf)
        least, place = loss.min(1)
        wrong = (x.sum(1) % 2 == 1) != (theta[:, 1] > theta[:, 0])
        flipped = x.scatter(1, place[:, None], 1 - x.gather(1, place[:, None]))
        total = value.sum(1) + theta.amax(1)
        return torch.where(wrong, total - least, total), torch.where(wrong[:, None], flipped, x)

    def project(self, theta: Tensor, z: Tensor) -> Tensor:
        r"""Onto the parity polytope, in O(n log n) (Zhang and Siegel, 2013).

        Of the inequalities :math:`\sum_{i \in V} (1 - q_i) + \sum_{i \notin V} q_i \ge 1`, one for each set V of the
        wrong parity, z violates at most one. With :math:`1 - z_i` in place of :math:`z_i` for i in V, the nearest point
        of its facet is on the simplex.
        """
        inside = z.clamp(0.0, 1.0)
        ones = inside > 0.5
        place = (inside - 0.5).abs().argmin(0, keepdim=True)
        right = (ones.sum(0, keepdim=True) % 2 == 1) == (theta[1] > theta[0])  # shape: (1, C, B)
        ones.scatter_(0, place, ones.gather(0, place) ^ right)
        violated = torch.where(ones, 1.0 - inside, inside).sum(0) < 1.0
        flipped = torch.where(ones, 1.0 - z, z)
        nearest = _nearest_in_simplex(flipped)
        return torch.where(violated, torch.where(ones, 1.0 - nearest, nearest), inside)

    def _sign(self, theta: Tensor) -> Tensor:
        """1 for even factors, -1 for odd ones.  # shape: (C, B)"""
        return 1 - 2 * (theta[1] > theta[0]).to(theta.dtype)


def _others_even(log_ratio: Tensor, total: bool) -> Tensor:
    """L_i from the log-ratios of even to odd, (n, C, B) to (n, C, B)."""
    if len(log_ratio) == 1:
        return torch.full_like(log_ratio, torch.inf)
    if total:
        return _exclusive_box_sums(log_ratio)
    size = log_ratio.abs()
    least, place = size.min(0, keepdim=True)
    second = size.scatter(0, place, torch.inf).amin(0)
    smallest = torch.where(size == least, second, least)  # on ties the second is equal
    negative = log_ratio < 0
    odd = negative ^ (negative.sum(0) % 2).bool()
    return torch.where(odd, -smallest, smallest)


def _exclusive_box_sums(log_ratio: Tensor) -> Tensor:
    """Box-plus over the other variables, by a pass in each direction."""
    rows = log_ratio.unbind(0)
    after = [torch.full_like(rows[0], torch.inf)]  # the neutral element
    for row in reversed(rows[1:]):
        after.append(_box_plus(after[-1], row))
    before, out = torch.full_like(rows[0], torch.inf), []
    for row in rows:
        out.append(_box_plus(before, after.pop()))
        before = _box_plus(before, row)
    return torch.stack(out)


def _box_plus(a: Tensor, b: Tensor) -> Tensor:
    """2 artanh(tanh(a/2) tanh(b/2)), without cancellation."""
    least = torch.minimum(a.abs(), b.abs()).copysign(a.sign() * b.sign())
    difference = (a - b).abs().nan_to_num(nan=0.0, posinf=torch.inf)
    total = (a + b).abs().nan_to_num(nan=0.0, posinf=torch.inf)
    return least + torch.log1p(torch.exp(-total)) - torch.log1p(torch.exp(-difference))


def _nearest_in_simplex(y: Tensor) -> Tensor:
    """The nearest point to y (n, ...) that is nowhere negative and has the sum 1."""
    ordered = y.sort(0, descending=True).values
    excess = ordered.cumsum(0) - 1.0
    count = torch.arange(1, len(y) + 1, device=y.device, dtype=y.dtype).view(-1, *(1 for _ in y.shape[1:]))
    kept = (ordered * count > excess).sum(0, keepdim=True).clamp(min=1)
    return (y - excess.gather(0, kept - 1) / kept).clamp(min=0.0)


def _sum_of_others(values: Tensor) -> Tensor:
    """Sums over all rows but one, (n, C, B) to (n, C, B); ``-inf`` is added, never subtracted."""
    zero = torch.zeros_like(values[:1])
    before = torch.cat([zero, values[:-1].cumsum(0)])
    after = torch.cat([values[1:].flip(0).cumsum(0).flip(0), zero])
    return before + after
