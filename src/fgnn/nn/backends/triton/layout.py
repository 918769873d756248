"""The edges of one direction as the kernels read them: listed by destination, split into rows of a fixed width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.backends.triton.tile_sizes import cdiv
from fgnn.runtime.kernel_launch import constants, launch, local
from fgnn.runtime.triton_support import power_of_two, why_unavailable

# Widest row that holds a whole neighbourhood; longer neighbourhoods take several rows.
_WIDEST = 64
# From this many edges or nodes on, indices are int64.
_INT32 = 2**31 - 1
_WIDTHS = (4, 8, 16, 32)
_ROWS = 256  # that one program describes
# Rows of destinations with the same number of edges that are kept for other groups of the same sizes: how many, for how
# many groups.
_MOST_ROWS, _MOST_KEPT = 1 << 18, 64
Lists = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Layout:
    """Edges sorted by destination.

    Attributes:
        ptr: (D + 1,) where the edges of each destination begin in the list.
        source: (E,) the node at the other end, in list order.
        edge: (E,) the edge at each list position; empty if the list is in edge order.
        arity: A if row r is destination r with its A edges; 0 if ``table`` describes the rows.
        width: W, a power of two, the places of a row.
        table: (4, R) a row's destination, its start and stop in the list, and the number of earlier edges of its
            destination; empty if arity > 0. Rows beyond those needed hold no edge.
        row_ptr: (D + 1,) where the rows of each destination begin; empty if arity > 0.
        longest: The largest degree of a destination, or a bound on it.
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
        """List positions of the edges of each destination, then of each source, and where those of each node begin.

        # shapes: (2 E,), (D + S + 1,)
        """
        order = torch.argsort(self.source, stable=True).to(self.source.dtype)
        counts = torch.bincount(self.source, minlength=self.sources)
        begin = (self.edges + counts.cumsum(0)).to(self.ptr.dtype)
        return torch.cat([self.list_order, order]), torch.cat([self.ptr, begin])

    @cached_property
    def list_order(self) -> Tensor:
        """All list positions.  # shape: (E,)"""
        return torch.arange(self.edges, device=self.source.device, dtype=self.source.dtype)

    @property
    def node_lists(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sources by list position, where the edges of each destination begin, and where those of each node begin."""
        return self.source, self.ptr, self.incident[1]

    def typed(self, types: EdgeTypes) -> Lists:
        """The type at each list position (E,), edges by type (E, 4), where each type begins, and the walk (2 E, 4).

        An edge is given by its destination, its place there, its source and its type. The walk lists the edges of
        each destination, then of each source.
        """
        return types.recent(("edge lists", self.towards), self, lambda: self._sorted_by(types))

    def _sorted_by(self, types: EdgeTypes) -> Lists:
        kind = types.index[self.edge.long()] if self.edge.numel() else types.index
        counts = torch.bincount(kind, minlength=types.num_types)
        ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return self._lists(kind, torch.argsort(kind, stable=True), ptr)

    @cached_property
    def one_each(self) -> Lists:
        """The same as :meth:`typed` if every edge has a different type."""
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
    """The layout of a group's edges in one direction, computed once.

    Args:
        per_edge: The source of an edge is the edge itself (``aggregate_messages`` with ``b`` None).
    """
    return incidence.derived(("layout", towards, per_edge), lambda: _make(incidence, towards, per_edge))


def _make(incidence: Incidence, towards: Side, per_edge: bool) -> Layout:
    edges, count = incidence.num_edges, incidence.num_destinations(towards)
    large = max(edges, incidence.num_factors, incidence.num_variables) >= _INT32
    small = torch.int64 if large else torch.int32
    arity = incidence.arity if towards == "factor" else None
    if towards == "factor":
        edge, other, sources, longest = None, incidence.variable, incidence.num_variables, arity
    else:
        edge, sources, longest = incidence.var_edge.to(small), incidence.num_factors, incidence.hints.max_degree
        other = edge // incidence.arity if incidence.arity else incidence.factor[edge]
    device = incidence.variable.device
    if per_edge:
        other = torch.arange(edges, device=device) if edge is None else edge
        sources = edges
    empty = torch.empty(0, dtype=small, device=device)
    if arity:
        width, rows = _shape_of_even_rows(count, arity) if edges else (_WIDTHS[0], 0)
        whole = width >= arity
        ptr, table, row_ptr = _kept_rows(count, arity, width, 0 if whole else rows, small, device)
    else:
        ptr, whole = incidence.factor_ptr if edge is None else incidence.var_ptr, False
        width, rows = _shape_of_rows(ptr, edges, longest is not None)
        ptr = ptr.to(small if rows * width < 2**31 else torch.int64)  # which holds where spare rows would begin
        table, row_ptr = _rows(ptr, width, rows, longest is not None)
    if longest is None:
        longest = int(ptr.diff().max()) if count else 0
    return Layout(
        towards=towards,
        destinations=count,
        sources=sources,
        edges=edges,
        ptr=ptr.to(small).contiguous(),
        source=other.to(small).contiguous(),
        edge=empty if edge is None else edge.to(small).contiguous(),
        arity=longest if whole else 0,
        width=width,
        rows=rows,
        table=empty if whole else table.to(small).contiguous(),
        row_ptr=empty if whole else row_ptr.to(small).contiguous(),
        longest=longest,
    )


_kept: dict[tuple[Any, ...], tuple[Tensor, Tensor, Tensor]] = {}


def _kept_rows(
    count: int, arity: int, width: int, rows: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the edges of each of ``count`` destinations begin if all have ``arity``, their rows, and where these begin.

    Graphs that are made at every step, such as those of nearest neighbours, have the same ones each time. What a CUDA
    graph may read is never given up.
    """
    key = (count, arity, width, rows, dtype, device)
    found = _kept.get(key)
    if found is not None:
        return found
    with torch.inference_mode(False):
        ptr = torch.arange(count + 1, device=device) * arity
        table, row_ptr = _rows(ptr, width, rows)
        found = ptr.to(dtype), table.to(dtype), row_ptr.to(dtype)
    in_pool = device.type == "cuda" and torch.cuda.is_current_stream_capturing()  # of a graph, which reuses it
    if max(rows, count) <= _MOST_ROWS and len(_kept) < _MOST_KEPT and not in_pool:
        _kept[key] = found
    return found


def _shape_of_even_rows(count: int, arity: int) -> tuple[int, int]:
    """The cheapest width of a row, and the number of rows, where all destinations have as many edges."""
    whole = power_of_two(arity)
    width = min(_WIDTHS, key=lambda w: _cost(w, -(-arity // w)))
    if whole <= min(_WIDEST, _cost(width, -(-arity // width))):
        return whole, count
    return width, count * -(-arity // width)


def _shape_of_rows(ptr: Tensor, edges: int, bounded: bool) -> tuple[int, int]:
    """The cheapest width of a row, and the number of rows.

    With a bound on the degree, both follow from shapes, without host synchronisation.
    """
    count = ptr.numel() - 1
    if not edges:
        return _WIDTHS[0], 0
    if bounded:
        # d destinations with n edges in all take at most (n + d (w - 1)) / w rows of width w
        width = min(_WIDTHS, key=lambda w: _cost(w, (edges + count * (w - 1)) // w))
        return width, (edges + count * (width - 1)) // width
    degree = ptr.diff()
    rows = torch.stack([(degree + (width - 1)) // width for width in _WIDTHS]).sum(1).tolist()
    return min(zip(_WIDTHS, rows, strict=True), key=lambda option: _cost(*option))


def _cost(width: int, rows: float) -> float:
    """The cost of rows in places: those computed, and what a partial result adds."""
    return rows * (width + 0.6)


def _rows(ptr: Tensor, width: int, rows: int, bounded: bool = False) -> tuple[Tensor, Tensor]:
    """Split each destination's edges into rows of at most ``width``; (4, rows) and (D + 1,).

    With ``bounded``, ``rows`` is the number that :func:`_shape_of_rows` found from shapes: a destination's rows then
    begin where they would if all before it had as many as they can, and some hold no edge. Other spare rows come last.
    """
    if not rows:
        return ptr.new_zeros(4, 0), torch.zeros_like(ptr)
    if bounded:  # no sum over destinations
        spare = torch.arange(0, ptr.numel() * (width - 1), width - 1, device=ptr.device, dtype=ptr.dtype)
        row_ptr = (ptr + spare) >> (width.bit_length() - 1)
        if why_unavailable(ptr.device) is None and local.notes is None:  # launches that are noted write nothing
            return _described(ptr.contiguous(), row_ptr, width, rows), row_ptr
    else:
        row_ptr = ((ptr.diff(prepend=ptr[:1]) + (width - 1)) // width).cumsum(0, dtype=ptr.dtype)
    row = torch.arange(rows, device=ptr.device, dtype=ptr.dtype)
    destination = torch.searchsorted(row_ptr[1:-1], row, right=True, out_int32=ptr.dtype == torch.int32)
    first, last = ptr.unfold(0, 2, 1)[destination].unbind(1)
    before = (row - row_ptr[destination]) * width
    start = torch.minimum(first + before, last)  # rows without edges begin beyond the last one
    stop = torch.minimum(start + width, last)
    return torch.stack([destination, start, stop, before]), row_ptr


def _described(ptr: Tensor, row_ptr: Tensor, width: int, rows: int) -> Tensor:
    from fgnn.nn.backends.triton.layout_kernels import describe_rows

    table, count = ptr.new_empty(4, rows), ptr.numel() - 1
    args = [ptr, row_ptr, table, rows, count, count.bit_length()]
    launch(describe_rows, (cdiv(rows, _ROWS),), args, constants(W=width, B=_ROWS))
    return table
