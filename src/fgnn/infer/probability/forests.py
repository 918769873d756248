"""Forests of factors that together cover a structure, for bounds by convexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch


@dataclass(frozen=True, eq=False)
class Forests:
    """Sets of factors without a cycle, of equal weight.

    Attributes:
        members: Of each forest and each group of the structure, the factors in it, ascending.
        appearance: Of each group, the share of the forests that each factor is in: ρ_c > 0.
    """

    members: tuple[tuple[Tensor, ...], ...]
    appearance: tuple[Tensor, ...]  # shape: (C,) by group, float64

    @classmethod
    def of(cls, batch: ModelBatch, most: int, seed: int) -> Forests:
        """The forests of a batch, found once for its structure.

        There are as many as it takes to cover all factors, and then up to ``most``, for more even shares.
        """
        return batch.structure.derived(("forests", most, seed), lambda: _find(batch, most, seed))


def _find(batch: ModelBatch, most: int, seed: int) -> Forests:
    """Kruskal's algorithm again and again, factors in few forests first."""
    groups = [group.scopes for group in batch.structure.groups.values()]
    scopes = [scope for group in groups for scope in group.tolist()]
    starts = np.cumsum([0, *map(len, groups)])
    rng = np.random.default_rng(seed)
    uses = np.zeros(len(scopes), dtype=np.int64)
    found: list[NDArray[np.int64]] = []
    while not found or uses.min(initial=1) == 0 or (uses.min(initial=1) < len(found) and len(found) < most):
        forest = acyclic(batch.num_variables, scopes, np.lexsort((rng.random(len(scopes)), uses)))
        uses[forest] += 1
        found.append(forest)

    def by_group(forest: NDArray[np.int64]) -> tuple[Tensor, ...]:
        cuts = pairwise(np.searchsorted(forest, starts).tolist())
        parts = [forest[a:b] - start for (a, b), start in zip(cuts, starts[:-1], strict=True)]
        return tuple(torch.from_numpy(part).to(batch.device) for part in parts)

    shares = [torch.from_numpy(uses[a:b] / len(found)).to(batch.device) for a, b in pairwise(starts.tolist())]
    return Forests(tuple(map(by_group, found)), tuple(shares))


def acyclic(variables: int, scopes: Sequence[Sequence[int]], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The factors, ascending, that close no cycle with those before them in ``order``: union-find over the edges."""
    parent = list(range(variables))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    chosen = []
    for c in order.tolist():
        roots = {root(i) for i in scopes[c]}
        if len(roots) == len(scopes[c]):
            chosen.append(c)
            first = min(roots)
            for i in roots:
                parent[i] = first
    return np.sort(np.array(chosen, dtype=np.int64))


def some_factors(batch: ModelBatch, members: Sequence[Tensor], unary: Tensor) -> ModelBatch:
    """The batch with other unaries (B, N, K) and, of each group, only the factors at an index tensor."""
    some = [f.some(at) for f, at in zip(batch.factors, members, strict=True) if len(at)]
    return ModelBatch.of(batch.cardinalities, unary, some, batch.constant)
