"""Factors of one shape in a batch: the scopes of the structure and the numbers of B models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fgnn.pgm.factors.kind import Kind, Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class _Numbers:
    """Numbers of some factors for each of B models; those named in ``shared`` are one set, expanded to all models."""

    shared: frozenset[str] = frozenset()
    names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.shared:
            tensor: Tensor = getattr(self, name)
            if tensor.shape[0] > 1 and tensor.stride(0) != 0:
                raise ValueError(f"Expected {name} expanded along the models, since they share it (got one for each)")

    def distinct(self, name: str) -> Tensor:
        """The numbers with a leading axis of B, or of 1 where all models share them."""
        tensor: Tensor = getattr(self, name)
        return tensor[:1] if name in self.shared else tensor

    def changed(
        self, models: int, change: Callable[[Tensor], Tensor], once: Callable[[Tensor], Tensor] | None = None
    ) -> Self:
        """The same with ``change`` applied to every tensor, for ``models`` models.

        What is shared stays shared: ``once`` (by default ``change``) is applied to it with a leading axis of 1.
        """
        numbers: dict[str, Any] = {}
        for name in self.names:
            tensor = self.distinct(name)
            if name in self.shared:
                tensor = (once or change)(tensor)
                numbers[name] = tensor.expand(models, *tensor.shape[1:])
            else:
                numbers[name] = change(tensor)
        return replace(self, **numbers)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """The numbers of several batches of models, one after another; none are shared."""
        numbers: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names}
        return replace(parts[0], shared=frozenset(), **numbers)


@dataclass(frozen=True, eq=False)
class TableBatch(_Numbers):
    """Tables of one shape: scopes of the structure, and the log-potentials of each model."""

    scopes: Tensor  # shape: (C, A), int64
    values: Tensor  # shape: (B, C, k_1, ..., k_A)
    names: ClassVar[tuple[str, ...]] = ("values",)

    @property
    def shape(self) -> tuple[int, ...]:
        """The cardinalities (k_1, ..., k_A) of the axes."""
        return tuple(self.values.shape[2:])


@dataclass(frozen=True, eq=False)
class BudgetBatch(_Numbers):
    """Budgets over the same number of variables: scopes of the structure, and the bounds of each model."""

    scopes: Tensor  # shape: (C, n), int64
    at_least: Tensor  # shape: (B, C), int64
    at_most: Tensor  # shape: (B, C), int64
    names: ClassVar[tuple[str, ...]] = ("at_least", "at_most")


@dataclass(frozen=True, eq=False)
class StructuredBatch:
    """Factors of one structured kind and shape: scopes of the structure, and the numbers of each model.

    Numbers with a leading axis of 1 are shared by all models.
    """

    kind: Kind
    shape: Shape
    scopes: Tensor  # shape: (C, n), int64
    numbers: Mapping[str, Tensor]  # shape: (B or 1, C, ...) each
    theta: Tensor | None = None  # shape: (B or 1, C, S), potentials that replace those of the numbers

    def changed(self, change: Callable[[Tensor], Tensor], once: Callable[[Tensor], Tensor]) -> StructuredBatch:
        """The same with ``change`` applied to the numbers of every model, and ``once`` to those that models share."""

        def either(tensor: Tensor) -> Tensor:
            return once(tensor) if len(tensor) == 1 else change(tensor)

        numbers = {name: either(tensor) for name, tensor in self.numbers.items()}
        return replace(self, numbers=numbers, theta=None if self.theta is None else either(self.theta))

    def potentials(self, dtype: torch.dtype) -> Tensor:
        """The log-potentials that the factors select from.  # shape: (B or 1, C, S)"""
        theta = self.kind.potentials(self.numbers) if self.theta is None else self.theta
        return theta.to(self.scopes.device, dtype).expand(-1, len(self.scopes), -1)

    @classmethod
    def concat(cls, parts: Sequence[StructuredBatch], sizes: Sequence[int]) -> StructuredBatch:
        """The numbers of several batches of these sizes, one after another."""
        names = parts[0].numbers
        stacked = [
            [p.numbers[n].expand(b, *p.numbers[n].shape[1:]) for p, b in zip(parts, sizes, strict=True)] for n in names
        ]
        return replace(parts[0], numbers=dict(zip(names, map(torch.cat, stacked), strict=True)))
