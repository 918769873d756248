"""The two kinds of factor: tables of log-potentials, and budgets over binary variables.

Factors of equal shape form *groups*, so that operations on a model are array operations over a group instead of
Python loops over factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Table:
    """One factor θ_c: ``values[x_1, ..., x_A]`` is its log-potential at ``x_c`` (``-inf`` forbids)."""

    scope: tuple[int, ...]
    values: NDArray[np.float64]  # shape: (k_1, ..., k_A)


@dataclass(frozen=True)
class Budget:
    """One constraint ``at_least <= sum of x_i over the scope <= at_most`` on binary variables."""

    scope: tuple[int, ...]
    at_least: int
    at_most: int


@dataclass(frozen=True, eq=False)
class TableGroup:
    """All tables of a model whose axes have the same cardinalities."""

    scopes: NDArray[np.int64]  # shape: (C, A)
    values: NDArray[np.float64]  # shape: (C, k_1, ..., k_A)
    index: NDArray[np.int64]  # shape: (C,), the table's insertion order

    @property
    def shape(self) -> tuple[int, ...]:
        """The cardinalities (k_1, ..., k_A) of the axes."""
        return self.values.shape[1:]


@dataclass(frozen=True, eq=False)
class BudgetGroup:
    """All budgets of a model over the same number of variables."""

    scopes: NDArray[np.int64]  # shape: (C, n)
    at_least: NDArray[np.int64]  # shape: (C,)
    at_most: NDArray[np.int64]  # shape: (C,)
    index: NDArray[np.int64]  # shape: (C,), the budget's insertion order
