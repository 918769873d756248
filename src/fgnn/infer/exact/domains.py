"""The states that can occur in a feasible assignment: generalised arc consistency over tables and budgets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, BudgetShape, TableShape

# Passes over all factors; longer chains of implications are left to the elimination.
_ROUNDS = 64


def propagate(structure: AllowedStates, check: Callable[[], None] = lambda: None) -> NDArray[np.bool_] | None:
    """The states (N, K) that remain; None if some variable has none, so that no model has a feasible assignment.

    ``check`` is called before each group of factors and may raise.
    """
    live = structure.live.copy()
    tight = [t for t in structure.tables if not t.allowed.all()]
    full = np.arange(live.shape[1]) < structure.cardinalities[:, None]
    for _ in range(_ROUNDS):
        if not live.any(1).all():
            return None
        before = int(live.sum())
        # A table without -inf entries excludes nothing.
        for table in tight:
            check()
            _by_table(live, table)
        for budget in structure.budgets:
            check()
            if not _by_budget(live, budget):
                return None
        if int(live.sum()) == before or bool((live == full).all() and not tight):
            break
    return live if live.any(1).all() else None


def _by_table(live: NDArray[np.bool_], table: TableShape) -> None:
    count, arity = table.scopes.shape
    shape = table.allowed.shape[1:]
    possible = table.allowed.copy()
    for axis, k in enumerate(shape):
        spread = [1] * arity
        spread[axis] = k
        possible &= live[table.scopes[:, axis], :k].reshape(count, *spread)
    for axis, k in enumerate(shape):
        others = tuple(1 + a for a in range(arity) if a != axis)
        supported = possible.any(axis=others)  # shape: (C, k)
        # A state needs the support of all tables over its variable.
        np.logical_and.at(live[:, :k], table.scopes[:, axis], supported)


def _by_budget(live: NDArray[np.bool_], budget: BudgetShape) -> bool:
    """Exclude the states that a budget rules out; returns False if it cannot be satisfied."""
    can_be_zero, can_be_one = (live[budget.scopes, s] for s in (0, 1))  # shape: (C, n)
    fewest, most = (can_be_one & ~can_be_zero).sum(1), can_be_one.sum(1)
    if (fewest > budget.upper).any() or (most < budget.lower).any():
        return False
    must_be_zero = (fewest == budget.upper)[:, None] & can_be_zero
    must_be_one = (most == budget.lower)[:, None] & can_be_one
    live[budget.scopes[must_be_zero], 1] = False
    live[budget.scopes[must_be_one], 0] = False
    return True
