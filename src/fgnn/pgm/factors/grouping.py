"""Collect factors and group those alike, so that operations on a model are array operations, not loops over factors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.factors.kind import Array, Kind, Shape, StructuredGroup

Group = TypeVar("Group", bound=StructuredGroup)


class Collection(Generic[Group]):
    """Factors in the order in which they were added, in chunks, and their groups of equal kind and shape."""

    def __init__(self, of: type[Group]) -> None:
        self._of = of
        self._groups: tuple[Group, ...] | None = None
        self.chunks: list[Group] = []
        self.count = 0

    def add(self, kind: Kind, shape: Shape, scopes: NDArray[np.int64], numbers: Mapping[str, Array]) -> None:
        """Add factors whose scopes and numbers have been checked."""
        stop = self.count + len(scopes)
        self.chunks.append(self._of(kind, shape, scopes, numbers, np.arange(self.count, stop)))
        self.count, self._groups = stop, None

    @property
    def groups(self) -> tuple[Group, ...]:
        """The factors by kind and shape, each group in insertion order; chunks become views of them."""
        if self._groups is None:
            alike: dict[Any, list[int]] = {}
            for at, chunk in enumerate(self.chunks):
                sizes = tuple(v.shape[1:] for v in chunk.numbers.values())
                alike.setdefault((chunk.kind, chunk.shape, sizes), []).append(at)
            self._groups = tuple(self._join(members) for members in alike.values())
        return self._groups

    def _join(self, members: list[int]) -> Group:
        """One group of several chunks, which become views of it, so that large tables are stored once."""
        parts = [self.chunks[at] for at in members]
        first = parts[0]
        if len(parts) == 1:
            return first
        group = self._of(
            first.kind,
            first.shape,
            np.concatenate([part.scopes for part in parts]),
            {name: np.concatenate([part.numbers[name] for part in parts]) for name in first.numbers},
            np.concatenate([part.index for part in parts]),
        )
        start = 0
        for at, part in zip(members, parts, strict=True):
            rows = slice(start, start + len(part.scopes))
            self.chunks[at] = group.some(rows)
            start = rows.stop
        return group

    def copy(self) -> Self:
        """An independent collection of the same arrays, which are never written to."""
        twin = copy.copy(self)
        twin.chunks = list(self.chunks)
        return twin
