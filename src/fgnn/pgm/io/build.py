"""Shared by all readers: table sizes, and tables added to the model in runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.model import GraphicalModel

# NumPy 1 arrays have at most 32 axes; a group of tables uses one for the factors.
MOST_VARIABLES = 31
_RUN_ENTRIES = 1 << 20


def table_size(cardinalities: Iterable[int], most: int) -> int:
    """The product of the cardinalities, or the first partial product above ``most``."""
    size = 1
    for k in cardinalities:
        size *= k
        if size > most:
            break
    return size


def log_potentials(potentials: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the log of potentials in place; 0 becomes ``-inf``."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(potentials, out=potentials))


class TableRuns:
    """Adds tables to a model in order, consecutive tables of one shape at once; a context manager."""

    def __init__(self, model: GraphicalModel) -> None:
        self.model = model
        self._scopes: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._entries = 0
        self._unaries = np.zeros(int(model.cardinalities.sum()))
        self._offsets = np.cumsum(model.cardinalities) - model.cardinalities

    def __enter__(self) -> TableRuns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._flush()
            self.model.add_unaries(self._unaries)

    def add(self, scope: Sequence[int], values: NDArray[np.float64]) -> None:
        """Add one table."""
        self.extend(np.asarray([scope], dtype=np.int64), values[None])

    def extend(self, scopes: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add tables of one shape: ``scopes`` (C, A), ``values`` (C, k_1, ..., k_A).

        Scopes of one variable or none go to the unaries and the constant.
        """
        if scopes.shape[1] == 0:
            self.model.constant += float(values.sum())
            return
        if scopes.shape[1] == 1:
            np.add.at(self._unaries, self._offsets[scopes] + np.arange(values.shape[1]), values)
            return
        if self._values and self._values[-1].shape[1:] != values.shape[1:]:
            self._flush()
        self._scopes.append(scopes)
        self._values.append(values)
        self._entries += values.size
        if self._entries >= _RUN_ENTRIES:
            self._flush()

    def _flush(self) -> None:
        if self._values:
            one = len(self._values) == 1
            scopes = self._scopes[0] if one else np.concatenate(self._scopes)
            values = self._values[0] if one else np.concatenate(self._values)
            self._scopes, self._values, self._entries = [], [], 0
            self.model.add_tables(scopes, values)
