"""Noisy-MAX: a conditional table from one distribution per state of each parent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SUM = 1e-3  # a distribution may be printed with few digits


def noisy_max(numbers: NDArray[np.float64], parents: Sequence[int], states: int) -> NDArray[np.float64]:
    r"""P(child | parents), the child on the last axis (Díez, 1993).

    Every parent causes some state of the child on its own, and the child takes the highest of them:

    .. math:: P(Y \le y \mid x) = P_0(y) \prod_i P_i(Y \le y \mid x_i)

    Args:
        numbers: The distributions, one row of ``states`` numbers each or, transposed, one column each, whichever sums
            to 1. They stand for all states of the first parent, then of the second and so on. State 0 may be missing
            throughout; then it causes the child's state 0. One more at the end is the leak :math:`P_0`.
        parents: The number of states of each parent.
        states: The number of states of the child.
    """
    if len(numbers) not in noisy_sizes(parents, states):
        raise ValueError(f"Expected {noisy_sizes(parents, states)} numbers of a noisy-MAX (got {len(numbers)})")
    count, full = len(numbers) // states, sum(parents)
    rows = _distributions(numbers, count, states)
    whole = count >= full
    leak = np.cumsum(rows[-1]) if count in (full + 1, full + 1 - len(parents)) and count != full else np.ones(states)
    below = np.broadcast_to(leak, (*parents, states)).copy()
    at = 0
    for axis, k in enumerate(parents):
        given = np.cumsum(rows[at : at + k - (not whole)], axis=1)
        at += len(given)
        cause = given if whole else np.concatenate([np.ones((1, states)), given])
        below *= cause.reshape(*(k if a == axis else 1 for a in range(len(parents))), states)
    return np.maximum(np.diff(below, axis=-1, prepend=0.0), 0.0)


def noisy_sizes(parents: Sequence[int], states: int) -> list[int]:
    """How many numbers a noisy-MAX may have: with or without state 0 of the parents, with or without a leak."""
    full = sum(parents)
    return sorted({states * n for n in (full - len(parents), full - len(parents) + 1, full, full + 1)})


def _distributions(numbers: NDArray[np.float64], count: int, states: int) -> NDArray[np.float64]:
    """The distributions as rows, normalised.  # shape: (count, states)"""
    options = [numbers.reshape(count, states), numbers.reshape(states, count).T]
    fitting = [rows for rows in options if (np.abs(rows.sum(1) - 1.0) <= _SUM).all()]
    if not fitting:
        raise ValueError(f"Expected {count} distributions of a noisy-MAX (got numbers that do not sum to 1)")
    if len(fitting) == 2 and not np.array_equal(fitting[0], fitting[1]):
        raise ValueError("Expected distributions in rows or in columns (got numbers that sum to 1 in both)")
    return np.asarray(fitting[0] / fitting[0].sum(1, keepdims=True))
