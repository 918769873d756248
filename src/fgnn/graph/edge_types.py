"""Edges of few types, sorted by type so that each type is one matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fgnn.graph.derived import Derived


@dataclass(frozen=True, eq=False)
class EdgeTypes(Derived):
    """A type in 0..K-1 for each edge.

    Attributes:
        index: (E,) the type of each edge.
        num_types: K.
    """

    index: Tensor
    num_types: int

    def __post_init__(self) -> None:
        if self.index.dim() != 1 or self.index.dtype.is_floating_point:
            raise ValueError(
                f"Expected one integer type for each edge, (E,) (got {tuple(self.index.shape)}, {self.index.dtype})"
            )
        object.__setattr__(self, "index", self.index.long())
        if self.index.numel():
            low, high = (int(v) for v in self.index.aminmax())
            if low < 0 or high >= self.num_types:
                raise ValueError(f"Expected edge types 0 to {self.num_types - 1} (got {low if low < 0 else high})")

    @cached_property
    def order(self) -> Tensor:
        """Edges sorted by type, and within a type in edge order.  # shape: (E,)"""
        return torch.argsort(self.index, stable=True)

    @cached_property
    def rank(self) -> Tensor:
        """The position of each edge in ``order``.  # shape: (E,)"""
        rank = torch.empty_like(self.order)
        rank[self.order] = torch.arange(self.order.numel(), device=self.order.device)
        return rank

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of edges of each type."""
        return tuple(torch.bincount(self.index, minlength=self.num_types).tolist())

    @cached_property
    def even(self) -> bool:
        """Whether all types have the same number of edges."""
        return len(set(self.counts)) == 1

    def prepare(self) -> EdgeTypes:
        """Compute all derived tensors now."""
        _ = self.rank, self.even
        return self
