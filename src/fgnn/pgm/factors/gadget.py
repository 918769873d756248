"""A structured factor in terms of tables and budgets, with auxiliary variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Entries of a local table that are not one of the factor's potentials.
FREE, FORBIDDEN = -1, -2


@dataclass(frozen=True, eq=False)
class LocalTable:
    """A table over local variables. An entry is the index of a potential θ, or ``FREE`` (0) or ``FORBIDDEN`` (-inf)."""

    scope: tuple[int, ...]
    entries: NDArray[np.int64]  # shape: (k_1, ..., k_A)


@dataclass(frozen=True)
class LocalBudget:
    """A budget over local variables."""

    scope: tuple[int, ...]
    at_least: int
    at_most: int


def _nothing(x: Tensor) -> Tensor:
    return x[..., :0]


@dataclass(frozen=True, eq=False)
class Gadget:
    """Tables and budgets that add up to one factor.

    Local variables are the n of the scope, then the indicators, then the auxiliary ones. Every allowed joint state of
    the scope extends to exactly one allowed state of the others, so maxima, sums and counts over assignments are those
    of the factor.

    Attributes:
        tables: Over local variables.
        budgets: Over local variables.
        indicators: Binary variables, each 1 where the variable at a position is in a state: (position, state). Factors
            over the same variables share them.
        cardinalities: Of the auxiliary variables.
        complete: The states of the auxiliary variables: x (..., n) to (..., M).
    """

    tables: tuple[LocalTable, ...] = ()
    budgets: tuple[LocalBudget, ...] = ()
    indicators: tuple[tuple[int, int], ...] = ()
    cardinalities: tuple[int, ...] = ()
    complete: Callable[[Tensor], Tensor] = _nothing


def entries_of(choice: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entries of a local table from the index of a potential at each joint state, negative where it is forbidden."""
    return np.where(choice < 0, FORBIDDEN, choice)


def table_values(entries: Tensor, theta: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The log-potentials of local tables: θ (B, C, S) to (B, C, k_1, ..., k_A); (1, 1, ...) if θ is None."""
    constant = torch.zeros(entries.shape, dtype=dtype, device=entries.device)
    constant = constant.masked_fill(entries == FORBIDDEN, -torch.inf)
    if theta is None:
        return constant[None, None]
    picked = theta[..., entries.clamp(min=0).flatten()].view(*theta.shape[:2], *entries.shape)
    return torch.where(entries >= 0, picked, constant)
