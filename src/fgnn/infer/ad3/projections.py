"""The projections of `ad3`: onto pairs, counts, simplices and consistent tables.

The models are the last axis. Thresholds are warm-started: each call takes those of the last one and returns new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import TableLayout, along_axis


def cell_weight(table: TableLayout) -> float:
    """ω, the weight of a cell's constraint relative to an edge's, which many cells share."""
    return float((prod(table.shape) / max(table.shape)) ** 0.5)


@dataclass(frozen=True, eq=False)
class PairTerms:
    """The terms of the closed form for α u + β v + γ P(1,1), divided by ρ. Shapes: (C, B)."""

    first: Tensor  # α + min(γ, 0)
    second: Tensor  # β + γ
    weight: Tensor  # |γ|
    middle: Tensor
    sign: Tensor | None  # of γ; None: never negative

    @classmethod
    def of(cls, alpha: Tensor, beta: Tensor, gamma: Tensor) -> PairTerms:
        sign = torch.where(gamma < 0, -1.0, 1.0).to(gamma.dtype)
        first, weight = alpha + gamma.clamp(max=0.0), gamma.abs()
        middle = (sign * beta - first + weight + (1.0 - sign) / 2) / 2
        return cls(first, beta + gamma, weight, middle, sign if bool((gamma < 0).any()) else None)


def project_pairs(a: Tensor, b: Tensor, pair: PairTerms, u: Tensor, v: Tensor) -> None:
    r"""Into u and v: the marginals that maximise α u + β v + γ P(1,1) - ρ/2 ((u - a)² + (v - b)²).

    For γ >= 0, P(1,1) = min(u, v), and γ is divided between u and v so that they are as close as possible. A negative
    γ is a positive one with v replaced by 1 - v.
    """
    apart = b - a if pair.sign is None else b * pair.sign - a
    share = torch.add(pair.middle, apart, alpha=0.5).clamp_(min=0.0)
    share = torch.minimum(share, pair.weight)
    torch.clamp((a + pair.first).add_(share), 0.0, 1.0, out=u)
    if pair.sign is not None:
        share = share * pair.sign
    torch.clamp((b + pair.second).sub_(share), 0.0, 1.0, out=v)


def project_counts(a: Tensor, low: Tensor, high: Tensor, tau: Tensor, out: Tensor) -> Tensor:
    """Into ``out`` (C, n, B): the nearest point of {0 <= q <= 1, low <= Σ q <= high} to a; returns the threshold.

    That point is clip(a - τ), with τ > 0 if the sum would exceed high and τ < 0 if it would fall below low: the root of
    a decreasing, piecewise linear function. Two Newton steps from the last τ come close, and closer with every call. A
    step is at most 1, the range of a coordinate, so as not to jump over many equal coordinates at once. If the second
    step goes back beyond the start of the first, Newton would cycle, and the midpoint is taken.
    """
    start = first = tau
    flag = torch.empty_like(a)
    for step in range(2):
        x = a - tau
        inside = x.clamp(0.0, 1.0)
        total = inside.sum(1, keepdim=True)
        slope = torch.eq(inside, x, out=flag).sum(1, keepdim=True).clamp_(min=1.0)
        goal = (tau + (total - high) / slope).clamp_(min=0.0) + (tau + (total - low) / slope).clamp_(max=0.0)
        tau = tau + (goal - tau).clamp_(-1.0, 1.0)
        first = tau if step == 0 else first
    back = ((first - start) * (tau - first) < 0) & ((tau - first).abs() >= (first - start).abs())
    tau = torch.where(back, (start + first) / 2, tau)
    torch.clamp(a - tau, 0.0, 1.0, out=out)
    return tau


def project_simplex(v: Tensor, tau: Tensor, steps: int = 4) -> tuple[Tensor, Tensor]:
    """The nearest point to v (C, k, B) on the simplex over axis 1, and its threshold; -inf entries become 0.

    Newton's method on the convex Σ max(v - τ, 0) = 1, from the last τ; the result is normalised.
    """
    lowest = v.amax(1, keepdim=True) - 1.0
    tau = torch.minimum(torch.maximum(tau, lowest), lowest + (1.0 - 1.0 / v.shape[1]))  # the root is in between
    for _ in range(steps):
        x = v - tau
        count = (x > 0).to(v.dtype).sum(1, keepdim=True)
        excess = x.clamp_(min=0.0).sum(1, keepdim=True) - 1.0
        tau = torch.maximum(tau + excess / count.clamp(min=1.0), lowest)
    x = (v - tau).clamp_(min=0.0)
    return x / x.sum(1, keepdim=True).clamp(min=1e-12), tau


def project_consistent(table: TableLayout, cells: Tensor, edges: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    r"""The nearest (μ, q) to (cells, edges) such that q_a are the marginals of μ, with weight ω for the cells.

    The marginal sums over two axes are orthogonal once their means agree, as they do here, so each axis corrects the
    cells by its own error, :math:`c_a = (z_a - M_a z) / (\omega + K / k_a)`. A binary axis has one edge, the marginal
    of state 1, which counts half as much.
    """
    size, weight = prod(table.shape), cell_weight(table)
    axes = range(1, len(table.shape) + 1)
    sums = [cells.sum([x for x in axes if x != a + 1]) for a in range(len(table.shape))]  # shape: (C, k, B) each
    missing = 1.0 - sums[0].sum(1)  # shape: (C, B), rounding errors, which would accumulate
    mu = cells + (missing / size).reshape(len(missing), *([1] * len(table.shape)), -1)
    marginals = []
    for a, (k, edge) in enumerate(zip(table.shape, edges, strict=True)):
        marginal = sums[a] + (missing / k)[:, None]
        if k == 2:
            error = (edge[:, 0] - marginal[:, 1]) / (2 * weight + size / 2)  # shape: (C, B)
            marginals.append((marginal[:, 1] + error * (size / 2))[:, None])
            change = torch.stack([-error, error], 1)
        else:
            change = edge - marginal
            change = (change - change.mean(1, keepdim=True)) / (weight + size / k)
            marginals.append(marginal + change * (size / k))
        mu = mu + along_axis(change, table, a)
    return mu, marginals
