"""The variables still free after propagation, and the factors over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, BudgetShape, TableShape


@dataclass(frozen=True)
class Source:
    """Where a factor's numbers are in a batch: a variable's unaries, a table of a group, a budget's allowed counts."""

    kind: Literal["unary", "table", "count"]
    group: int
    index: int


@dataclass(frozen=True, eq=False)
class Relation:
    """A factor over free variables: which joint states are allowed, and where their numbers are."""

    scope: tuple[int, ...]
    allowed: NDArray[np.bool_] | None  # shape: (k_1, ..., k_A); None: all
    source: Source | None  # None: no numbers, only `allowed`
    cells: NDArray[np.int64] | None  # the entry of the source at each joint state, as `allowed`; None: in order


@dataclass(frozen=True)
class Limit:
    """A budget over free variables: ``lower <= ones <= upper``, the loosest bounds of all models.

    ``source`` holds 0 or -inf for every count of ones, of which ``offset`` are fixed; a list needs it only where models
    have bounds of their own (not ``shared``).
    """

    scope: tuple[int, ...]
    lower: int
    upper: int
    source: Source
    offset: int
    shared: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """Free variables are numbered 0..F-1; numbers from F on are auxiliary (counters), with no state to report."""

    cardinalities: tuple[int, ...]
    variables: NDArray[np.int64]  # shape: (F,), the model's number of each free variable
    states: NDArray[np.int64]  # shape: (F, K), the model's state of each live state, in order
    fixed: NDArray[np.int64]  # shape: (N,), the state of each fixed variable, -1 where free
    relations: tuple[Relation, ...]
    limits: tuple[Limit, ...]
    constants: tuple[tuple[Source, int], ...]  # entries that every feasible assignment takes


def free_problem(structure: AllowedStates, live: NDArray[np.bool_]) -> Problem:
    """Drop the states that propagation ruled out and the variables it fixed."""
    counts = live.sum(1)
    fixed = np.where(counts == 1, live.argmax(1), -1)
    variables = np.flatnonzero(counts > 1)
    number = np.full(len(live), -1)
    number[variables] = np.arange(len(variables))
    # Live states first, in order: the rank of a state is its number among the live ones.
    states = np.argsort(~live[variables], axis=1, kind="stable")
    whole = counts == structure.cardinalities

    relations = []
    constants = [(Source("unary", 0, int(i)), int(fixed[i])) for i in np.flatnonzero(fixed >= 0)]
    for f, i in enumerate(variables.tolist()):
        cells = None if whole[i] else states[f, : counts[i]]
        relations.append(Relation((f,), None, Source("unary", 0, i), cells))
    for g, table in enumerate(structure.tables):
        _add_tables(relations, constants, g, table, live, number, whole)
    limits: list[Limit] = []
    for g, budget in enumerate(structure.budgets):
        _add_budgets(limits, constants, g, budget, fixed, number)
    cards = tuple(counts[variables].tolist())
    return Problem(cards, variables, states, fixed, tuple(relations), tuple(limits), tuple(constants))


def _add_tables(
    relations: list[Relation],
    constants: list[tuple[Source, int]],
    group: int,
    table: TableShape,
    live: NDArray[np.bool_],
    number: NDArray[np.int64],
    whole: NDArray[np.bool_],
) -> None:
    shape = table.allowed.shape[1:]
    all_allowed = np.asarray(table.allowed.reshape(len(table.scopes), -1).all(1))
    untouched = np.asarray(whole[table.scopes].all(1))
    for c, scope in enumerate(table.scopes.tolist()):
        source = Source("table", group, c)
        if untouched[c] and (number[scope] >= 0).all():
            allowed = None if all_allowed[c] else table.allowed[c]
            relations.append(Relation(tuple(number[scope].tolist()), allowed, source, None))
            continue
        kept = np.ix_(*(np.flatnonzero(live[i, :k]) for i, k in zip(scope, shape, strict=True)))
        free = [a for a, i in enumerate(scope) if number[i] >= 0]
        sizes = [kept[a].size for a in free]
        cells = np.arange(int(np.prod(shape))).reshape(shape)[kept].reshape(sizes)
        if not free:
            constants.append((source, int(cells)))
            continue
        some = table.allowed[c][kept].reshape(sizes)
        relations.append(
            Relation(tuple(int(number[scope[a]]) for a in free), None if some.all() else some, source, cells)
        )


def _add_budgets(
    limits: list[Limit],
    constants: list[tuple[Source, int]],
    group: int,
    budget: BudgetShape,
    fixed: NDArray[np.int64],
    number: NDArray[np.int64],
) -> None:
    ones = (fixed[budget.scopes] == 1).sum(1)
    for c, scope in enumerate(budget.scopes.tolist()):
        free = tuple(int(number[i]) for i in scope if number[i] >= 0)
        offset = int(ones[c])
        source, shared = Source("count", group, c), bool(budget.shared[c])
        lower, upper = max(0, int(budget.lower[c]) - offset), min(len(free), int(budget.upper[c]) - offset)
        if not free:
            if not shared:
                constants.append((source, offset))
        elif not shared or lower > 0 or upper < len(free):
            limits.append(Limit(free, lower, upper, source, offset, shared))
