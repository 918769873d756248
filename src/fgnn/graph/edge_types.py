"""Edges of few types, each of which selects a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fgnn.graph.derived import Derived, tracing


@dataclass(frozen=True, eq=False, init=False)
class EdgeTypes(Derived):
    """A type in 0..K-1 for each edge.

    Args:
        index: (E,) the type of each edge.
        num_types: K.

    Attributes:
        num_edges: E.
    """

    num_types: int
    num_edges: int
    _index: Callable[[], Tensor] | Tensor

    def __init__(self, index: Tensor, num_types: int) -> None:
        if index.dim() != 1 or index.dtype.is_floating_point:
            raise ValueError(f"Expected one integer type for each edge, (E,) (got {tuple(index.shape)}, {index.dtype})")
        if index.numel() and not tracing():
            low, high = (int(v) for v in index.aminmax())
            if low < 0 or high >= num_types:
                raise ValueError(f"Expected edge types 0 to {num_types - 1} (got {low if low < 0 else high})")
        self.__setstate__({"_index": index.long(), "num_types": num_types, "num_edges": index.shape[0]})

    @classmethod
    def known(cls, index: Callable[[], Tensor] | Tensor, num_types: int, num_edges: int) -> EdgeTypes:
        """Types known to be valid; a function is called on first use."""
        types = cls.__new__(cls)
        types.__setstate__({"_index": index, "num_types": num_types, "num_edges": num_edges})
        return types

    def __reduce__(self) -> tuple[Any, ...]:
        return EdgeTypes, (self.index, self.num_types)

    @cached_property
    def index(self) -> Tensor:
        """The type of each edge.  # shape: (E,)"""
        return self._index() if callable(self._index) else self._index

    def prepare(self) -> EdgeTypes:
        """Compute the types now."""
        _ = self.index
        return self


# torch.load(..., weights_only=True) may construct them: the constructor checks what it is given.
torch.serialization.add_safe_globals([EdgeTypes])
