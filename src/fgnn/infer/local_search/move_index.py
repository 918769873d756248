"""The structure of local search: which variables and pairs of variables each factor scores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.graph import PaddedIncidence, Structure
from fgnn.infer.map_tensors import map_tensors

# Budgets times pairs up to which budgets are summed over pairs by a matrix product rather than by gathers.
_SMALL_MATRIX = 1 << 16


@dataclass(frozen=True, eq=False)
class TableIndex:
    """Tables of one shape. Their pairs of axes are numbered (0, 1), (0, 2), ..., (A - 2, A - 1)."""

    scopes: Tensor  # shape: (C, A)
    strides: Tensor  # shape: (A,), of the flattened table
    axes: Tensor  # shape: (2, A(A-1)/2), the two axes of each pair
    swapped: Tensor  # shape: (C, A(A-1)/2, 1, 1), whether the second variable of a pair has the lower number
    to_variable: PaddedIncidence
    to_pair: PaddedIncidence | None  # None: these tables take no part in pair moves

    def cells(self, x: Tensor) -> Tensor:
        """Flat table cells of assignments, (R, N) to (R, C)."""
        return (pick(x, self.scopes) * self.strides).sum(2)

    def steps(self, shift: Tensor) -> Tensor:
        """How far moves shift the cell of each table, (R, N, O) to (R, C, A, O)."""
        return pick(shift, self.scopes) * self.strides[:, None]


@dataclass(frozen=True, eq=False)
class BudgetIndex:
    """Budgets of one size."""

    scopes: Tensor  # shape: (C, n)
    to_variable: PaddedIncidence
    # budgets that hold both variables of a pair: gathers, or a 0/1 matrix (C, P); None: no part in pair moves
    to_pair: PaddedIncidence | Tensor | None

    def sum_to_pairs(self, values: Tensor) -> Tensor:
        """Sum over the budgets that hold both variables of each pair, (R, C) to (R, P)."""
        assert self.to_pair is not None
        if isinstance(self.to_pair, Tensor):
            return (values.float() @ self.to_pair).double()  # small integers: exact in float32
        return self.to_pair.sum(values)


@dataclass(frozen=True, eq=False)
class MoveIndex:
    """Index tensors of single and pair moves, compiled from the structure alone."""

    pairs: Tensor  # shape: (P, 2), variables that share a factor, the lower number first
    pair_to_variable: PaddedIncidence  # from the first variables of all pairs, then the second ones
    offset: Tensor  # shape: (O,), 1, 2, ..., O
    possible: Tensor  # shape: (N, O), whether a variable has that many states
    tables: tuple[TableIndex, ...]
    budgets: tuple[BudgetIndex, ...]

    @classmethod
    def of(cls, structure: Structure, shapes: tuple[tuple[int, ...], ...], max_pairs: int) -> MoveIndex:
        """Compile a structure.

        Args:
            structure: Groups ``table0``, ``table1``, ..., ``budget0``, ...
            shapes: The shapes of the tables in each group.
            max_pairs: Groups of factors give pair moves, in order, as long as there are at most this many.
        """
        n, cards = structure.num_variables, structure.cardinalities
        assert cards is not None
        scopes = [group.scopes.cpu() for group in structure.groups.values()]
        pairs, pair_of_slot = _pairs(scopes, n, max_pairs)
        to_variable = [PaddedIncidence.of(s.reshape(-1), n) for s in scopes]
        tables = []
        for g, shape in enumerate(shapes):
            first, second = axes = torch.triu_indices(len(shape), len(shape), 1)
            swapped = (scopes[g][:, first] > scopes[g][:, second])[:, :, None, None]
            strides = torch.tensor([prod(shape[a + 1 :]) for a in range(len(shape))], dtype=torch.int64)
            to_pair = PaddedIncidence.of(pair_of_slot[g], len(pairs)) if len(pair_of_slot[g]) else None
            tables.append(TableIndex(scopes[g], strides, axes, swapped, to_variable[g], to_pair))
        budgets = []
        for g in range(len(shapes), len(scopes)):
            of_pairs = _budgets_of_pairs(pair_of_slot[g], len(scopes[g]), len(pairs))
            budgets.append(BudgetIndex(scopes[g], to_variable[g], of_pairs))
        offset = torch.arange(1, max(2, int(cards.max()) if n else 1))
        possible = offset < cards.cpu()[:, None]
        pair_to_variable = PaddedIncidence.of(pairs.t().reshape(-1), n)
        index = cls(pairs, pair_to_variable, offset, possible, tuple(tables), tuple(budgets))
        return map_tensors(index, lambda t: t.to(structure.device))

    @property
    def groups(self) -> list[tuple[Tensor, PaddedIncidence]]:
        """The scopes of every group of factors, and their incidence on the variables."""
        tables = [(t.scopes, t.to_variable) for t in self.tables]
        return tables + [(u.scopes, u.to_variable) for u in self.budgets]


def pick(values: Tensor, places: Tensor) -> Tensor:
    """``values[:, places]``, through the faster ``index_select``."""
    picked = values.index_select(1, places.reshape(-1))
    return picked.reshape(values.shape[0], *places.shape, *values.shape[2:])


def _pairs(scopes: list[Tensor], n: int, limit: int) -> tuple[Tensor, list[Tensor]]:
    """The distinct pairs that share a factor, (P, 2), and the pair of each of the C·A(A-1)/2 slots of every group."""
    keys: list[Tensor] = []
    total = 0
    for s in scopes:
        first, second = torch.triu_indices(s.shape[1], s.shape[1], 1)
        slots = len(s) * len(first)
        if total + slots > limit:
            keys.append(s.new_zeros(0))
            continue
        total += slots
        low, high = torch.minimum(s[:, first], s[:, second]), torch.maximum(s[:, first], s[:, second])
        keys.append((low * n + high).reshape(-1))
    distinct, pair_of_slot = torch.unique(torch.cat([torch.zeros(0, dtype=torch.int64), *keys]), return_inverse=True)
    pairs = torch.stack([distinct // max(1, n), distinct % max(1, n)], 1)
    return pairs, list(torch.split(pair_of_slot, [len(k) for k in keys]))


def _budgets_of_pairs(pair_of_slot: Tensor, budgets: int, pairs: int) -> PaddedIncidence | Tensor | None:
    """From budgets to the pairs inside them: as a 0/1 matrix if that is small, else as gathers."""
    if not len(pair_of_slot):
        return None
    budget_of_slot = torch.arange(budgets).repeat_interleave(len(pair_of_slot) // budgets)
    if budgets * pairs <= _SMALL_MATRIX:
        matrix = torch.zeros(budgets, pairs)
        matrix[budget_of_slot, pair_of_slot] = 1.0
        return matrix
    slots = PaddedIncidence.of(pair_of_slot, pairs).slots
    return PaddedIncidence(torch.cat([budget_of_slot, torch.tensor([budgets])])[slots])
