"""Factors of one shape in a batch: the scopes of the structure and the numbers of B models.

Tables, budgets and structured kinds answer the same questions: ``score``, ``potentials``, ``can_forbid``, ``counter``.
Methods that ask no others need not know which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fgnn.pgm.factors.budgets import BudgetKind
from fgnn.pgm.factors.counter import Counter
from fgnn.pgm.factors.gadget import table_values
from fgnn.pgm.factors.kind import Kind, Shape
from fgnn.pgm.factors.tables import TableKind

# What a method needs to know of a group: a table, an interval of the number of ones, or what only its kind knows.
Form = Literal["table", "ones", "other"]


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

    @property
    def numbers(self) -> Mapping[str, Tensor]:
        """All numbers by name, (B or 1, C, ...)."""
        return {name: self.distinct(name) for name in self.names}

    def repeated(self, models: int) -> Self:
        """The numbers of a single model as those of so many, which share them."""
        numbers: dict[str, Any] = {name: v.expand(models, *v.shape[1:]) for name, v in self.numbers.items()}
        return replace(self, shared=frozenset(self.names), **numbers)

    @classmethod
    def concat(cls, parts: Sequence[Self], sizes: Sequence[int]) -> Self:
        """The numbers of batches of so many models, one after another; none are shared."""
        numbers: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names}
        return replace(parts[0], shared=frozenset(), **numbers)


@dataclass(frozen=True, eq=False)
class TableBatch(_Numbers):
    """Tables of one shape: scopes of the structure, and the log-potentials of each model."""

    scopes: Tensor  # shape: (C, A), int64
    values: Tensor  # shape: (B, C, k_1, ..., k_A)
    names: ClassVar[tuple[str, ...]] = ("values",)
    kind: ClassVar[Kind] = TableKind()
    form: ClassVar[Form] = "table"
    counter: ClassVar[Counter | None] = None

    @property
    def shape(self) -> Shape:
        """The cardinalities (k_1, ..., k_A) of the axes."""
        return tuple(self.values.shape[2:])

    @property
    def num_terms(self) -> int:
        """How many log-potentials other than 0 and ``-inf`` a score has."""
        return len(self.scopes)

    def score(self, x: Tensor) -> Tensor:
        """The sum of the log-potentials of assignments, in float64: (B, S, N) to (B, S)."""
        cell = torch.zeros(*x.shape[:2], len(self.scopes), dtype=torch.int64, device=x.device)
        for axis, states in enumerate(self.shape):
            cell = cell * states + x[:, :, self.scopes[:, axis]]
        flat = self.values.flatten(2)[:, None].expand(-1, x.shape[1], -1, -1)
        return flat.gather(3, cell[..., None]).squeeze(3).double().sum(2)

    def potentials(self, dtype: torch.dtype, live: Tensor | None = None) -> Tensor:
        """The log-potentials, (B or 1, C, ...); ``-inf`` where a state is not ``live`` (B, N, K), if that is given."""
        if live is None:
            return self.distinct("values").to(dtype)
        values = self.values.to(dtype)
        for axis, k in enumerate(self.shape):
            ok = live[:, self.scopes[:, axis], :k]  # shape: (B, C, k)
            spread = [k if a == axis else 1 for a in range(len(self.shape))]
            values = values.masked_fill(~ok.view(*ok.shape[:2], *spread), -torch.inf)
        return values

    def with_potentials(self, theta: Tensor, models: int) -> TableBatch:
        """The same factors with other log-potentials, (B or 1, C, ...), for so many models."""
        shared = frozenset(("values",)) if len(theta) == 1 and (models > 1 or self.shared) else frozenset[str]()
        return replace(self, values=theta.expand(models, *theta.shape[1:]), shared=shared)

    def some(self, at: Tensor) -> TableBatch:
        """The factors at an index tensor."""
        parts = self.changed(len(self.values), lambda numbers: numbers.index_select(1, at))
        return replace(parts, scopes=self.scopes[at])

    def can_forbid(self, dtype: torch.dtype) -> bool:
        """Whether a state of a variable can become impossible."""
        return bool(self.distinct("values").isneginf().any())


@dataclass(frozen=True, eq=False)
class BudgetBatch(_Numbers):
    """Budgets over the same number of variables: scopes of the structure, and the bounds of each model."""

    scopes: Tensor  # shape: (C, n), int64
    at_least: Tensor  # shape: (B, C), int64
    at_most: Tensor  # shape: (B, C), int64
    names: ClassVar[tuple[str, ...]] = ("at_least", "at_most")
    kind: ClassVar[Kind] = BudgetKind()
    form: ClassVar[Form] = "ones"
    num_terms: ClassVar[int] = 0

    @property
    def shape(self) -> Shape:
        return (2,) * self.scopes.shape[1]

    @cached_property
    def counter(self) -> Counter | None:
        """The sum that the factors depend on; None if they depend on more."""
        return _counter(self.kind, self.shape)

    def by_sum(self, dtype: torch.dtype) -> Tensor:
        """The log-potential of every sum of the counter.  # shape: (B or 1, C, T)"""
        return self.potentials(dtype)

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """The least and the largest sum that are allowed, if all between them have log-potential 0; (B or 1, C)."""
        return self.distinct("at_least"), self.distinct("at_most")

    def score(self, x: Tensor) -> Tensor:
        ones = x[:, :, self.scopes].sum(3)  # shape: (B, S, C)
        kept = (ones >= self.at_least[:, None]) & (ones <= self.at_most[:, None])
        return torch.where(kept.all(2), 0.0, -torch.inf)

    def potentials(self, dtype: torch.dtype, live: Tensor | None = None) -> Tensor:
        return self.kind.potentials(self.shape, self.numbers).to(dtype)

    def with_potentials(self, theta: Tensor, models: int) -> BudgetBatch:
        return self  # allowed is 0, in whatever unit

    def some(self, at: Tensor) -> BudgetBatch:
        parts = self.changed(len(self.at_most), lambda numbers: numbers.index_select(1, at))
        return replace(parts, scopes=self.scopes[at])

    def can_forbid(self, dtype: torch.dtype) -> bool:
        return bool(((self.at_most == 0) | (self.at_least == self.scopes.shape[1])).any())


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

    def changed(
        self, models: int, change: Callable[[Tensor], Tensor], once: Callable[[Tensor], Tensor] | None = None
    ) -> StructuredBatch:
        def either(tensor: Tensor) -> Tensor:
            return (once or change)(tensor) if len(tensor) == 1 else change(tensor)

        numbers = {name: either(tensor) for name, tensor in self.numbers.items()}
        return replace(self, numbers=numbers, theta=None if self.theta is None else either(self.theta))

    @property
    def num_terms(self) -> int:
        return len(self.scopes)

    @property
    def form(self) -> Form:
        return "ones" if self.counter is not None and self.counter.bounds_ones else "other"

    @cached_property
    def counter(self) -> Counter | None:
        return _counter(self.kind, self.shape)

    def by_sum(self, dtype: torch.dtype) -> Tensor:
        counter = self.counter
        if counter is None:
            raise ValueError(f"Expected factors that count (got {self.kind.name})")
        entries = torch.as_tensor(counter.entries, device=self.scopes.device)
        return table_values(entries, self.potentials(dtype), dtype)

    def bounds(self) -> tuple[Tensor, Tensor] | None:
        counter = self.counter
        if counter is None or counter.interval is None:
            return None
        low, high = (torch.full((1, len(self.scopes)), end, device=self.scopes.device) for end in counter.interval)
        return low, high

    def score(self, x: Tensor) -> Tensor:
        theta = self.potentials(torch.float64)[:, None]
        return self.kind.score(self.shape, x[:, :, self.scopes], theta).sum(2)

    def potentials(self, dtype: torch.dtype, live: Tensor | None = None) -> Tensor:
        """The log-potentials that the factors select from.  # shape: (B or 1, C, S)"""
        theta = self.kind.potentials(self.shape, self.numbers) if self.theta is None else self.theta
        return theta.to(self.scopes.device, dtype).expand(-1, len(self.scopes), -1)

    def with_potentials(self, theta: Tensor, models: int) -> StructuredBatch:
        return replace(self, theta=theta)

    def some(self, at: Tensor) -> StructuredBatch:
        numbers = {name: tensor.index_select(1, at) for name, tensor in self.numbers.items()}
        theta = None if self.theta is None else self.theta.expand(-1, len(self.scopes), -1).index_select(1, at)
        return replace(self, scopes=self.scopes[at], numbers=numbers, theta=theta)

    def can_forbid(self, dtype: torch.dtype) -> bool:
        theta = self.potentials(dtype).permute(2, 1, 0)
        nothing = [theta.new_zeros(k, *theta.shape[1:]) for k in self.shape]
        return any(bool((m == -torch.inf).any()) for m in self.kind.messages(theta, nothing, total=False))

    def repeated(self, models: int) -> StructuredBatch:
        return self

    @classmethod
    def concat(cls, parts: Sequence[StructuredBatch], sizes: Sequence[int]) -> StructuredBatch:
        def joined(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat([t.expand(b, *t.shape[1:]) for t, b in zip(tensors, sizes, strict=True)])

        numbers = {name: joined([p.numbers[name] for p in parts]) for name in parts[0].numbers}
        own = [p.theta for p in parts if p.theta is not None]
        theta = joined([p.potentials(own[0].dtype) for p in parts]) if own else None
        return replace(parts[0], numbers=numbers, theta=theta)


# One for all groups of a kind and shape in use: what is compiled from a counter is found again by its identity.
_COUNTERS: WeakValueDictionary[tuple[Kind, Shape], Counter] = WeakValueDictionary()


def _counter(kind: Kind, shape: Shape) -> Counter | None:
    found = _COUNTERS.get((kind, shape))
    if found is None:
        found = kind.counter(shape)
    return None if found is None else _COUNTERS.setdefault((kind, shape), found)


FactorBatch = TableBatch | BudgetBatch | StructuredBatch
CountedBatch = BudgetBatch | StructuredBatch  # those that have a counter


def group_batch(kind: Kind, shape: Shape, scopes: Tensor, numbers: Mapping[str, Tensor]) -> FactorBatch:
    """Factors of one kind and shape, with numbers (B, C, ...) of each model."""
    plain: dict[type[Kind], Callable[..., FactorBatch]] = {TableKind: TableBatch, BudgetKind: BudgetBatch}
    make = plain.get(type(kind))
    return StructuredBatch(kind, shape, scopes, numbers) if make is None else make(scopes, **numbers)


def by_form(
    factors: Sequence[FactorBatch],
) -> tuple[tuple[TableBatch, ...], tuple[BudgetBatch, ...], tuple[StructuredBatch, ...]]:
    """Groups sorted into tables, budgets and structured kinds."""
    return (
        tuple(f for f in factors if isinstance(f, TableBatch)),
        tuple(f for f in factors if isinstance(f, BudgetBatch)),
        tuple(f for f in factors if isinstance(f, StructuredBatch)),
    )
