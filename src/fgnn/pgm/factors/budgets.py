"""Budgets: how many of some binary variables may be 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.factors.grouping import grouped


@dataclass(frozen=True)
class Budget:
    """One constraint ``at_least <= sum of x_i over the scope <= at_most`` on binary variables."""

    scope: tuple[int, ...]
    at_least: int
    at_most: int


@dataclass(frozen=True, eq=False)
class BudgetGroup:
    """All budgets of a model over the same number of variables."""

    scopes: NDArray[np.int64]  # shape: (C, n)
    at_least: NDArray[np.int64]  # shape: (C,)
    at_most: NDArray[np.int64]  # shape: (C,)
    index: NDArray[np.int64]  # shape: (C,), the budget's insertion order


BudgetChunk = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # scopes (C, n), at least and at most (C,)


def group_budgets(chunks: list[BudgetChunk]) -> tuple[BudgetGroup, ...]:
    """Group budgets by size, in insertion order."""
    return tuple(BudgetGroup(*columns) for columns in grouped(chunks, lambda chunk: chunk[0].shape[1:]))
