"""Layout of the features f_i and g_c in the max-product network, and factors that share weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fgnn.theory.relu import Number, Wire, add

Pattern = tuple[tuple[tuple[int, ...], ...], ...]  # the states of a box's side, by term and position


@dataclass(frozen=True)
class VariableLayout:
    """f_i: the unary θ_i, then one *slot* per incident factor with its last message m_{c→i}.

    A message is stored as its positive and its negative part (and, if -inf can occur, a count that is 0 for finite
    entries). All parts are non-negative, as Lemma lossless_agg requires. The belief b_i is the sum of the unary and
    all slots.
    """

    states: int  # K, the largest cardinality
    slots: int  # D, the largest degree of a variable
    forbids: bool  # whether an entry can become -inf

    @property
    def parts(self) -> int:
        """The number of entries per stored number."""
        return 3 if self.forbids else 2

    @property
    def unaries(self) -> int:
        """The number of entries of the unary."""
        return self.states * (2 if self.forbids else 1)

    @property
    def width(self) -> int:
        return self.unaries + self.slots * self.states * self.parts

    def message(self, slot: int, state: int) -> int:
        """Offset of the parts of a message entry."""
        return self.unaries + (slot * self.states + state) * self.parts

    def belief(self, inputs: Sequence[Wire], state: int, but: int | None = None) -> Number:
        """b_i(x) = θ_i(x) + Σ_c m_{c→i}(x) over all slots, or all slots but one."""
        messages = [read(inputs, self.message(d, state), self.forbids) for d in range(self.slots) if d != but]
        forbidden = _positive(inputs[self.states + state]) if self.forbids else None
        return add([Number(inputs[state], forbidden=forbidden), *messages])


@dataclass(frozen=True, eq=False)
class FactorKind:
    """Factors with the same boxes but different values, which share one set of weights.

    g_c holds the values v_z of the terms, then one *slot* per position with the max-marginals of its variable: the
    maximum of b_i over each side S_i^z that occurs at that position.
    """

    name: str
    shape: tuple[int, ...]
    terms: Pattern
    scopes: Tensor  # shape: (C, A)
    slots: Tensor  # shape: (C, A), the factor's slot at each of its variables
    source: int | None  # index of the model's table group; None if all values are 0
    rows: Tensor  # shape: (C,), the tables in that group

    @property
    def arity(self) -> int:
        return len(self.shape)

    @cached_property
    def sides(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The distinct sides at each position."""
        return tuple(tuple(dict.fromkeys(term[a] for term in self.terms)) for a in range(self.arity))

    @cached_property
    def all_sides(self) -> tuple[tuple[int, ...], ...]:
        """The distinct sides of all positions. M does not see the position, so it takes the maximum over each."""
        return tuple(dict.fromkeys(side for sides in self.sides for side in sides))

    @cached_property
    def edge_types(self) -> tuple[tuple[int, int], ...]:
        """The distinct pairs (position, slot), on which Q depends."""
        positions = torch.arange(self.arity).expand_as(self.slots)
        pairs = torch.stack([positions.reshape(-1), self.slots.reshape(-1)], 1)
        return tuple((int(a), int(d)) for a, d in torch.unique(pairs, dim=0).tolist())

    @cached_property
    def edge_index(self) -> Tensor:
        """The index of each edge in `edge_types`.  # shape: (C, A)"""
        number = {pair: t for t, pair in enumerate(self.edge_types)}
        rows = [[number[a, d] for a, d in enumerate(row)] for row in self.slots.tolist()]
        return torch.tensor(rows).reshape(self.slots.shape)

    def width(self, layout: VariableLayout) -> int:
        # a factor that forbids everything has no terms, but features need at least one entry
        return max(1, len(self.terms) + layout.parts * sum(len(sides) for sides in self.sides))

    def marginal(self, layout: VariableLayout, position: int, side: tuple[int, ...]) -> int:
        """Offset of the parts of a max-marginal in g_c."""
        before = sum(len(sides) for sides in self.sides[:position]) + self.sides[position].index(side)
        return len(self.terms) + layout.parts * before

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor]:
        """The configurations of each box: (entry of the flat table, term) pairs, both (P,)."""
        table = np.arange(math.prod(self.shape)).reshape(self.shape)
        inside = [table[np.ix_(*term)].reshape(-1) for term in self.terms]
        which = np.repeat(np.arange(len(inside)), [len(cells) for cells in inside])
        return torch.from_numpy(np.concatenate([table[:0].reshape(-1), *inside])), torch.from_numpy(which)

    def values(self, tables: Tensor) -> Tensor:
        """v_z, the least value inside box z, from flat tables.  # shape: (B, C, cells) -> (B, C, Z)"""
        cells, which = (index.to(tables.device) for index in self.cells)
        index = which.expand(*tables.shape[:2], -1)
        start = tables.new_full((*tables.shape[:2], len(self.terms)), torch.inf)
        return start.scatter_reduce(2, index, tables[..., cells], "amin")

    def covers(self, tables: Tensor, values: Tensor) -> bool:
        """Whether the boxes with these values reconstruct the tables."""
        cells, which = (index.to(tables.device) for index in self.cells)
        index = cells.expand(*tables.shape[:2], -1)
        start = torch.full_like(tables, -torch.inf)
        return torch.equal(start.scatter_reduce(2, index, values[..., which], "amax"), tables)


def read(inputs: Sequence[Wire], at: int, forbids: bool) -> Number:
    """Read a stored number: its positive part minus its negative part, and its count."""
    forbidden = _positive(inputs[at + 2]) if forbids else None
    return Number(_positive(inputs[at]) - _positive(inputs[at + 1]), forbidden=forbidden)


def _positive(wire: Wire) -> Wire:
    return Wire(wire.parts, wire.constant, positive=True)
