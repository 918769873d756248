"""Factors that depend on one integer, a sum over their variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.factors.gadget import FREE

MOST_SUMS = 1 << 16  # beyond that, automata have far fewer states than there are sums


@dataclass(frozen=True, eq=False)
class Counter:
    r"""A factor that counts: :math:`\theta_c(x_c) = g_c \big(\sum_i w_i(x_i)\big)` with integer weights.

    The sum can be added up in any order and grouping, which elimination, search and propagation exploit.

    Attributes:
        weights: Of every state, by position; the least weight of a position is 0. With a modulus, they are reduced.
        entries: For every sum 0, ..., T - 1, the index of a potential θ, or ``FREE`` or ``FORBIDDEN`` (see `gadget`).
        modulus: T if sums are taken modulo T, else 0.
    """

    weights: tuple[tuple[int, ...], ...]
    entries: NDArray[np.int64]  # shape: (T,)
    modulus: int = 0

    def __post_init__(self) -> None:
        total = len(self.entries)
        if self.modulus not in (0, total):
            raise ValueError(f"Expected a modulus of 0 or the number of sums, {total} (got {self.modulus})")
        least = [min(of_states) for of_states in self.weights]
        if any(least):
            raise ValueError(f"Expected weights with a least weight of 0 at every position (got {least})")
        if self.modulus:  # so that a sum grows by less than the modulus at a time
            reduced = tuple(tuple(w % total for w in of_states) for of_states in self.weights)
            object.__setattr__(self, "weights", reduced)

    @classmethod
    def of_ones(cls, size: int) -> Counter:
        """The number of ones among ``size`` binary variables, with a potential for every number."""
        return cls(((0, 1),) * size, np.arange(size + 1))

    @cached_property
    def counts_ones(self) -> bool:
        """Whether the sum is the number of ones of binary variables."""
        return not self.modulus and all(weight == (0, 1) for weight in self.weights)

    @cached_property
    def interval(self) -> tuple[int, int] | None:
        """The least and the largest sum that are allowed, if all between them have log-potential 0, else None."""
        if self.modulus or bool((self.entries >= 0).any()):
            return None
        (allowed,) = (self.entries == FREE).nonzero()
        if not len(allowed):
            return len(self.entries), -1
        low, high = int(allowed[0]), int(allowed[-1])
        return (low, high) if len(allowed) == high - low + 1 else None

    @cached_property
    def bounds_ones(self) -> bool:
        """Whether a factor does no more than bound the number of ones of binary variables."""
        return self.counts_ones and self.interval is not None and self.interval[0] <= self.interval[1]

    @cached_property
    def counts_variables(self) -> bool:
        """Whether the sum is the number of variables in some of their states.

        Bounds on such a sum of marginals describe the convex hull of the joint states that they allow.
        """
        return not self.modulus and all(set(weight) <= {0, 1} for weight in self.weights)

    def padded(self, states: int) -> NDArray[np.int64]:
        """The weights with zeros up to so many states.  # shape: (n, states)"""
        return padded(self.weights, states)

    def sums(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sums of joint states (..., n).  # shape: (...,)"""
        total = sum((np.array(w)[x[..., a]] for a, w in enumerate(self.weights)), np.zeros(x.shape[:-1], np.int64))
        return total % self.modulus if self.modulus else total


def padded(weights: Sequence[tuple[int, ...]], states: int) -> NDArray[np.int64]:
    """Weights by position and state, with zeros up to so many states.  # shape: (n, states)"""
    return np.array([(*of_states, *(0,) * (states - len(of_states))) for of_states in weights], np.int64)
