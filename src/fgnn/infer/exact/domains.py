"""The states that can occur in a feasible assignment: arc consistency over tables, bounds of the sums of counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, CounterShape, TableShape
from fgnn.pgm.factors import Counter

# Passes over all factors; longer chains of implications are left to the elimination.
_ROUNDS = 64
_NEVER = 1 << 40  # a weight that exceeds every sum


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
        for group in structure.counters:
            check()
            if not (_by_ones if group.counter.counts_ones else _by_sums)(live, group):
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


def _by_ones(live: NDArray[np.bool_], group: CounterShape) -> bool:
    """`_by_sums` for the number of ones, without gaps."""
    can_be_zero, can_be_one = (live[group.scopes, s] for s in (0, 1))  # shape: (C, n)
    fewest, most = (can_be_one & ~can_be_zero).sum(1), can_be_one.sum(1)
    if (fewest > group.upper).any() or (most < group.lower).any():
        return False
    must_be_zero = (fewest == group.upper)[:, None] & can_be_zero
    must_be_one = (most == group.lower)[:, None] & can_be_one
    live[group.scopes[must_be_zero], 1] = False
    live[group.scopes[must_be_one], 0] = False
    return True


def _by_sums(live: NDArray[np.bool_], group: CounterShape) -> bool:
    """Exclude the states with which no sum within the bounds can be reached; returns False if none can at all."""
    weights = _padded(group.counter, live.shape[1])  # shape: (n, K)
    here = live[group.scopes]  # shape: (C, n, K)
    least = np.where(here, weights, _NEVER).min(2)  # shape: (C, n)
    if (least == _NEVER).any():
        return False
    if not group.counter.modulus:
        most = np.where(here, weights, -1).max(2)
        low, high = least.sum(1), most.sum(1)
        if (low > group.upper).any() or (high < group.lower).any():
            return False
        room = (group.upper - low)[:, None] + least
        need = (group.lower - high)[:, None] + most
        misfit = here & ((weights > room[..., None]) | (weights < need[..., None]))
        _exclude(live, group.scopes, misfit)
        here &= ~misfit
        least = np.where(here, weights, _NEVER).min(2)
        if (least == _NEVER).any():
            return False
    if group.allowed is not None:
        _by_last(live, group, here, least, weights)
    return True


def _by_last(
    live: NDArray[np.bool_],
    group: CounterShape,
    here: NDArray[np.bool_],
    least: NDArray[np.int64],
    weights: NDArray[np.int64],
) -> None:
    """Where at most one variable is free, only the states that complete an allowed sum are left."""
    assert group.allowed is not None
    several = here.sum(2) > 1
    (rows,) = (several.sum(1) <= 1).nonzero()
    last = several[rows].argmax(1)
    sums = (least[rows].sum(1) - least[rows, last])[:, None] + weights[last]  # shape: (R, K)
    # A padded state may lie beyond the last sum.
    sums = sums % group.counter.modulus if group.counter.modulus else sums.clip(max=group.allowed.shape[1] - 1)
    fits = np.take_along_axis(group.allowed[rows], sums, 1)
    _exclude(live, group.scopes[rows, last], here[rows, last] & ~fits)


def _exclude(live: NDArray[np.bool_], variables: NDArray[np.int64], misfit: NDArray[np.bool_]) -> None:
    *where, states = misfit.nonzero()
    live[variables[tuple(where)], states] = False


@lru_cache(maxsize=1024)
def _padded(counter: Counter, states: int) -> NDArray[np.int64]:
    return counter.padded(states)
