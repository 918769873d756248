"""Group factors of one shape, so that operations on a model are array operations instead of loops over factors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def grouped(
    chunks: Sequence[tuple[NDArray[Any], ...]], shape_of: Callable[[Any], Hashable]
) -> list[list[NDArray[Any]]]:
    """The columns of the chunks of each shape concatenated, with the insertion order as the last column."""
    by_shape: dict[Hashable, list[tuple[NDArray[Any], ...]]] = {}
    start = 0
    for chunk in chunks:
        stop = start + len(chunk[0])
        by_shape.setdefault(shape_of(chunk), []).append((*chunk, np.arange(start, stop)))
        start = stop
    return [[np.concatenate(column) for column in zip(*parts, strict=True)] for parts in by_shape.values()]
