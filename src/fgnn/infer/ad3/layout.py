"""How the models of a batch lie in memory for `ad3`: rows of marginals, edges to factors, cells of tables.

Everything is batch-last: a row is one number per model. Gathers then copy whole rows, sums run over rows, and the same
few operations serve one model or a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

Span = tuple[int, int]
_ALONE = 1e-6  # the degree of a variable without factors: next to nothing holds it back from its best state


@dataclass(frozen=True, eq=False)
class PairLayout:
    """Finite tables over two binary variables: edges ``first`` and ``second`` of width 1 each."""

    group: int  # which group of the batch's tables
    tables: Tensor  # shape: (C,), which tables of that group
    first: Span
    second: Span


@dataclass(frozen=True, eq=False)
class TableLayout:
    """Other tables of one shape, axes of one state left out."""

    group: int
    tables: Tensor  # shape: (C,)
    shape: tuple[int, ...]
    axes: tuple[Span, ...]  # the edges of each axis: C of them, of width 1 (binary) or k
    cells: Span
    rows: tuple[Tensor, ...]  # per axis, shape: (C,), the variable's first row


@dataclass(frozen=True, eq=False)
class BudgetLayout:
    """Budgets of one size: an edge of width 1 to each of their variables."""

    group: int  # which group of the batch's budgets
    size: int  # variables in each
    edges: Span


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows are first the binary variables' p_i(1), then all states of the others, by cardinality."""

    cardinalities: tuple[int, ...]
    row: Tensor  # shape: (N,), a variable's first row (-1: it has one state)
    binary: Tensor  # shape: (Vb,), the binary variables in the order of their rows
    many: tuple[tuple[int, Tensor, Span], ...]  # cardinality, variables (n_k,), rows
    num_rows: int
    num_edges: int
    num_cells: int
    pairs: tuple[PairLayout, ...]
    tables: tuple[TableLayout, ...]
    budgets: tuple[BudgetLayout, ...]
    edge_row: Tensor  # shape: (E,)
    degree: Tensor  # shape: (V, 1)
    padded: Tensor | None  # shape: (V, most), the edges of a row, E where there are no more; None: scatter instead
    dropped: tuple[tuple[int, Tensor, tuple[int, ...]], ...]  # tables of one or no real axis: group, tables, kept axes


def fold(rows: Tensor, *shape: int) -> Tensor:
    """Rows (R, B) as a view (*shape, B)."""
    return rows.reshape(*shape, rows.shape[-1])


def build_layout(batch: ModelBatch) -> Layout:
    """Lay out the structure of a batch; which tables count as pairs depends on where its numbers are finite."""
    device = batch.device
    cards = tuple(batch.cardinalities.tolist())
    n = len(cards)
    row = torch.full((n,), -1, dtype=torch.int64)
    binary = [i for i in range(n) if cards[i] == 2]
    row[torch.tensor(binary, dtype=torch.int64)] = torch.arange(len(binary))
    height, many = len(binary), []
    for k in sorted({k for k in cards if k > 2}):
        members = torch.tensor([i for i in range(n) if cards[i] == k])
        row[members] = height + k * torch.arange(len(members))
        many.append((k, members.to(device), (height, height + k * len(members))))
        height += k * len(members)

    edges: list[Tensor] = []  # rows, in the order of the edges
    at = 0

    def add(rows: Tensor) -> Span:
        nonlocal at
        edges.append(rows.reshape(-1))
        at += rows.numel()
        return at - rows.numel(), at

    pairs, tables, dropped, budgets = [], [], [], []
    cells = 0
    for g, t in enumerate(batch.tables):
        scopes = t.scopes.cpu()
        kept = tuple(a for a, k in enumerate(t.shape) if k > 1)
        shape = tuple(t.shape[a] for a in kept)
        every = torch.arange(len(scopes))
        if len(kept) < 2:
            dropped.append((g, every.to(device), kept))
            continue
        finite = torch.zeros(len(scopes), dtype=torch.bool)
        if shape == (2, 2):
            finite = (t.values > -torch.inf).flatten(2).all(2).all(0).cpu()
        if finite.any():
            which = every[finite]
            ends = [row[scopes[which, a]] for a in kept]
            pairs.append(PairLayout(g, which.to(device), add(ends[0]), add(ends[1])))
        if not finite.all():
            which = every[~finite]
            starts = [row[scopes[which, a]] for a in kept]
            widths = [1 if k == 2 else k for k in shape]
            axes = tuple(add(s[:, None] + torch.arange(w)) for s, w in zip(starts, widths, strict=True))
            size = len(which) * prod(shape)
            tables.append(
                TableLayout(
                    g, which.to(device), shape, axes, (cells, cells + size), tuple(s.to(device) for s in starts)
                )
            )
            cells += size
    for g, u in enumerate(batch.budgets):
        budgets.append(BudgetLayout(g, u.scopes.shape[1], add(row[u.scopes.cpu()])))

    edge_row = torch.cat(edges) if edges else torch.zeros(0, dtype=torch.int64)
    count = torch.bincount(edge_row, minlength=height)
    most = int(count.max()) if height else 0
    padded = None
    if most * height <= 4 * at + 1024:
        padded = torch.full((height, most), at, dtype=torch.int64)
        order = torch.argsort(edge_row, stable=True)
        place = torch.arange(at) - (torch.cumsum(count, 0) - count)[edge_row[order]]
        padded[edge_row[order], place] = order
        padded = padded.to(device)
    return Layout(
        cardinalities=cards,
        row=row.to(device),
        binary=torch.tensor(binary, dtype=torch.int64, device=device),
        many=tuple(many),
        num_rows=height,
        num_edges=at,
        num_cells=cells,
        pairs=tuple(pairs),
        tables=tuple(tables),
        budgets=tuple(budgets),
        edge_row=edge_row.to(device),
        degree=count.double().clamp(min=_ALONE)[:, None].to(device),
        padded=padded,
        dropped=tuple(dropped),
    )
