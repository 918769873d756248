"""The edges of one group as index tensors, in both directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fgnn.graph.derived import Derived, tracing
from fgnn.graph.edge_types import EdgeTypes
from fgnn.graph.group import FactorGroup

Side = Literal["factor", "variable"]

# Destinations whose degrees differ by at most this ratio share a block: few blocks, little padding.
_DEGREE_RATIO = 1.5
_DEGREE_SLACK = 3


@dataclass(frozen=True, eq=False)
class Block:
    """Destinations of similar degree, padded to the same number of edges.

    Attributes:
        destinations: (R,) their ids; None if the block holds all destinations in order.
        edges: (R, K) their edges in edge order, each row padded with its last edge; None if the edges of row r are
            ``r * K ... r * K + K - 1``.
        padding: (R, K) True at padding; None if there is none.
    """

    destinations: Tensor | None
    edges: Tensor | None
    padding: Tensor | None
    rows: int
    width: int


@dataclass(frozen=True)
class Hints:
    """What is known about a group's edges without looking at them, so that nothing is read back from the device.

    Attributes:
        max_degree: No variable has more edges than this; None where it has to be counted.
        covers_all: Every variable has an edge.
    """

    max_degree: int | None = None
    covers_all: bool = False


@dataclass(frozen=True, eq=False)
class Incidence(Derived):
    """The edges (c, i) of one group, numbered factor by factor. Its index tensors are made on first use.

    Attributes:
        variable: (E,) i of each edge.
        offsets: (C + 1,) where the edges of each factor begin, if factors differ in arity; else None.
        arity: A where every factor has A edges (then edge e belongs to factor e // A), else None.
        hints: What is known about the edges beforehand.
        one_type: All edges of one type.
    """

    variable: Tensor
    offsets: Tensor | None
    num_factors: int
    num_variables: int
    arity: int | None
    hints: Hints = field(default_factory=Hints)
    one_type: EdgeTypes = field(init=False, repr=False)
    _places: EdgeTypes | None = field(init=False, repr=False)
    _types: ClassVar[type[EdgeTypes]] = EdgeTypes

    def __post_init__(self) -> None:
        edges, arity, device = self.num_edges, self.arity, self.variable.device
        one = self._types.known(lambda: torch.zeros(edges, dtype=torch.long, device=device), 1, edges)
        places = None
        if arity is not None:
            # A compiled layer names them by handle, so they must be there before the first call.
            most = max(arity, 1)
            places = self._types.known(lambda: torch.arange(edges, device=device) % most, most, edges)
        object.__setattr__(self, "one_type", one)
        object.__setattr__(self, "_places", places)

    @classmethod
    def of(cls, group: FactorGroup, num_variables: int, hints: Hints = Hints()) -> Incidence:
        """The edges of a group over ``num_variables`` variables."""
        return cls(group.scopes.reshape(-1), group.offsets, group.num_factors, num_variables, group.arity, hints)

    @property
    def num_edges(self) -> int:
        """E."""
        return self.variable.shape[0]

    @property
    def factor(self) -> Tensor:
        """c of each edge, non-decreasing.  # shape: (E,)"""
        # torch.compile cannot trace the lock of a cached property.
        return self.group().factor_index() if tracing() else self._factor

    @cached_property
    def _factor(self) -> Tensor:
        return self.group().factor_index()

    @cached_property
    def factor_ptr(self) -> Tensor:
        """Where the edges of each factor begin, and the last end.  # shape: (C + 1,)"""
        return self.group().factor_ptr()

    def group(self) -> FactorGroup:
        """The scopes whose edges these are."""
        if self.offsets is not None:
            return FactorGroup.known(self.variable, self.offsets)
        return FactorGroup.known(self.variable.view(self.num_factors, self.arity or 0))

    @cached_property
    def var_edge(self) -> Tensor:
        """Edges sorted by variable, and for one variable in edge order.  # shape: (E,)"""
        return self._by_variable[1]

    @cached_property
    def _by_variable(self) -> tuple[Tensor, Tensor]:
        """The variables in order, and the edges in that order."""
        small = self.variable.is_cuda and self.num_variables < 2**31  # half the passes of a radix sort
        return torch.sort(self.variable.to(torch.int32) if small else self.variable, stable=True)

    @cached_property
    def var_ptr(self) -> Tensor:
        """Where the edges of each variable begin in ``var_edge``, and the last end.  # shape: (N + 1,)"""
        ordered = self._by_variable[0]  # counting would wait for a device
        ends = torch.arange(self.num_variables + 1, device=ordered.device, dtype=ordered.dtype)
        return torch.searchsorted(ordered, ends, out_int32=ordered.dtype == torch.int32)

    def num_destinations(self, towards: Side) -> int:
        """C towards the factors, N towards the variables."""
        return self.num_factors if towards == "factor" else self.num_variables

    def destination(self, towards: Side) -> Tensor:
        """The destination of each edge.  # shape: (E,)"""
        return self.factor if towards == "factor" else self.variable

    def degree(self, towards: Side) -> Tensor:
        """How many edges each destination has.  # shape: (C,) or (N,)"""
        if not tracing():
            return (self.factor_ptr if towards == "factor" else self.var_ptr).diff()
        if towards == "factor":
            return self.group().factor_ptr().diff()
        zeros = self.variable.new_zeros(self.num_variables)
        return zeros.scatter_add(0, self.variable, torch.ones_like(self.variable))

    def largest_degree(self, towards: Side) -> int:
        """The most edges that a destination has."""
        if towards == "factor" and self.arity is not None:
            return self.arity if self.num_factors else 0
        return self.derived(("largest degree", towards), lambda: self._largest_degree(towards))

    def _largest_degree(self, towards: Side) -> int:
        return int(torch.bincount(self.destination(towards)).max()) if self.num_edges else 0

    @cached_property
    def _has_empty_factor(self) -> bool:
        if self.arity is not None:
            return self.arity == 0 and self.num_factors > 0
        return bool((self.degree("factor") == 0).any())

    @cached_property
    def _has_empty_variable(self) -> bool:
        return not self.hints.covers_all and bool((self.degree("variable") == 0).any())

    def has_empty(self, towards: Side) -> bool:
        """Whether some destination has no edges."""
        return self._has_empty_factor if towards == "factor" else self._has_empty_variable

    @cached_property
    def _empty_factors(self) -> Tensor:
        return self.degree("factor") == 0

    def empty_factors(self) -> Tensor | None:
        """True for factors with an empty scope; None where there is none.  # shape: (C,)"""
        if tracing():
            return None if self.arity else self.degree("factor") == 0
        return self._empty_factors if self.has_empty("factor") else None

    @cached_property
    def _variable_blocks(self) -> tuple[Block, ...]:
        return _blocks(self.var_ptr, self.var_edge)

    @cached_property
    def _factor_blocks(self) -> tuple[Block, ...]:
        if self.arity is None:
            return _blocks(self.factor_ptr, None)
        if self.arity == 0 or self.num_factors == 0:
            return ()
        return (Block(None, None, None, self.num_factors, self.arity),)

    def blocks(self, towards: Side) -> tuple[Block, ...]:
        """Destinations with edges, in dense blocks by degree."""
        return self._factor_blocks if towards == "factor" else self._variable_blocks

    @property
    def positions(self) -> EdgeTypes:
        """The position of each edge's variable in its scope, as edge types."""
        return self._places if self._places is not None else self.derived("positions", self._ragged_positions)

    def _ragged_positions(self) -> EdgeTypes:
        place = torch.arange(self.num_edges, device=self.variable.device) - self.factor_ptr[self.factor]
        longest = int(self.degree("factor").max()) if self.num_factors else 0
        return self._types.known(place, max(longest, 1), self.num_edges)

    def prepare(self) -> Incidence:
        """Compute the index tensors now, before compiling or recording a network."""
        for side in ("factor", "variable"):
            self.blocks(side)
            self.has_empty(side)
        self.positions.prepare()
        self.one_type.prepare()
        return self


class _TracedTypes(EdgeTypes):
    _in_trace = True


class TracedIncidence(Incidence):
    """Edges that code traced by ``torch.compile`` makes for itself. They have no handle, so plain operations serve."""

    _in_trace = True
    _types = _TracedTypes


def _blocks(ptr: Tensor, edge: Tensor | None) -> tuple[Block, ...]:
    """Group destinations into blocks by degree, in order within a block."""
    starts = ptr.cpu().numpy()
    degree = np.diff(starts)
    order = np.argsort(degree, kind="stable")
    order = order[degree[order] > 0]
    members = []
    while order.size:
        low = int(degree[order[0]])
        limit = max(low + _DEGREE_SLACK, int(low * _DEGREE_RATIO))
        size = int(np.searchsorted(degree[order], limit, side="right"))
        members.append(np.sort(order[:size]))
        order = order[size:]
    return tuple(_block(ids, starts, degree, edge, ptr.device) for ids in members)


def _block(
    ids: np.ndarray,
    starts: np.ndarray,
    degree: np.ndarray,
    edge: Tensor | None,
    device: torch.device,
) -> Block:
    width = int(degree[ids].max())
    place = np.arange(width)[None, :]
    at = starts[ids][:, None] + np.minimum(place, degree[ids][:, None] - 1)  # shape: (R, K)
    padding = place >= degree[ids][:, None]
    where = torch.from_numpy(at).to(device)
    whole = ids.size == degree.size
    regular = whole and edge is None and not padding.any()
    return Block(
        destinations=None if whole else torch.from_numpy(ids).to(device),
        edges=None if regular else (where if edge is None else edge[where]),
        padding=torch.from_numpy(padding).to(device) if padding.any() else None,
        rows=int(ids.size),
        width=width,
    )
