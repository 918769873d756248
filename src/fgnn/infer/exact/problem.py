"""The variables that propagation leaves free, and the factors over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, BudgetShape, TableShape


@dataclass(frozen=True)
class Source:
    """The numbers of a factor in a batch: the unaries of a variable, a table of a group, the counts of a budget."""

    kind: Literal["unary", "table", "count"]
    group: int
    index: int


@dataclass(frozen=True, eq=False)
class Relation:
    """A factor over free variables: which joint states are allowed, and where their numbers are."""

    scope: tuple[int, ...]
    allowed: NDArray[np.bool_] | None  # shape: (k_1, ..., k_A); None: all
    source: Source | None  # None: no numbers, only `allowed`
    cells: NDArray[np.int64] | None  # shape: as `allowed`, the entry of the source at each joint state; None: in order


@dataclass(frozen=True)
class Limit:
    """A budget over free variables: ``lower <= ones <= upper``, with the loosest bounds of all models.

    ``source`` has 0 or -inf for every count of ones, of which ``offset`` are fixed. A list needs it only if models
    differ in their bounds (not ``shared``).
    """

    scope: tuple[int, ...]
    lower: int
    upper: int
    source: Source
    offset: int
    shared: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """Free variables are 0..F-1; variables from F on are auxiliary (counters) and not part of the answer."""

    cardinalities: tuple[int, ...]
    variables: NDArray[np.int64]  # shape: (F,), the model's number of each free variable
    states: NDArray[np.int64]  # shape: (F, K), the model's number of each live state, in order
    fixed: NDArray[np.int64]  # shape: (N,), the state of each fixed variable, -1 where free
    relations: tuple[Relation, ...]
    limits: tuple[Limit, ...]
    constants: tuple[tuple[Source, int], ...]  # entries that are part of every feasible assignment


def free_problem(structure: AllowedStates, live: NDArray[np.bool_]) -> Problem:
    """Remove the states that propagation excluded and the variables it fixed."""
    r = _Reduction(structure, live)
    return Problem(r.cards, r.variables, r.states, r.fixed, tuple(r.relations), tuple(r.limits), tuple(r.constants))


class _Reduction:
    """Collects the factors over free variables, and the constants from fixed ones."""

    def __init__(self, structure: AllowedStates, live: NDArray[np.bool_]) -> None:
        self.live, counts = live, live.sum(1)
        self.fixed = np.where(counts == 1, live.argmax(1), -1)
        self.variables = np.flatnonzero(counts > 1)
        self.number = np.full(len(live), -1)
        self.number[self.variables] = np.arange(len(self.variables))
        # Live states first, in order: a live state's index in its row is its number among the live ones.
        free = live[self.variables]
        every = np.arange(live.shape[1])
        self.states = np.tile(every, (len(free), 1)) if free.all() else np.argsort(~free, axis=1, kind="stable")
        self.cards = tuple(counts[self.variables].tolist())
        self.whole = counts == structure.cardinalities  # variables that keep all states
        self.relations: list[Relation] = []
        self.limits: list[Limit] = []
        self.constants = [(Source("unary", 0, int(i)), int(self.fixed[i])) for i in np.flatnonzero(self.fixed >= 0)]
        for f, i in enumerate(self.variables.tolist()):
            cells = None if self.whole[i] else self.states[f, : counts[i]]
            self.relations.append(Relation((f,), None, Source("unary", 0, i), cells))
        for g, table in enumerate(structure.tables):
            self._add_tables(g, table)
        for g, budget in enumerate(structure.budgets):
            self._add_budgets(g, budget)

    def _add_tables(self, group: int, table: TableShape) -> None:
        number, shape = self.number, table.allowed.shape[1:]
        all_allowed = np.asarray(table.allowed.reshape(len(table.scopes), -1).all(1))
        unchanged = np.asarray(self.whole[table.scopes].all(1))
        for c, scope in enumerate(table.scopes.tolist()):
            source = Source("table", group, c)
            if unchanged[c] and (number[scope] >= 0).all():
                allowed = None if all_allowed[c] else table.allowed[c]
                self.relations.append(Relation(tuple(number[scope].tolist()), allowed, source, None))
                continue
            live = np.ix_(*(np.flatnonzero(self.live[i, :k]) for i, k in zip(scope, shape, strict=True)))
            free = [a for a, i in enumerate(scope) if number[i] >= 0]
            sizes = [live[a].size for a in free]
            cells = np.arange(int(np.prod(shape))).reshape(shape)[live].reshape(sizes)
            if not free:
                self.constants.append((source, int(cells)))
                continue
            allowed = table.allowed[c][live].reshape(sizes)
            free_scope = tuple(int(number[scope[a]]) for a in free)
            self.relations.append(Relation(free_scope, None if allowed.all() else allowed, source, cells))

    def _add_budgets(self, group: int, budget: BudgetShape) -> None:
        fixed_ones = (self.fixed[budget.scopes] == 1).sum(1)
        for c, scope in enumerate(budget.scopes.tolist()):
            free = tuple(int(self.number[i]) for i in scope if self.number[i] >= 0)
            offset = int(fixed_ones[c])
            source, shared = Source("count", group, c), bool(budget.shared[c])
            lower, upper = max(0, int(budget.lower[c]) - offset), min(len(free), int(budget.upper[c]) - offset)
            if not free:
                if not shared:
                    self.constants.append((source, offset))
            elif not shared or lower > 0 or upper < len(free):
                self.limits.append(Limit(free, lower, upper, source, offset, shared))
