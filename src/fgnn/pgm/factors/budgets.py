"""Budgets: how many of some binary variables may be 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm.factors.counter import Counter
from fgnn.pgm.factors.grouping import grouped
from fgnn.pgm.factors.kind import Array, Kind, Shape
from fgnn.pgm.factors.ones import best_count, ones_messages, ones_sums


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


@dataclass(frozen=True)
class BudgetKind(Kind):
    r"""0 if :math:`\text{at\_least} \le \sum_i x_i \le \text{at\_most}`, else -inf, over binary variables.

    The potentials are those of 0, 1, ..., n ones. All messages take one sort, O(n log n), or O(n²) in sum-product.
    """

    name: ClassVar[str] = "budget"
    numbers: ClassVar[Mapping[str, type]] = {"at_least": int, "at_most": int}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        if set(shape) - {2}:
            raise ValueError(f"Expected binary variables in a budget (got cardinalities {shape})")
        low, high = numbers["at_least"], numbers["at_most"]
        if low.ndim != 1 or high.ndim != 1:
            raise ValueError(f"Expected one at_least and at_most per budget (got shapes {low.shape} and {high.shape})")
        wrong = np.flatnonzero((low < 0) | (high < low))
        if wrong.size:
            raise ValueError(f"Expected 0 <= at_least <= at_most (got {low[wrong[0]]} and {high[wrong[0]]})")
        if low.max(initial=0) > len(shape):
            raise ValueError(f"Expected at_least <= {len(shape)}, the size of the budget (got {low.max()})")

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        low, high = (numbers[name][..., None] for name in self.numbers)
        ones = torch.arange(len(shape) + 1, device=low.device)
        outside = (ones < low) | (ones > high)
        return torch.zeros(outside.shape, dtype=torch.float64, device=low.device).masked_fill(outside, -torch.inf)

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        ones = x.sum(-1)
        return theta.expand(*ones.shape, theta.shape[-1]).gather(-1, ones[..., None]).squeeze(-1).double()

    def messages(self, theta: Tensor, nu: Sequence[Tensor], *, total: bool) -> list[Tensor]:
        incoming = torch.stack(list(nu))  # shape: (n, 2, C, B)
        if total:
            return list(ones_sums(theta, incoming))
        allowed = (theta > -torch.inf).long()  # an interval
        low = allowed.argmax(0)
        return list(ones_messages(incoming, low, low + allowed.sum(0) - 1, normalise=False))

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        return best_count(theta, nu)

    def counter(self, shape: Shape) -> Counter:
        return Counter.of_ones(len(shape))
