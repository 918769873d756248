"""All-different: no two variables in the same state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fgnn.pgm.factors.automaton import AutomatonKind, Steps
from fgnn.pgm.factors.gadget import FORBIDDEN, FREE, Gadget, LocalBudget, LocalTable
from fgnn.pgm.factors.kind import Array, Row, Shape

_MOST_SUBSETS = 1 << 18


@dataclass(frozen=True)
class AllDifferent(AutomatonKind):
    """0 if all states differ, else -inf.

    The states of the automaton are the sets of states taken so far. For other methods, every state may be taken by one
    variable at most: budgets over indicators, whose relaxation is the convex hull of the matchings.
    """

    name: ClassVar[str] = "all-different"

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        """Any variables will do."""

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return torch.zeros(1, 1, 1, dtype=torch.float64)

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        ordered = x.sort(-1).values
        same = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
        return torch.zeros(same.shape, dtype=torch.float64, device=x.device).masked_fill(same, -torch.inf)

    def steps(self, shape: Shape) -> Steps:
        most = max(shape)
        subsets = sum(comb(most, t) for t in range(len(shape)))
        if subsets > _MOST_SUBSETS:
            raise ValueError(
                f"Expected messages of all-different factors over at most {_MOST_SUBSETS:,} sets of states "
                f"(got {subsets:,})"
            )
        taken, steps = np.zeros(1, dtype=np.int64), []
        for t, k in enumerate(shape, start=1):
            bit = np.int64(1) << np.arange(k)
            after, possible = taken[:, None] | bit, (taken[:, None] & bit) == 0
            taken = np.unique(after[possible])
            if t == len(shape):  # which states are left does not matter
                steps.append(np.where(possible, 0, -1))
            else:
                steps.append(np.where(possible, np.searchsorted(taken, after), -1))
            if not len(taken):
                taken, steps[-1] = np.zeros(1, dtype=np.int64), np.full_like(steps[-1], -1)
        return tuple(steps)

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        from fgnn.pgm.factors.best_matchings import best_matchings

        value, x = nu.new_empty(len(nu)), torch.zeros(nu.shape[:2], dtype=torch.int64)
        best_matchings(np.array(shape), nu.contiguous().numpy(), value.numpy(), x.numpy())
        return value + theta[:, 0], x

    def local_gadget(self, shape: Shape) -> Gadget:
        """A table over every pair of variables."""
        tables = []
        for a, b in combinations(range(len(shape)), 2):
            same = np.arange(shape[a])[:, None] == np.arange(shape[b])
            tables.append(LocalTable((a, b), np.where(same, FORBIDDEN, FREE)))
        return Gadget(tuple(tables))

    def rows(self, shape: Shape) -> tuple[Row, ...]:
        """Every state is taken once at most, or exactly once if there are as many variables as states."""
        least = 1 if len(shape) >= max(shape) else 0
        rows = []
        for s, members in enumerate(_holders(shape)):
            weights = tuple(tuple(int(t == s) for t in range(shape[a])) for a in members)
            rows.append(Row(tuple(members), weights, least, 1))
        return tuple(rows)

    def gadget(self, shape: Shape) -> Gadget:
        n, most = len(shape), max(shape)
        holders = _holders(shape)
        indicators = [(a, s) for s, members in enumerate(holders) for a in members]
        at, budgets = n, []
        for members in holders:
            scope = tuple(range(at, at + len(members)))
            at += len(members)
            if len(members) > 1:  # with as many variables as states, every state is taken
                budgets.append(LocalBudget(scope, 1 if n >= most else 0, 1))
        return Gadget(budgets=tuple(budgets), indicators=tuple(indicators))


def _holders(shape: Shape) -> list[list[int]]:
    """The positions that have each state."""
    return [[a for a, k in enumerate(shape) if s < k] for s in range(max(shape))]
