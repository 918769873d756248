"""What the multipliers of `ad3` prove: a bound on the optimum that holds for any of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import Numbers


def dual_value(
    layout: Layout, numbers: Numbers, multipliers: Tensor, thresholds: list[Tensor]
) -> tuple[Tensor, Tensor]:
    r"""The value (B,) of the scaled dual at any multipliers λ (E, B): never below the scaled optimum.

    .. math:: D(\lambda) = \sum_i \max_s \Big(\theta_i(s) - \sum_{c \ni i} \lambda_{ci}(s)\Big)
        + \sum_c \max_{x_c} \Big(\theta_c(x_c) + \sum_{i \in c} \lambda_{ci}(x_i)\Big)

    For a budget :math:`\max \lambda \cdot x \le u \tau^+ - \ell \tau^- + \sum_i \max(\lambda_i - \tau, 0)` for every τ,
    with equality at the right one: ``thresholds`` (C, 1, B), which the projections know, or 0. Only allowed states are
    maximised over.

    Also gives what is left to the variables, :math:`\theta_i - \sum_c \lambda_{ci}` (V, B): a state that has less of it
    than its variable's best, by more than the gap, is in no better assignment.
    """
    total = torch.zeros_like(numbers.unary).index_add_(0, layout.edge_row, multipliers)
    left = numbers.unary - total
    free = len(layout.binary)
    if numbers.lower is not None and numbers.upper is not None:
        value = torch.maximum(left[:free] * numbers.lower, left[:free] * numbers.upper).sum(0)
    else:
        value = left[:free].clamp(min=0.0).sum(0)
    value = value + numbers.constant
    for k, _, rows in layout.many:
        value = value + fold(left[slice(*rows)], -1, k).amax(1).sum(0)
    lower = upper = None
    if numbers.lower is not None and numbers.upper is not None:
        lower, upper = (_on_edges(layout, x, fill) for x, fill in ((numbers.lower, 0.0), (numbers.upper, 1.0)))
    for pair, x in zip(layout.pairs, numbers.pairs, strict=True):
        first, second = slice(*pair.first), slice(*pair.second)
        a, b = x.alpha + multipliers[first], x.beta + multipliers[second]
        four = torch.stack([torch.zeros_like(a), b, a, a + b + x.gamma])  # states 00, 01, 10, 11
        if lower is not None and upper is not None:
            of_first = torch.stack([lower[first] > 0, upper[first] < 1])  # state 0 of the first forbidden, state 1
            of_second = torch.stack([lower[second] > 0, upper[second] < 1])
            four = four.masked_fill((of_first[:, None] | of_second[None]).flatten(0, 1), -torch.inf)
        value = value + four.amax(0).sum(0)
    for t, theta in zip(layout.tables, numbers.tables, strict=True):
        cells = theta
        for place, (k, axis) in enumerate(zip(t.shape, t.axes, strict=True)):
            own = fold(multipliers[slice(*axis)], len(t.tables), -1)  # shape: (C, w, B)
            if k == 2:
                own = torch.cat([torch.zeros_like(own), own], 1)
            shape = [1] * len(t.shape)
            shape[place] = k
            cells = cells + own.reshape(len(own), *shape, -1)
        value = value + cells.flatten(1, -2).amax(1).sum(0)
    for budget, y, tau in zip(layout.budgets, numbers.budgets, thresholds, strict=True):
        edges = slice(*budget.edges)
        own = fold(multipliers[edges], -1, budget.size)
        best = None
        for guess in (tau, torch.zeros_like(tau)):
            gain = own - guess
            if lower is not None and upper is not None:
                low, high = (fold(x[edges], -1, budget.size) for x in (lower, upper))
                gain = torch.maximum(gain * low, gain * high)
            else:
                gain = gain.clamp(min=0.0)
            top = gain.sum(1, keepdim=True) + y.high * guess.clamp(min=0.0) + y.low * guess.clamp(max=0.0)
            best = top if best is None else torch.minimum(best, top)
        assert best is not None
        value = value + best.sum((0, 1))
    return value.masked_fill(numbers.hopeless, -torch.inf), left


def _on_edges(layout: Layout, bounds: Tensor, fill: float) -> Tensor:
    """Bounds of the binary rows on every edge; the others are free."""
    rest = bounds.new_full((layout.num_rows - len(bounds), bounds.shape[1]), fill)
    return torch.cat([bounds, rest])[layout.edge_row]
