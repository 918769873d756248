"""The edges of one direction as the kernels read them: listed by destination, cut into rows of a fixed width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side

# A row of a uniform group may be this wide; longer neighbourhoods take several rows.
_WIDEST = 64
_WIDTHS = (4, 8, 16, 32)
# What is derived from a frozen object is kept on it: made once, gone with it, and plain to a compiler.
_KEPT = "_kept_by_kernels"
Lists = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Layout:
    """Edges sorted by destination.

    Attributes:
        ptr: (D + 1,) where the edges of each destination begin in the list.
        source: (E,) the node at the other end, in list order.
        edge: (E,) the edge at each list position; empty if the list is in edge order.
        arity: A where row r is destination r and its A edges; 0 where ``table`` says what a row is.
        width: W, a power of two, the places of a row.
        table: (4, R) a row's destination, where it starts and stops in the list, and how many edges of its
            destination come before it; empty where arity > 0.
        row_ptr: (D + 1,) the rows of each destination; empty where arity > 0.
        longest: The largest number of edges of one destination.
    """

    towards: Side
    destinations: int
    sources: int
    edges: int
    ptr: Tensor
    source: Tensor
    edge: Tensor
    arity: int
    width: int
    rows: int
    table: Tensor
    row_ptr: Tensor
    longest: int

    @cached_property
    def destination(self) -> Tensor:
        """The destination at each list position.  # shape: (E,)"""
        nodes = torch.arange(self.destinations, device=self.ptr.device, dtype=self.source.dtype)
        return nodes.repeat_interleave(self.ptr.diff(), output_size=self.edges)

    @cached_property
    def incident(self) -> tuple[Tensor, Tensor]:
        """List positions of the edges of each destination and then of each source, and where those of each begin.

        # shapes: (2 E,), (D + S + 1,)
        """
        order = torch.argsort(self.source, stable=True).to(self.source.dtype)
        counts = torch.bincount(self.source, minlength=self.sources)
        begin = (self.edges + counts.cumsum(0)).to(self.ptr.dtype)
        return torch.cat([self.list_order, order]), torch.cat([self.ptr, begin])

    @cached_property
    def list_order(self) -> Tensor:
        """Every list position in turn.  # shape: (E,)"""
        return torch.arange(self.edges, device=self.source.device, dtype=self.source.dtype)

    @property
    def node_lists(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sources by list position, where the edges of each destination begin, and where those of each node begin."""
        return self.source, self.ptr, self.incident[1]

    def typed(self, types: EdgeTypes) -> Lists:
        """The type at each list position (E,), edges by type (E, 4), where each type begins, and the walk (2 E, 4).

        An edge is its destination, its place there, its source and its type. The walk lists the edges of each
        destination and then of each source.
        """
        kept: dict[Side, tuple[Layout, Lists]] | None = getattr(types, _KEPT, None)
        if kept is None:
            kept = {}
            object.__setattr__(types, _KEPT, kept)
        if self.towards not in kept or kept[self.towards][0] is not self:
            kind = types.index[self.edge.long()] if self.edge.numel() else types.index
            counts = torch.bincount(kind, minlength=types.num_types)
            ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            kept[self.towards] = (self, self._lists(kind, torch.argsort(kind, stable=True), ptr))
        return kept[self.towards][1]

    @cached_property
    def one_each(self) -> Lists:
        """As :meth:`typed` where every edge is a type of its own."""
        kind = (self.edge if self.edge.numel() else self.list_order).long()
        order = torch.empty_like(kind)
        order[kind] = self.list_order.long()
        return self._lists(kind, order, torch.arange(self.edges + 1, device=kind.device))

    def _lists(self, kind: Tensor, order: Tensor, ptr: Tensor) -> Lists:
        small = self.source.dtype
        place = self.list_order - self.ptr[self.destination.long()]
        edges = torch.stack([self.destination, place, self.source, kind.to(small)], 1)
        return kind.to(small), edges[order], ptr.to(small), edges[self.incident[0].long()]


def layout_of(incidence: Incidence, towards: Side, per_edge: bool = False) -> Layout:
    """The layout of a group's edges in one direction, made once.

    Args:
        per_edge: The source of an edge is the edge itself (messages given edge by edge).
    """
    known: dict[tuple[Side, bool], Layout] | None = getattr(incidence, _KEPT, None)
    if known is None:
        known = {}
        object.__setattr__(incidence, _KEPT, known)
    if (towards, per_edge) not in known:
        known[towards, per_edge] = _make(incidence, towards, per_edge)
    return known[towards, per_edge]


def keep_layout(incidence: Incidence, towards: Side, width: int, most: int) -> None:
    """Make a layout by shapes that are known beforehand, with nothing read back from the device, and keep it.

    Its table has as many rows as can ever be needed; those left over hold no edge.

    Args:
        width: Of a row, where the edges of a destination are not all as many.
        most: A bound on the edges of one destination.
    """
    known: dict[tuple[Side, bool], Layout] = {**getattr(incidence, _KEPT, {})}
    known[towards, False] = _make(incidence, towards, False, width, most)
    object.__setattr__(incidence, _KEPT, known)


def _make(incidence: Incidence, towards: Side, per_edge: bool, bounded: int | None = None, most: int = 0) -> Layout:
    edges = incidence.num_edges
    large = max(edges, incidence.num_factors, incidence.num_variables) >= 2**31 - 1
    small = torch.int64 if large else torch.int32
    if towards == "factor":
        ptr, edge, other = incidence.factor_ptr, None, incidence.variable
        count, sources = incidence.num_factors, incidence.num_variables
    else:
        ptr, edge = incidence.var_ptr, incidence.var_edge
        other = incidence.factor[edge]
        count, sources = incidence.num_variables, incidence.num_factors
    if per_edge:
        other = torch.arange(edges, device=ptr.device) if edge is None else edge
        sources = edges
    arity = incidence.arity if towards == "factor" else None
    degree = ptr.diff()
    if arity is not None:
        longest = arity
    elif bounded is not None:
        longest = most
    else:
        longest = int(degree.max()) if count else 0
    width, single = _uniform_width(arity) if arity else (bounded or _ragged_width(degree), False)
    if single:
        rows, table, row_ptr = count, ptr.new_empty(0, dtype=small), ptr.new_empty(0, dtype=small)
    else:
        # of n edges in all, d destinations take at most (n + d (width - 1)) / width rows
        table, row_ptr = _rows(ptr, width, None if bounded is None else (edges + count * (width - 1)) // width)
        rows = table.shape[1]
    return Layout(
        towards=towards,
        destinations=count,
        sources=sources,
        edges=edges,
        ptr=ptr.to(small).contiguous(),
        source=other.to(small).contiguous(),
        edge=ptr.new_empty(0, dtype=small) if edge is None else edge.to(small).contiguous(),
        arity=longest if single else 0,
        width=width,
        rows=rows,
        table=table.to(small).contiguous(),
        row_ptr=row_ptr.to(small).contiguous(),
        longest=longest,
    )


def _cost(width: int, rows: float) -> float:
    """Places to compute, and what a partial result adds, in places."""
    return rows * (width + 0.6)


def _uniform_width(arity: int) -> tuple[int, bool]:
    """The cheapest width of a row, and whether one row then holds a whole neighbourhood."""
    whole = 1 << max(arity - 1, 0).bit_length()
    width = min(_WIDTHS, key=lambda w: _cost(w, -(-arity // w)))
    return (whole, True) if whole <= min(_WIDEST, _cost(width, -(-arity // width))) else (width, False)


def _ragged_width(degree: Tensor) -> int:
    """The cheapest width of a row for neighbourhoods of these sizes."""
    rows = torch.stack([(degree + (width - 1)) // width for width in _WIDTHS]).sum(1).tolist()
    return min(zip(_WIDTHS, rows, strict=True), key=lambda option: _cost(*option))[0]


def _rows(ptr: Tensor, width: int, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Cut each destination's edges into rows of at most ``width``; (4, R) and (D + 1,).

    With ``most``, R is that number, and rows that are not needed are empty.
    """
    degree = ptr.diff()
    count = (degree + width - 1) // width
    row_ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    if most is None:
        rows = int(row_ptr[-1])
        destination = torch.arange(degree.numel(), device=ptr.device).repeat_interleave(count, output_size=rows)
    else:
        rows = most
        found = torch.searchsorted(row_ptr, torch.arange(rows, device=ptr.device), right=True) - 1
        destination = found.clamp_max(degree.numel() - 1)
    before = (torch.arange(rows, device=ptr.device) - row_ptr[destination]) * width
    start = ptr[destination] + before
    stop = torch.minimum(start + width, ptr[destination + 1])
    return torch.stack([destination, start, stop, before]), row_ptr
