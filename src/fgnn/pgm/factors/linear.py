"""Linear constraints: a weighted sum of the states within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fgnn.pgm.arrays import integers
from fgnn.pgm.factors.automaton import AutomatonKind, Steps, minimised
from fgnn.pgm.factors.counter import MOST_SUMS, Counter
from fgnn.pgm.factors.gadget import FORBIDDEN, FREE
from fgnn.pgm.factors.kind import Array, Row, Shape, as_tuples

_ACCEPTED = np.iinfo(np.int64).max  # stands for all partial sums that the rest cannot spoil
_MOST_SUMS = 1 << 20  # partial sums after one variable


@dataclass(frozen=True)
class Linear(AutomatonKind):
    r"""0 if :math:`\text{at\_least} \le \sum_i w_i(x_i) \le \text{at\_most}`, else -inf, with integer weights.

    The states of the automaton are the partial sums from which the bounds can be both met and missed, at most
    ``at_most - at_least`` and the range of the weights; all messages take O(n · range).

    Attributes:
        weights: Of every state of every variable, (n, K); entries beyond a variable's states are not used.
    """

    weights: tuple[tuple[int, ...], ...]
    at_least: int
    at_most: int
    name: ClassVar[str] = "linear"

    @classmethod
    def of(
        cls, cardinalities: NDArray[np.int64], weights: ArrayLike, at_least: int | None, at_most: int | None
    ) -> Linear:
        """From weights (n,), which multiply the states, or (n, K), one per state; a missing bound does not bind."""
        n, table = len(cardinalities), integers(weights, "weights")
        if table.ndim == 1 and n:
            table = table[:, None] * np.arange(cardinalities.max())
        if table.ndim != 2 or len(table) != n:
            raise ValueError(f"Expected a weight for each of {n} variables (got shape {table.shape})")
        real = np.arange(table.shape[1]) < cardinalities[:, None]
        table = np.where(real, table, 0)
        low, high = at_least, at_most
        # A missing bound does not bind, nor does it contradict the one given.
        if low is None:
            low = int(np.where(real, table, np.iinfo(np.int64).max).min(1, initial=0).sum())
            low = low if high is None else min(low, int(high))
        if high is None:
            high = int(np.where(real, table, np.iinfo(np.int64).min).max(1, initial=0).sum())
            high = max(high, int(low))
        return cls(as_tuples(table.tolist()), int(low), int(high))

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        if len(self.weights) != len(shape) or len(self.weights[0]) < max(shape):
            size = (len(self.weights), len(self.weights[0]) if self.weights else 0)
            raise ValueError(
                f"Expected a weight for each of {len(shape)} variables and {max(shape)} states (got {size})"
            )
        if np.abs(np.array(self.weights, dtype=np.float64)).sum() > 2**60:
            raise ValueError("Expected weights whose sum fits into an integer (got an overflow)")
        if self.at_most < self.at_least:
            raise ValueError(f"Expected at_least <= at_most (got {self.at_least} and {self.at_most})")

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return torch.zeros(1, 1, 1, dtype=torch.float64)

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        weights = torch.tensor(self.weights, device=x.device)
        total = weights[torch.arange(len(shape), device=x.device), x].sum(-1)
        outside = (total < self.at_least) | (total > self.at_most)
        return theta[..., 0].double().expand(total.shape).masked_fill(outside, -torch.inf)

    def rows(self, shape: Shape) -> tuple[Row, ...]:
        weights = tuple(row[:k] for row, k in zip(self.weights, shape, strict=True))
        return (Row(tuple(range(len(shape))), weights, self.at_least, self.at_most),)

    def counter(self, shape: Shape) -> Counter | None:
        least = [min(row[:k]) for row, k in zip(self.weights, shape, strict=True)]
        above = [tuple(w - low for w in row[:k]) for row, k, low in zip(self.weights, shape, least, strict=True)]
        step = gcd(*(w for row in above for w in row)) or 1
        largest = sum(map(max, above)) // step
        if largest >= MOST_SUMS:
            return None
        sums = np.arange(largest + 1) * step + sum(least)
        allowed = (sums >= self.at_least) & (sums <= self.at_most)
        weights = tuple(tuple(w // step for w in row) for row in above)
        return Counter(weights, np.where(allowed, FREE, FORBIDDEN))

    def steps(self, shape: Shape) -> Steps:
        weights = [np.array(row[:k], dtype=np.int64) for row, k in zip(self.weights, shape, strict=True)]
        least, most = (np.cumsum([0, *(f(w) for w in weights[::-1])])[::-1] for f in (np.min, np.max))
        sums, steps = np.zeros(1, dtype=np.int64), []  # the partial sums, ascending
        for t, w in enumerate(weights, start=1):
            kept = sums == _ACCEPTED
            after = np.where(kept, 0, sums)[:, None] + w
            possible = (after + most[t] >= self.at_least) & (after + least[t] <= self.at_most)
            accepted = (after + least[t] >= self.at_least) & (after + most[t] <= self.at_most)
            after = np.where(accepted | kept[:, None], _ACCEPTED, after)
            possible |= kept[:, None]
            sums = np.unique(after[possible])
            if len(sums) > _MOST_SUMS:
                raise ValueError(f"Expected a linear factor of at most {_MOST_SUMS:,} partial sums (got {len(sums):,})")
            steps.append(np.where(possible, np.searchsorted(sums, after), -1))
            if not len(sums):  # nothing is allowed
                return minimised([np.full((1, k), -1) for k in shape])
        return minimised(steps)
