"""The memory layout of `ad3`: rows of marginals, edges to factors, cells of tables.

Tensors have the models as the last axis: a row is one number per model. Gathers then copy whole rows, sums run over
rows, and the same operations serve one model or a hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.graph import padded_width, slots_by_target
from fgnn.graph.derived import Derived
from fgnn.infer.map_tensors import map_tensors
from fgnn.pgm import Kind, ModelBatch, TableBatch

_ALONE = 1e-6  # the degree of a variable without factors: almost nothing keeps it from its best state


@dataclass(frozen=True, eq=False)
class PairLayout:
    """Finite tables over two binary variables: edges ``first`` and ``second`` of width 1 each."""

    group: int  # which group of the batch's factors
    tables: Tensor  # shape: (C,), which tables of that group
    first: slice
    second: slice


@dataclass(frozen=True, eq=False)
class TableLayout:
    """Other tables of one shape, without axes of one state."""

    group: int
    tables: Tensor  # shape: (C,)
    shape: tuple[int, ...]
    axes: tuple[slice, ...]  # the edges of each axis: C of them, of width 1 (binary) or k
    cells: slice


@dataclass(frozen=True, eq=False)
class CountLayout:
    """Bounds on the number of ones of equally many variables: an edge of width 1 to each of them."""

    group: int  # which group of the batch's factors
    size: int  # variables in each
    edges: slice


@dataclass(frozen=True, eq=False)
class KindLayout:
    """Factors of one kind and shape that know their best joint states."""

    group: int  # which group of the batch's factors
    kind: Kind
    shape: tuple[int, ...]
    scopes: Tensor  # shape: (C, n)
    edges: slice  # axis by axis: C of them, of width 1 (binary) or k (more states) or 0 (one state)

    @property
    def count(self) -> int:
        """C."""
        return len(self.scopes)

    @property
    def soft(self) -> bool:
        """Whether the factors have log-potentials of their own, rather than forbid or allow."""
        return float in self.kind.numbers.values()


@dataclass(frozen=True, eq=False)
class Layout(Derived):
    """Rows are p_i(1) of the binary variables, then all states of the others, by cardinality."""

    cardinalities: tuple[int, ...]
    row: Tensor  # shape: (N,), a variable's first row; -1 if it has one state
    binary: Tensor  # shape: (Vb,), the binary variables in the order of their rows
    many: tuple[tuple[int, Tensor, slice], ...]  # cardinality, variables (n_k,), rows
    num_rows: int
    num_edges: int
    num_cells: int
    pairs: tuple[PairLayout, ...]
    tables: tuple[TableLayout, ...]
    counts: tuple[CountLayout, ...]
    kinds: tuple[KindLayout, ...]
    edge_row: Tensor  # shape: (E,)
    degree: Tensor  # shape: (V, 1)
    padded: Tensor | None  # shape: (V, degree), the edges of each row, padded with E; None: mostly padding, scatter
    dropped: tuple[tuple[int, tuple[int, ...]], ...]  # groups of tables with at most one real axis, and that axis
    longest_sum: int  # no number of the dual passes through more additions, in whatever order


def fold(rows: Tensor, *shape: int) -> Tensor:
    """Rows (R, B) as a view (*shape, B)."""
    return rows.reshape(*shape, rows.shape[-1])


def along_axis(x: Tensor, table: TableLayout, axis: int) -> Tensor:
    """(C, k, B) as a view that broadcasts along one axis of the cells (C, k_1, ..., k_A, B)."""
    shape = [1] * len(table.shape)
    shape[axis] = table.shape[axis]
    return x.reshape(x.shape[0], *shape, x.shape[-1])


def build_layout(batch: ModelBatch) -> Layout:
    """The layout of a batch, compiled once for its structure and for which binary pairs are finite in all models."""
    finite = tuple(_finite_pairs(t) for t in batch.tables)
    key = tuple((f.kind, f.shape) for f in batch.factors), tuple(mask.numpy().tobytes() for mask in finite)
    return batch.structure.recent("ad3 layouts", key, lambda: _compile(batch, finite))


def edge_width(states: int) -> int:
    """The rows of a variable: p(1) of a binary one, all states of one with more, none if there is no choice."""
    return states if states > 2 else states - 1


def _finite_pairs(t: TableBatch) -> Tensor:
    """Which tables are over two binary variables, without ``-inf`` in any model.  # shape: (C,), bool, on the CPU"""
    if [k for k in t.shape if k > 1] != [2, 2]:
        return torch.zeros(len(t.scopes), dtype=torch.bool)
    return (t.distinct("values") > -torch.inf).flatten(2).all(2).all(0).cpu()


class _Edges:
    """Edges in the order in which they are added, as the rows they belong to."""

    def __init__(self) -> None:
        self.rows = [torch.zeros(0, dtype=torch.int64)]
        self.count = 0

    def add(self, rows: Tensor) -> slice:
        self.rows.append(rows.reshape(-1))
        self.count += rows.numel()
        return slice(self.count - rows.numel(), self.count)


def _compile(batch: ModelBatch, finite: tuple[Tensor, ...]) -> Layout:
    structure, cards = batch.structure, tuple(batch.cardinalities.tolist())
    row, binary, many, height = _variable_rows(cards)
    edges = _Edges()
    pairs: list[PairLayout] = []
    tables: list[TableLayout] = []
    dropped = []
    cells = 0
    for g, (group, mask) in enumerate(zip(batch.tables, finite, strict=True)):
        shape = group.shape
        axes = tuple(a for a, k in enumerate(shape) if k > 1)
        if len(axes) < 2:
            dropped.append((g, axes))
            continue
        rows = row[group.scopes.cpu()[:, list(axes)]]  # shape: (C, A), first rows
        if mask.any():
            first, second = (edges.add(ends) for ends in rows[mask].unbind(1))
            pairs.append(PairLayout(g, mask.nonzero().squeeze(1), first, second))
        if not mask.all():
            others, sizes = (~mask).nonzero().squeeze(1), tuple(shape[a] for a in axes)
            spans = tuple(
                edges.add(starts[:, None] + torch.arange(edge_width(k)))
                for starts, k in zip(rows[others].unbind(1), sizes, strict=True)
            )
            end = cells + len(others) * prod(sizes)
            tables.append(TableLayout(g, others, sizes, spans, slice(cells, end)))
            cells = end
    counts: list[CountLayout] = []
    kinds: list[KindLayout] = []
    for g, f in enumerate(batch.factors):
        scopes, begin = f.scopes.cpu(), edges.count
        if f.form == "ones":
            counts.append(CountLayout(g, len(f.shape), edges.add(row[scopes])))
        elif f.form == "other":
            for starts, k in zip(row[scopes].unbind(1), f.shape, strict=True):
                edges.add(starts[:, None] + torch.arange(edge_width(k)))
            kinds.append(KindLayout(g, f.kind, f.shape, scopes, slice(begin, edges.count)))
    edge_row = torch.cat(edges.rows)
    degree = padded_width(edge_row, height)
    few = degree * height <= 4 * edges.count + 1024
    terms = [len(cards), height, *(sum(group.scopes.shape) for group in structure.groups.values())]
    layout = Layout(
        cardinalities=cards,
        row=row,
        binary=binary,
        many=tuple(many),
        num_rows=height,
        num_edges=edges.count,
        num_cells=cells,
        pairs=tuple(pairs),
        tables=tuple(tables),
        counts=tuple(counts),
        kinds=tuple(kinds),
        edge_row=edge_row,
        degree=torch.bincount(edge_row, minlength=height).double().clamp(min=_ALONE)[:, None],
        padded=slots_by_target(edge_row, height) if few else None,
        dropped=tuple(dropped),
        longest_sum=max(terms) + degree + 2 * len(structure.groups) + 16,
    )
    return map_tensors(layout, lambda x: x.to(structure.device))


def _variable_rows(cards: tuple[int, ...]) -> tuple[Tensor, Tensor, list[tuple[int, Tensor, slice]], int]:
    """`Layout.row`, `binary`, `many` and `num_rows`, on the CPU."""
    sizes = torch.tensor(cards, dtype=torch.int64)
    row = torch.full((len(cards),), -1, dtype=torch.int64)
    binary = (sizes == 2).nonzero().squeeze(1)
    row[binary] = torch.arange(len(binary))
    height, many = len(binary), []
    for k in sorted({k for k in cards if k > 2}):
        members = (sizes == k).nonzero().squeeze(1)
        row[members] = height + k * torch.arange(len(members))
        many.append((k, members, slice(height, height + k * len(members))))
        height += k * len(members)
    return row, binary, many, height
