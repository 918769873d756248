"""The two kinds of factor: tables of log-potentials, and budgets over binary variables.

Factors of equal shape form *groups*, so that operations on a model are array operations over a group instead of
Python loops over factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


TableChunk = tuple[NDArray[np.int64], NDArray[np.float64]]  # scopes (C, A) and values (C, *shape)
BudgetChunk = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # scopes (C, n), at least and at most (C,)


def group_tables(chunks: list[TableChunk]) -> tuple[TableGroup, ...]:
    """Group tables by shape, in insertion order."""
    return tuple(TableGroup(*columns) for columns in _grouped(chunks, lambda chunk: chunk[1].shape[1:]))


def group_budgets(chunks: list[BudgetChunk]) -> tuple[BudgetGroup, ...]:
    """Group budgets by size, in insertion order."""
    return tuple(BudgetGroup(*columns) for columns in _grouped(chunks, lambda chunk: chunk[0].shape[1:]))


def as_views(chunks: list[TableChunk], groups: tuple[TableGroup, ...]) -> list[TableChunk]:
    """The chunks as views into the groups, so that large tables are stored once."""
    by_shape = {group.shape: group for group in groups}
    used = dict.fromkeys(by_shape, 0)
    views = []
    for scopes, values in chunks:
        shape = values.shape[1:]
        part = slice(used[shape], used[shape] + len(scopes))
        used[shape] = part.stop
        views.append((by_shape[shape].scopes[part], by_shape[shape].values[part]))
    return views


def _grouped(
    chunks: Sequence[tuple[NDArray[Any], ...]], shape_of: Callable[[Any], tuple[int, ...]]
) -> list[list[NDArray[Any]]]:
    """The columns of the chunks of each shape concatenated, with the insertion order as the last column."""
    by_shape: dict[tuple[int, ...], list[tuple[NDArray[Any], ...]]] = {}
    start = 0
    for chunk in chunks:
        stop = start + len(chunk[0])
        by_shape.setdefault(shape_of(chunk), []).append((*chunk, np.arange(start, stop)))
        start = stop
    return [[np.concatenate(column) for column in zip(*parts, strict=True)] for parts in by_shape.values()]
