"""The dual of the relaxation that `ad3` solves: an upper bound on the optimum for any multipliers."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.ad3.kinds import kind_maxima
from fgnn.infer.ad3.layout import CountLayout, Layout, PairLayout, TableLayout, along_axis, fold
from fgnn.infer.ad3.numbers import CountNumbers, Numbers, PairNumbers

_EPSILON, _TINY = 2.0**-52, 2.0**-1000  # float64; numbers that may underflow are far below the latter
# Lower and upper bounds of p(1) on every edge, where states of binary variables are forbidden.
_Bounds = tuple[Tensor, Tensor] | None


def dual_value(
    layout: Layout, numbers: Numbers, multipliers: Tensor, thresholds: list[Tensor]
) -> tuple[Tensor, Tensor]:
    r"""The value (B,) of the scaled dual at any multipliers λ (E, B): never below the scaled optimum, even if rounded.

    .. math:: D(\lambda) = \sum_i \max_s \Big(\theta_i(s) - \sum_{c \ni i} \lambda_{ci}(s)\Big)
        + \sum_c \max_{x_c} \Big(\theta_c(x_c) + \sum_{i \in c} \lambda_{ci}(x_i)\Big)

    For a count :math:`\max \lambda \cdot x \le u \tau^+ - \ell \tau^- + \sum_i \max(\lambda_i - \tau, 0)` for every τ,
    with equality at the optimal τ. ``thresholds`` (C, 1, B) are those of the projections; 0 is tried as well. Maxima
    are over allowed states only.

    It also returns the reduced unaries :math:`\theta_i - \sum_c \lambda_{ci}` (V, B): a state whose value is below its
    variable's best by more than the gap is in no better assignment.
    """
    total = torch.zeros_like(numbers.unary).index_add_(0, layout.edge_row, multipliers)
    reduced = numbers.unary - total
    free = len(layout.binary)
    bounds: _Bounds = None
    if numbers.fixed is None:
        value = reduced[:free].clamp(min=0.0).sum(0)
    else:
        lower, upper = numbers.fixed.lower, numbers.fixed.upper
        value = torch.maximum(reduced[:free] * lower, reduced[:free] * upper).sum(0)
        bounds = _on_edges(layout, lower, 0.0), _on_edges(layout, upper, 1.0)
    value = value + numbers.constant
    for k, _, rows in layout.many:
        value = value + fold(reduced[rows], -1, k).amax(1).sum(0)
    for pair, x in zip(layout.pairs, numbers.pairs, strict=True):
        value = value + _pair_maxima(pair, x, multipliers, bounds).sum(0)
    for table, theta in zip(layout.tables, numbers.tables, strict=True):
        value = value + _table_maxima(table, theta, multipliers).sum(0)
    for count, y, tau in zip(layout.counts, numbers.counts, thresholds, strict=True):
        value = value + _count_bounds(count, y, tau, multipliers, bounds).sum((0, 1))
    for f, w in zip(layout.kinds, numbers.kinds, strict=True):
        value = value + kind_maxima(f, w, multipliers[f.edges]).sum(0)
    value = value + _rounding(layout, numbers, multipliers, thresholds)
    value = value.masked_fill(~value.isfinite(), torch.inf)  # multipliers that have overflowed
    return value.masked_fill(numbers.infeasible, -torch.inf), reduced


def _rounding(layout: Layout, numbers: Numbers, multipliers: Tensor, thresholds: list[Tensor]) -> Tensor:
    """A bound (B,) on the rounding errors of `dual_value`, and of differences of its reduced unaries.

    The absolute values of all numbers add up to ``size``.
    """
    size = numbers.size + 2 * multipliers.abs().sum(0)
    for count, tau in zip(layout.counts, thresholds, strict=True):
        size = size + 2 * count.size * tau.abs().sum((0, 1))
    return layout.longest_sum * (_EPSILON * size + _TINY)


def _pair_maxima(pair: PairLayout, x: PairNumbers, multipliers: Tensor, bounds: _Bounds) -> Tensor:
    """The largest value of each pair over its allowed states, (C, B)."""
    first, second = pair.first, pair.second
    a, b = x.alpha + multipliers[first], x.beta + multipliers[second]
    values = torch.stack([torch.zeros_like(a), b, a, a + b + x.gamma])  # states 00, 01, 10, 11
    if bounds is not None:
        lower, upper = bounds
        first_forbidden = torch.stack([lower[first] > 0, upper[first] < 1])  # states 0 and 1
        second_forbidden = torch.stack([lower[second] > 0, upper[second] < 1])
        forbidden = (first_forbidden[:, None] | second_forbidden[None]).flatten(0, 1)
        values = values.masked_fill(forbidden, -torch.inf)
    return values.amax(0)


def _table_maxima(table: TableLayout, theta: Tensor, multipliers: Tensor) -> Tensor:
    """The largest value of each table, (C, B)."""
    cells = theta
    for place, (k, axis) in enumerate(zip(table.shape, table.axes, strict=True)):
        lam = fold(multipliers[axis], len(table.tables), -1)  # shape: (C, w, B)
        if k == 2:
            lam = torch.cat([torch.zeros_like(lam), lam], 1)
        cells = cells + along_axis(lam, table, place)
    return cells.flatten(1, -2).amax(1)


def _count_bounds(count: CountLayout, y: CountNumbers, tau: Tensor, multipliers: Tensor, bounds: _Bounds) -> Tensor:
    """An upper bound on the largest value of each count, (C, 1, B): the better of τ and 0."""
    edges = count.edges
    lam = fold(multipliers[edges], -1, count.size)

    def bound_at(tau: Tensor) -> Tensor:
        gain = lam - tau
        if bounds is None:
            gain = gain.clamp(min=0.0)
        else:
            low, high = (fold(x[edges], -1, count.size) for x in bounds)
            gain = torch.maximum(gain * low, gain * high)
        return gain.sum(1, keepdim=True) + y.high * tau.clamp(min=0.0) + y.low * tau.clamp(max=0.0)

    return torch.minimum(bound_at(tau), bound_at(torch.zeros_like(tau)))


def _on_edges(layout: Layout, bounds: Tensor, fill: float) -> Tensor:
    """Bounds of the binary rows on every edge; other rows are unbounded."""
    rest = bounds.new_full((layout.num_rows - len(bounds), bounds.shape[1]), fill)
    return torch.cat([bounds, rest])[layout.edge_row]
