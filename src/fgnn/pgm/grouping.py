"""Groups of factors of one shape, from the chunks in which they were added to a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.factors import BudgetGroup, TableGroup

TableChunk = tuple[NDArray[np.int64], NDArray[np.float64]]  # scopes (C, A) and values (C, *shape)
BudgetChunk = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # scopes (C, n), at least and at most (C,)


def group_tables(chunks: list[TableChunk]) -> tuple[TableGroup, ...]:
    """Group tables by shape, in insertion order."""
    by_shape: dict[tuple[int, ...], list[tuple[int, NDArray[np.int64], NDArray[np.float64]]]] = {}
    start = 0
    for scopes, values in chunks:
        by_shape.setdefault(values.shape[1:], []).append((start, scopes, values))
        start += len(scopes)
    return tuple(
        TableGroup(
            np.concatenate([s for _, s, _ in parts]),
            np.concatenate([v for _, _, v in parts]),
            np.concatenate([np.arange(at, at + len(s)) for at, s, _ in parts]),
        )
        for parts in by_shape.values()
    )


def as_views(chunks: list[TableChunk], groups: tuple[TableGroup, ...]) -> list[TableChunk]:
    """The chunks as views into the groups, so that large tables are stored once."""
    by_shape = {group.shape: group for group in groups}
    taken = dict.fromkeys(by_shape, 0)
    views = []
    for scopes, values in chunks:
        shape = values.shape[1:]
        part = slice(taken[shape], taken[shape] + len(scopes))
        taken[shape] = part.stop
        views.append((by_shape[shape].scopes[part], by_shape[shape].values[part]))
    return views


def group_budgets(chunks: list[BudgetChunk]) -> tuple[BudgetGroup, ...]:
    """Group budgets by size, in insertion order."""
    by_size: dict[int, list[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]] = {}
    start = 0
    for scopes, lower, upper in chunks:
        by_size.setdefault(scopes.shape[1], []).append((start, scopes, lower, upper))
        start += len(scopes)
    return tuple(
        BudgetGroup(
            np.concatenate([s for _, s, _, _ in parts]),
            np.concatenate([low for _, _, low, _ in parts]),
            np.concatenate([high for _, _, _, high in parts]),
            np.concatenate([np.arange(at, at + len(s)) for at, s, _, _ in parts]),
        )
        for parts in by_size.values()
    )
