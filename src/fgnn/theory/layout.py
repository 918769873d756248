"""Layout of the features f_i and g_c in the max-product network, and factors that share weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fgnn.theory.cover import rank_one, rounding
from fgnn.theory.decompose import Pattern, Slopes
from fgnn.theory.relu import ReluNetwork, Wire, total

# Finite numbers stay below LIMIT. -inf is stored as about -FORBIDDEN; what lies below -EDGE counts as -inf. Maxima
# select and sums of a forbidden number are never used, so these constants round no finite number.
LIMIT, EDGE, FORBIDDEN = 1e90, 1e95, 1e100

Side = tuple[int, ...]
Key = tuple[Side, tuple[int, int] | None]  # a side and, if the term has offsets on it, its (position, term)


@dataclass(frozen=True)
class VariableLayout:
    """f_i: the unary θ_i, then one *slot* per incident factor with its last message m_{c→i}.

    A message is stored as its positive and its negative part. Both are non-negative, as Lemma lossless_agg requires.
    The belief b_i is the sum of the unary and all slots.
    """

    states: int  # K, the largest cardinality
    slots: int  # D, the largest degree of a variable

    @property
    def width(self) -> int:
        return self.states + 2 * self.slots * self.states

    def message(self, slot: int, state: int) -> int:
        """Offset of the two parts of a message entry."""
        return self.states + 2 * (slot * self.states + state)

    def belief(self, inputs: Sequence[Wire], state: int, but: int | None = None) -> Wire:
        """b_i(x) = θ_i(x) + Σ_c m_{c→i}(x) over all slots, or all slots but one."""
        messages = [read(inputs, self.message(d, state)) for d in range(self.slots) if d != but]
        return total([inputs[state], *messages])


@dataclass(frozen=True, eq=False)
class FactorKind:
    """Factors with the same boxes but different numbers, which share one set of weights.

    g_c holds the *numbers* of the terms, v_z and then all u_ic(x_i, z), followed by one *slot* per position with the
    max-marginals of its variable: the maximum of b_i over each flat side, and of b_i + u_ic over each other one.
    """

    name: str
    shape: tuple[int, ...]
    terms: Pattern
    slopes: Slopes
    scopes: Tensor  # shape: (C, A)
    slots: Tensor  # shape: (C, A), the factor's slot at each of its variables
    source: int | None  # index of the model's table group; None if the tables are `fixed`
    rows: Tensor  # shape: (C,), the tables in that group
    fixed: Tensor | None = None  # flat tables of budgets and constant factors, shape: (C, cells); None: all values 0

    @property
    def arity(self) -> int:
        return len(self.shape)

    @cached_property
    def offsets(self) -> dict[tuple[int, int, int], int]:
        """Where g_c has u_ic(x, z): by position, term and state."""
        entries = [(a, z, x) for z, slope in enumerate(self.slopes) for a in slope for x in self.terms[z][a]]
        return {entry: len(self.terms) + at for at, entry in enumerate(entries)}

    @property
    def numbers(self) -> int:
        """The length of the part of g_c that describes the factor."""
        return len(self.terms) + len(self.offsets)

    def key(self, position: int, term: int) -> Key:
        """The max-marginal that a term needs from a position."""
        return self.terms[term][position], (position, term) if position in self.slopes[term] else None

    @cached_property
    def keys(self) -> tuple[tuple[Key, ...], ...]:
        """The distinct max-marginals of each position."""
        return tuple(tuple(dict.fromkeys(self.key(a, z) for z in range(len(self.terms)))) for a in range(self.arity))

    @cached_property
    def all_keys(self) -> tuple[Key, ...]:
        """Those of all positions. M does not see the position, so it computes each."""
        return tuple(dict.fromkeys(key for keys in self.keys for key in keys))

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

    @cached_property
    def width(self) -> int:
        # a factor that forbids everything has no terms, but features need at least one entry
        return max(1, self.numbers + 2 * sum(map(len, self.keys)))

    def marginal(self, position: int, key: Key) -> int:
        """Offset of the two parts of a max-marginal in g_c."""
        before = sum(map(len, self.keys[:position])) + self.keys[position].index(key)
        return self.numbers + 2 * before

    def describe(self, tables: Tensor) -> Tensor:
        """The numbers v_z and u_ic of tables with these boxes.  # shape: (B, C, k_1, ..., k_A) -> (B, C, numbers)

        Raises:
            ValueError: The terms do not reconstruct a table.
        """
        out = tables.new_zeros(*tables.shape[:2], self.numbers)
        best = torch.full_like(tables, -torch.inf)
        for z, (states, slope) in enumerate(zip(self.terms, self.slopes, strict=True)):
            value, functions = rank_one(tables, states, slope)
            out[..., z] = value
            term = value.reshape(*value.shape, *(1,) * self.arity)
            for a, u in zip(slope, functions, strict=True):
                first = self.offsets[a, z, states[a][0]]
                out[..., first : first + len(states[a])] = u
                term = term + u.reshape(*u.shape[:2], *(len(u[0, 0]) if b == a else 1 for b in range(self.arity)))
            grid = torch.meshgrid(*(torch.tensor(s, device=tables.device) for s in states), indexing="ij")
            box: tuple[slice | Tensor, ...] = (slice(None), slice(None), *grid)
            best[box] = torch.maximum(best[box], term.expand_as(best[box]))
        near = (best == tables) | ((best - tables).abs() <= rounding(tables, self.arity))
        if not bool(out.isfinite().all()) or not bool(near.all()):
            raise ValueError(f"Expected tables with the network's boxes (got different ones in {self.name})")
        return out


def read(inputs: Sequence[Wire], at: int) -> Wire:
    """Read a stored number: its positive part minus its negative part."""
    return _positive(inputs[at]) - _positive(inputs[at + 1])


def store(net: ReluNetwork, number: Wire) -> tuple[Wire, Wire]:
    """The two non-negative parts of a number as wires on the next layer.

    The negative part n is exact below EDGE. Above, it grows tenfold and then saturates, so every sum with a forbidden
    number is stored as the same constant, close to FORBIDDEN, however often it is added up.
    """
    up, down = net.split(number)
    if number.positive:
        return up, down
    edge, saturated = net.unit(-number - Wire({}, EDGE)), net.unit(-number - Wire({}, FORBIDDEN / 10))
    return up, down + 9.0 * edge - 10.0 * saturated


def _positive(wire: Wire) -> Wire:
    return Wire(wire.parts, wire.constant, positive=True)
