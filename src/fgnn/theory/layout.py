"""What each entry of a feature means in the max-product network, and which factors share weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fgnn.theory.relu import Number, Wire, add

Pattern = tuple[tuple[tuple[int, ...], ...], ...]  # the states of a box's side, by term and position


@dataclass(frozen=True)
class VariableLayout:
    """f_i: the unary θ_i, then one *slot* per incident factor with the message it sent last.

    A message is kept as its positive and its negative part (and, where -inf can occur, a count that is 0 for a finite
    entry), all of them non-negative as Lemma lossless_agg needs. The belief is the sum of the unary and all slots.
    """

    states: int  # K, the largest cardinality
    slots: int  # D, the largest number of factors of one variable
    bans: bool  # whether an entry can become -inf

    @property
    def parts(self) -> int:
        """Entries of one stored number."""
        return 3 if self.bans else 2

    @property
    def width(self) -> int:
        return self.states * (2 if self.bans else 1) + self.slots * self.states * self.parts

    def message(self, slot: int, state: int) -> int:
        """Where the parts of a message's entry begin."""
        return self.states * (2 if self.bans else 1) + (slot * self.states + state) * self.parts

    def unary(self, inputs: Sequence[Wire], state: int) -> Number:
        """θ_i(x)."""
        banned = _positive(inputs[self.states + state]) if self.bans else None
        return Number(inputs[state], banned=banned)

    def belief(self, inputs: Sequence[Wire], state: int, but: int | None = None) -> Number:
        """b_i(x) = θ_i(x) + Σ of the slots, or of all slots but one."""
        messages = [read(inputs, self.message(d, state), self.bans) for d in range(self.slots) if d != but]
        return add([self.unary(inputs, state), *messages])


@dataclass(frozen=True, eq=False)
class FactorKind:
    """Factors with the same boxes, so that one set of weights serves them all; only their values differ.

    g_c is the terms' values v_z, then one *slot* per position with the max-marginals of its variable: the maximum of
    the variable's belief over each side of a box that occurs at that position.
    """

    name: str
    shape: tuple[int, ...]
    terms: Pattern
    scopes: Tensor  # shape: (C, A)
    slots: Tensor  # shape: (C, A), the slot each factor has at each of its variables
    source: int | None  # the place of its tables among the model's table groups; None where all values are 0
    rows: Tensor  # shape: (C,), which tables of that group

    @property
    def arity(self) -> int:
        return len(self.shape)

    @cached_property
    def sides(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The sides that occur at each position."""
        return tuple(tuple(dict.fromkeys(term[a] for term in self.terms)) for a in range(self.arity))

    @cached_property
    def all_sides(self) -> tuple[tuple[int, ...], ...]:
        """The sides of all positions together: M does not know its position, so it computes the maximum over each."""
        return tuple(dict.fromkeys(side for sides in self.sides for side in sides))

    @cached_property
    def edge_types(self) -> tuple[tuple[int, int], ...]:
        """The pairs (position, slot) that occur, which is all Q has to know of an edge."""
        places = torch.arange(self.arity).expand_as(self.slots)
        pairs = torch.stack([places.reshape(-1), self.slots.reshape(-1)], 1)
        return tuple((int(a), int(d)) for a, d in torch.unique(pairs, dim=0).tolist())

    @cached_property
    def edge_index(self) -> Tensor:
        """Which of `edge_types` each edge has.  # shape: (C, A)"""
        number = {pair: t for t, pair in enumerate(self.edge_types)}
        rows = [[number[a, d] for a, d in enumerate(row)] for row in self.slots.tolist()]
        return torch.tensor(rows).reshape(self.slots.shape)

    def width(self, layout: VariableLayout) -> int:
        # a factor that forbids everything has no terms, but a feature has at least one entry
        return max(1, len(self.terms) + layout.parts * sum(len(sides) for sides in self.sides))

    def marginal(self, layout: VariableLayout, position: int, side: tuple[int, ...]) -> int:
        """Where the parts of a max-marginal begin in g_c."""
        before = sum(len(sides) for sides in self.sides[:position]) + self.sides[position].index(side)
        return len(self.terms) + layout.parts * before

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor]:
        """The configurations of each box: (entry of the flat table, term) pairs, both (P,)."""
        table = torch.arange(max(1, torch.Size(self.shape).numel())).reshape(self.shape)
        inside = [
            table[
                tuple(
                    torch.tensor(side).reshape([-1 if b == a else 1 for b in range(self.arity)])
                    for a, side in enumerate(term)
                )
            ]
            for term in self.terms
        ]
        if not inside:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        which = torch.cat([torch.full((cells.numel(),), z) for z, cells in enumerate(inside)])
        return torch.cat([cells.reshape(-1) for cells in inside]), which

    def values(self, tables: Tensor) -> Tensor:
        """v_z, the least value inside box z, from flat tables.  # shape: (B, C, cells) -> (B, C, Z)"""
        cells, which = (places.to(tables.device) for places in self.cells)
        index = which.expand(*tables.shape[:2], -1)
        start = tables.new_full((*tables.shape[:2], len(self.terms)), torch.inf)
        return start.scatter_reduce(2, index, tables[..., cells], "amin")

    def covers(self, tables: Tensor, values: Tensor) -> bool:
        """Whether the boxes with these values give the tables back."""
        cells, which = (places.to(tables.device) for places in self.cells)
        index = cells.expand(*tables.shape[:2], -1)
        start = torch.full_like(tables, -torch.inf)
        return torch.equal(start.scatter_reduce(2, index, values[..., which], "amax"), tables)


def read(inputs: Sequence[Wire], at: int, bans: bool) -> Number:
    """A stored number: its positive part less its negative part, and its count."""
    banned = _positive(inputs[at + 2]) if bans else None
    return Number(_positive(inputs[at]) - _positive(inputs[at + 1]), banned=banned)


def _positive(wire: Wire) -> Wire:
    return Wire(wire.parts, wire.constant, positive=True)
