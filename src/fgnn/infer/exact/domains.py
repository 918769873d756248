"""Which states can occur in any feasible assignment: generalised arc consistency over tables and budgets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, BudgetShape, TableShape

# Passes over all factors; long chains of consequences beyond it are left to the elimination itself.
_ROUNDS = 64


def propagate(structure: AllowedStates) -> NDArray[np.bool_] | None:
    """The states (N, K) that survive, or None where some variable has none left: no model has a feasible assignment."""
    live = structure.live.copy()
    tight = [t for t in structure.tables if not t.allowed.all()]
    full = np.arange(live.shape[1]) < structure.cardinalities[:, None]
    for _ in range(_ROUNDS):
        if not live.any(1).all():
            return None
        before = int(live.sum())
        # A table without -inf entries rules nothing out.
        for table in tight:
            _by_table(live, table)
        for budget in structure.budgets:
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
        # Several tables may speak of one variable: all of them must support a state.
        np.logical_and.at(live[:, :k], table.scopes[:, axis], supported)


def _by_budget(live: NDArray[np.bool_], budget: BudgetShape) -> bool:
    """Fix what a budget forces; False where it cannot be met."""
    can_be_zero, can_be_one = (live[budget.scopes, s] for s in (0, 1))  # shape: (C, n)
    ones = (can_be_one & ~can_be_zero).sum(1)  # must be 1
    most = can_be_one.sum(1)  # may be 1
    if (ones > budget.upper).any() or (most < budget.lower).any():
        return False
    no_more = (ones == budget.upper)[:, None] & can_be_zero
    no_less = (most == budget.lower)[:, None] & can_be_one
    live[budget.scopes[no_more], 1] = False
    live[budget.scopes[no_less], 0] = False
    return True
