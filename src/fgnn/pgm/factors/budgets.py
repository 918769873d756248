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
from fgnn.pgm.factors.kind import Array, Kind, Shape, StructuredGroup
from fgnn.pgm.factors.ones import best_count, ones_messages, ones_sums


@dataclass(frozen=True)
class Budget:
    """One constraint ``at_least <= sum of x_i over the scope <= at_most`` on binary variables."""

    scope: tuple[int, ...]
    at_least: int
    at_most: int


class BudgetGroup(StructuredGroup):
    """Budgets of a model over the same number of variables."""

    @property
    def at_least(self) -> NDArray[np.int64]:
        """The smallest numbers of ones, (C,)."""
        return self.numbers["at_least"]

    @property
    def at_most(self) -> NDArray[np.int64]:
        """The largest numbers of ones, (C,)."""
        return self.numbers["at_most"]


@dataclass(frozen=True)
class BudgetKind(Kind):
    r"""0 if :math:`\text{at\_least} \le \sum_i x_i \le \text{at\_most}`, else -inf, over binary variables.

    The potentials are those of 0, 1, ..., n ones. All messages take one sort, O(n log n), or O(n · at_most) in
    sum-product.
    """

    name: ClassVar[str] = "budget"
    numbers: ClassVar[Mapping[str, type]] = {"at_least": int, "at_most": int}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        if set(shape) - {2}:
            raise ValueError(f"Expected binary variables in a budget (got cardinalities {shape})")
        low, high = numbers["at_least"], numbers["at_most"]
        if low.ndim != 1 or high.ndim != 1:
            raise ValueError(f"Expected one at_least and at_most per budget (got shapes {low.shape} and {high.shape})")
        wrong = (low < 0) | (high < low)
        if wrong.any():
            raise ValueError(f"Expected 0 <= at_least <= at_most (got {low[wrong][0]} and {high[wrong][0]})")
        if low.max() > len(shape):
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
