"""Tables of log-potentials, the general factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.factors.grouping import grouped


@dataclass(frozen=True, eq=False)
class Table:
    """One factor θ_c: ``values[x_1, ..., x_A]`` is its log-potential at ``x_c`` (``-inf`` forbids)."""

    scope: tuple[int, ...]
    values: NDArray[np.float64]  # shape: (k_1, ..., k_A)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.scope == other.scope and np.array_equal(self.values, other.values)


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


TableChunk = tuple[NDArray[np.int64], NDArray[np.float64]]  # scopes (C, A) and values (C, *shape)


def group_tables(chunks: list[TableChunk]) -> tuple[TableGroup, ...]:
    """Group tables by shape, in insertion order."""
    return tuple(TableGroup(*columns) for columns in grouped(chunks, lambda chunk: chunk[1].shape[1:]))


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
