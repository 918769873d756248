"""From marginals to assignments and their scores, in the layout of `ad3`."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import Numbers

_TIE = 1e-3  # marginals closer than this count as equal: the iterations do not resolve them better


def round_rows(layout: Layout, p: Tensor, cut: float = 0.5) -> Tensor:
    """One-hot rows (V, B): the state of largest marginal, the lowest on ties; binary variables round up at ``cut``."""
    x = torch.zeros_like(p)
    free = len(layout.binary)
    x[:free] = (p[:free] > cut + _TIE).to(p.dtype)
    for k, _, rows in layout.many:
        block = fold(p[rows], -1, k)
        near = block >= block.amax(1, keepdim=True) - _TIE
        order = torch.arange(k, 0, -1, device=p.device)[:, None]
        best = (near * order).argmax(1, keepdim=True)
        x[rows] = torch.zeros_like(block).scatter_(1, best, 1.0).flatten(0, 1)
    return x


def rows_to_states(layout: Layout, x: Tensor) -> Tensor:
    """Assignments (B, N) from one-hot rows (V, B)."""
    states = torch.zeros(x.shape[1], len(layout.cardinalities), dtype=torch.int64, device=x.device)
    states[:, layout.binary] = x[: len(layout.binary)].T.to(torch.int64)
    for k, members, rows in layout.many:
        states[:, members] = fold(x[rows], -1, k).argmax(1).T
    return states


def score_rows(layout: Layout, numbers: Numbers, x: Tensor) -> Tensor:
    """Scaled scores (B,) of one-hot rows, -inf where infeasible."""
    x = x.to(numbers.unary.dtype)
    total = numbers.constant + torch.where(x > 0, numbers.unary, 0.0).sum(0)
    free = len(layout.binary)
    if numbers.fixed is not None:
        broken = ((x[:free] < numbers.fixed.lower) | (x[:free] > numbers.fixed.upper)).any(0)
        total = total.masked_fill(broken, -torch.inf)
    edge = x.index_select(0, layout.edge_row)
    for pair, y in zip(layout.pairs, numbers.pairs, strict=True):
        u, v = edge[pair.first], edge[pair.second]
        total = total + (y.alpha * u + y.beta * v + y.gamma * (u * v)).sum(0)
    for t, theta in zip(layout.tables, numbers.tables, strict=True):
        cell = torch.zeros(len(t.tables), x.shape[1], dtype=torch.int64, device=x.device)
        for k, axis in zip(t.shape, t.axes, strict=True):
            one_hot = fold(edge[axis], len(t.tables), -1)
            cell = cell * k + (one_hot[:, 0].to(torch.int64) if k == 2 else one_hot.argmax(1))
        total = total + theta.flatten(1, -2).gather(1, cell[:, None]).squeeze(1).sum(0)
    for count, z in zip(layout.counts, numbers.counts, strict=True):
        ones = fold(edge[count.edges], -1, count.size).sum(1, keepdim=True)
        total = total.masked_fill(((ones < z.low) | (ones > z.high)).any(0).any(0), -torch.inf)
    if layout.kinds:
        states = rows_to_states(layout, x)
        for f, w in zip(layout.kinds, numbers.kinds, strict=True):
            total = total + f.kind.score(f.shape, states[:, f.scopes], w.theta.permute(2, 0, 1)).sum(1)
    return total.masked_fill(numbers.infeasible, -torch.inf)


def objective_rows(layout: Layout, numbers: Numbers, p: Tensor, q: Tensor, s: Tensor) -> Tensor:
    """The objective of the relaxation (B,) at p of the variables, q of the pairs and s of the cells.

    Factors of other kinds are left out.
    """
    total = numbers.constant + torch.where(p > 0, numbers.unary * p, 0.0).sum(0)
    for pair, y in zip(layout.pairs, numbers.pairs, strict=True):
        u, v = q[pair.first], q[pair.second]
        both = torch.where(y.gamma >= 0, torch.minimum(u, v), (u + v - 1.0).clamp(min=0.0))
        total = total + (y.alpha * u + y.beta * v + y.gamma * both).sum(0)
    for t, theta in zip(layout.tables, numbers.tables, strict=True):
        cells = s[t.cells].reshape(theta.shape)
        total = total + torch.where(cells > 0, theta * cells, 0.0).flatten(0, -2).sum(0)
    return total
