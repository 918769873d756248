"""What one step of an elimination does, as indices: shared by every step that looks alike, on any executor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.states import States


@dataclass(frozen=True, eq=False)
class Term:
    """Rows of a slot, ``slot[rows]``; all of them, in order, where ``rows`` is None."""

    slot: int
    rows: Tensor | None  # shape: (n,), int32

    def to(self, device: torch.device) -> Term:
        return self if self.rows is None else replace(self, rows=self.rows.to(device))


@dataclass(frozen=True, eq=False)
class ListedShape:
    r"""A step over an explicit list of feasible joint states.

    .. math:: \mu(s) = \max_{r} \sum_t \text{slot}_t[\text{rows}_{t,r}(s)]

    Slots are the inputs (a factor's entries or an earlier step's result, states first), then one sum per entry of
    ``merges``. The states ``s`` of the result are sorted by the number of states of the eliminated variable that go
    with them, the most first, so that the r-th of these exist for a prefix of ``lengths[r]`` rows: ``blocks[r]`` are
    the terms of that prefix. Joint row ``starts[r] + s`` is the r-th choice for ``s``: there the eliminated variable is
    in state ``digits[...]`` and the result of child c is read at ``child_rows[c][...]``.
    """

    merges: tuple[tuple[Term, ...], ...]
    blocks: tuple[tuple[Term, ...], ...]
    lengths: tuple[int, ...]
    starts: Tensor  # shape: (R,), int64
    digits: Tensor  # shape: (J,), int32
    child_rows: tuple[Tensor, ...]  # each of shape (J,), int32
    message: States

    @property
    def joint(self) -> int:
        """The number of feasible joint states."""
        return len(self.digits)

    @property
    def rows(self) -> int:
        """The number of states of the result."""
        return len(self.message)

    def to(self, device: torch.device) -> ListedShape:
        return replace(
            self,
            merges=tuple(tuple(t.to(device) for t in terms) for terms in self.merges),
            blocks=tuple(tuple(t.to(device) for t in terms) for terms in self.blocks),
            starts=self.starts.to(device),
            digits=self.digits.to(device),
            child_rows=tuple(rows.to(device) for rows in self.child_rows),
        )


@dataclass(frozen=True, eq=False)
class DenseInput:
    """A slot as a full table over some axes of the step: ``slot[rows]`` reshaped to ``shape`` (1 for other axes).

    Row -1 stands for -inf: the states that a list leaves out.
    """

    rows: Tensor | None  # shape: (n,), int32
    shape: tuple[int, ...]
    gaps: bool  # whether some row is -1

    def to(self, device: torch.device) -> DenseInput:
        return self if self.rows is None else replace(self, rows=self.rows.to(device))


@dataclass(frozen=True, eq=False)
class DenseShape:
    r"""A step over all joint states: the result is a full table with one axis per variable.

    Axes run from the variable eliminated last to the one eliminated now, which is the innermost, so every table's axes
    are a subsequence and factors add up as broadcast views. Slots are ``inputs``, then one per entry of ``merges``
    (slots added up over their joint axes); the result is the maximum over the last axis of the sum of ``terms``.
    """

    cardinalities: tuple[int, ...]  # in the order of the axes
    inputs: tuple[DenseInput, ...]
    merges: tuple[tuple[int, ...], ...]
    terms: tuple[int, ...]
    listed_rows: tuple[Tensor | None, ...]  # per child: its row for each of its joint states, None: the states in order

    @property
    def joint(self) -> int:
        return int(np.prod(self.cardinalities, dtype=object))

    @property
    def rows(self) -> int:
        return int(np.prod(self.cardinalities[:-1], dtype=object))

    def to(self, device: torch.device) -> DenseShape:
        return replace(
            self,
            inputs=tuple(i.to(device) for i in self.inputs),
            listed_rows=tuple(None if r is None else r.to(device) for r in self.listed_rows),
        )


Shape = ListedShape | DenseShape


def index_tensor(rows: NDArray[np.int64]) -> Tensor:
    """Row numbers as the executor takes them."""
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int32))
