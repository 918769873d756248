"""Checks of what is added to a model: variables, scopes, tables, budgets."""

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


def check_tables(theta: NDArray[np.float64], variables: NDArray[np.int64], cards: NDArray[np.int64]) -> None:
    """Raise a `ValueError` unless θ is (C, k_1, ..., k_A) for the scopes (C, A), whose cardinalities are ``cards``."""
    count, arity = variables.shape
    if arity < 2:
        raise ValueError(f"Expected tables over two or more variables (got {arity})")
    if theta.ndim != arity + 1 or len(theta) != count:
        raise ValueError(
            f"Expected values of shape (C, k_1, ..., k_A) for {count} scopes of {arity} variables "
            f"(got shape {theta.shape})"
        )
    wrong = np.nonzero((cards != np.asarray(theta.shape[1:])).any(1))[0]
    if wrong.size:
        c = int(wrong[0])
        raise ValueError(
            f"Expected a table of shape {tuple(cards[c].tolist())} over {tuple(variables[c].tolist())} "
            f"(got {theta.shape[1:]})"
        )


def check_budgets(
    variables: NDArray[np.int64], cards: NDArray[np.int64], lower: NDArray[np.int64], upper: NDArray[np.int64]
) -> None:
    """Raise a `ValueError` unless budgets over the scopes (C, n) are of binary variables and can be met."""
    size = variables.shape[1]
    if size == 0:
        raise ValueError("Expected a budget over at least one variable (got an empty scope)")
    if (cards != 2).any():
        i, k = int(variables[cards != 2][0]), int(cards[cards != 2][0])
        raise ValueError(f"Expected binary variables in a budget (got variable {i} with {k} states)")
    if (lower < 0).any() or (upper < lower).any():
        c = int(np.nonzero((lower < 0) | (upper < lower))[0][0])
        raise ValueError(f"Expected 0 <= at_least <= at_most (got {lower[c]} and {upper[c]})")
    if (lower > size).any():
        raise ValueError(f"Expected at_least <= {size}, the size of the budget (got {int(lower.max())})")


def common_shape(kind: Kind, cards: NDArray[np.int64]) -> Shape:
    """The cardinalities (n,) that all scopes of a structured kind share, of those (C, n) they have."""
    if not cards.size:
        raise ValueError(f"Expected a {kind.name} factor over at least one variable (got an empty scope)")
    shapes = np.unique(cards, axis=0).tolist()
    if len(shapes) > 1:
        got = " and ".join(str(tuple(shape)) for shape in shapes[:2])
        raise ValueError(f"Expected {kind.name} factors of the same cardinalities (got {got})")
    return tuple(shapes[0])
