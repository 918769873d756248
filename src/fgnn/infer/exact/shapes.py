"""The operation of an elimination step as indices, shared by all similar steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.states import States


@dataclass(frozen=True, eq=False)
class Term:
    """Rows of a slot, ``slot[rows]``; all of them, in order, if ``rows`` is None."""

    slot: int
    rows: Tensor | None  # shape: (n,), int32


@dataclass(frozen=True, eq=False)
class ListedShape:
    r"""A step over an explicit list of feasible joint states.

    .. math:: \mu(s) = \max_{r} \sum_t \text{slot}_t[\text{rows}_{t,r}(s)]

    Slots are the inputs (the entries of a factor or the result of an earlier step), then one sum per entry of
    ``merges``. The states ``s`` of the result are sorted by the number of choices for the eliminated variable,
    descending, so that the r-th choice exists for a prefix of ``lengths[r]`` rows; ``blocks[r]`` are the terms of that
    prefix. Joint row ``starts[r] + s`` is the r-th choice for ``s``: the eliminated variable has state ``digits[...]``,
    and the result of child c is read at ``child_rows[c][...]``.
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


@dataclass(frozen=True, eq=False)
class DenseInput:
    """A slot as a full table over some axes of the step: ``slot[rows]`` reshaped to ``shape`` (1 for other axes).

    Row -1 stands for -inf: states that are not in a list.
    """

    rows: Tensor | None  # shape: (n,), int32
    shape: tuple[int, ...]
    gaps: bool  # whether there are rows -1


@dataclass(frozen=True, eq=False)
class DenseShape:
    """A step over all joint states: the result is a full table with one axis per variable.

    Axes are in reverse elimination order, the variable eliminated now last. The axes of every table are a subsequence,
    so factors add up as broadcast views. Slots are ``inputs``, then one sum of slots per entry of ``merges``; the
    result is the maximum over the last axis of the sum of ``terms``.
    """

    cardinalities: tuple[int, ...]  # in the order of the axes
    inputs: tuple[DenseInput, ...]
    merges: tuple[tuple[int, ...], ...]
    terms: tuple[int, ...]
    listed_rows: tuple[Tensor | None, ...]  # per child: its row for each of its joint states; None: in order

    @property
    def joint(self) -> int:
        return int(np.prod(self.cardinalities, dtype=object))

    @property
    def rows(self) -> int:
        return int(np.prod(self.cardinalities[:-1], dtype=object))


Shape = ListedShape | DenseShape


def index_tensor(rows: NDArray[np.int64]) -> Tensor:
    """Row numbers as an int32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int32))
