"""Checks of what is added to a model: variables, states, scopes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.pgm.arrays import integers
from fgnn.pgm.factors.kind import Kind, Shape


def checked_variable(variable: int, count: int) -> int:
    """A variable of a model that has ``count``."""
    if not 0 <= int(variable) < count:
        raise ValueError(f"Expected a variable below {count} (got {variable})")
    return int(variable)


def check_state(variable: int, state: int, cardinality: int) -> None:
    """Raise a `ValueError` unless the variable has this state."""
    if not 0 <= state < cardinality:
        raise ValueError(f"Expected a state below {cardinality} for variable {variable} (got {state})")


def checked_scopes(scopes: ArrayLike, count: int) -> NDArray[np.int64]:
    """A private copy of scopes (C, A), each of distinct variables of a model that has ``count``."""
    variables = integers(scopes, "variables in a scope").copy()
    if variables.ndim != 2:
        raise ValueError(f"Expected scopes of shape (C, A) (got {variables.shape})")
    wrong = variables[(variables < 0) | (variables >= count)]
    if wrong.size:
        raise ValueError(f"Expected variables below {count} in a scope (got {wrong.max()})")
    ordered = np.sort(variables, axis=1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if repeated.any():
        scope = tuple(variables[repeated][0].tolist())
        raise ValueError(f"Expected distinct variables in a scope (got {scope})")
    return variables


def common_shape(kind: Kind, cards: NDArray[np.int64]) -> Shape:
    """The cardinalities (n,) that all scopes of a group share, of those (C, n) they have."""
    if not cards.size:
        raise ValueError(f"Expected a {kind.name} over at least one variable (got an empty scope)")
    if len(cards) > 1 and (cards != cards[0]).any():
        other = np.flatnonzero((cards != cards[0]).any(1))
        got = " and ".join(str(tuple(cards[c].tolist())) for c in (0, other[0]))
        raise ValueError(f"Expected {kind.name} factors of the same cardinalities (got {got})")
    return tuple(cards[0].tolist())
