"""Models of one structure as tensors: what solvers and networks read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.graph import FactorGroup, Structure
from fgnn.pgm.group_batches import (
    BudgetBatch,
    CountedBatch,
    FactorBatch,
    StructuredBatch,
    TableBatch,
    by_form,
    group_batch,
)
from fgnn.pgm.model import GraphicalModel

Index = slice | Tensor


@dataclass(frozen=True, eq=False)
class ModelBatch:
    """``B`` models of one structure and other numbers, on one device.

    ``unary`` is padded with ``-inf`` up to the largest cardinality K, so a padded state is never chosen. The scopes of
    ``tables[g]`` are those of the structure's group ``table{g}``, and likewise for budgets and structured kinds.
    """

    structure: Structure
    unary: Tensor  # shape: (B, N, K), padded with -inf
    tables: tuple[TableBatch, ...]
    budgets: tuple[BudgetBatch, ...]
    constant: Tensor  # shape: (B,)
    structured: tuple[StructuredBatch, ...] = ()

    @classmethod
    def of(cls, cardinalities: Tensor, unary: Tensor, factors: Sequence[FactorBatch], constant: Tensor) -> ModelBatch:
        """A batch from tensors alone; its structure is found again where an equal one is in use.

        Recognising it reads the scopes on the host. Where many batches of one structure are made, make the structure
        once (:func:`fgnn.pgm.model_structure`) and pass it to ``ModelBatch``.
        """
        tables, budgets, structured = by_form(factors)
        others = [(f.kind.name, f.scopes) for f in structured]
        structure = model_structure(cardinalities, [t.scopes for t in tables], [u.scopes for u in budgets], others)
        return cls(structure, unary, tables, budgets, constant, structured).with_structure(structure)

    @classmethod
    def stack(
        cls,
        models: Sequence[GraphicalModel],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> ModelBatch:
        """Stack models that have the same cardinalities and the same scopes in the same order."""
        if not models:
            raise ValueError("Expected at least one model to stack (got none)")
        first = models[0]
        for b, model in enumerate(models[1:], start=1):
            _check_same_structure(first, model, b)
        cards = first.cardinalities
        widest = int(cards.max()) if cards.size else 1
        real = np.arange(widest) < cards[:, None]  # shape: (N, K)
        given = np.stack([m.unaries for m in models])
        if real.all():
            unary = given.reshape(len(models), *real.shape)
        else:
            unary = np.full((len(models), *real.shape), -np.inf)
            unary[:, real] = given

        def put(array: np.ndarray, as_type: torch.dtype = dtype) -> Tensor:
            return torch.tensor(array, dtype=as_type, device=device)

        groups = [model.groups for model in models]  # by model
        scopes = [torch.from_numpy(np.array(group.scopes)) for group in groups[0]]
        names = [group.kind.name for group in first.structured_groups]
        tables, budgets = len(first.table_groups), len(first.table_groups) + len(first.budget_groups)
        structured = list(zip(names, scopes[budgets:], strict=True))
        structure = model_structure(
            torch.from_numpy(np.array(cards)), scopes[:tables], scopes[tables:budgets], structured
        ).to(device)
        factors = []
        for alike, own in zip(zip(*groups, strict=True), structure.groups.values(), strict=True):
            kind = alike[0].kind
            numbers = {
                name: put(np.stack([group.numbers[name] for group in alike]), torch.int64 if number is int else dtype)
                for name, number in kind.numbers.items()
            }
            factors.append(group_batch(kind, alike[0].shape, own.scopes, numbers))
        constant = put(np.array([m.constant for m in models]))
        return cls(structure, put(unary), (), (), constant).with_factors(factors)

    @classmethod
    def concat(cls, batches: Sequence[ModelBatch]) -> ModelBatch:
        """Batches of one structure, one after another."""
        first = batches[0]
        if len(batches) == 1:
            return first
        if any(batch.structure.key != first.structure.key for batch in batches):
            raise ValueError("Expected batches of one structure (got several)")
        for f, *others in zip(*(b.factors for b in batches), strict=True):
            if any((other.kind, other.shape) != (f.kind, f.shape) for other in others):  # a structure has no weights
                raise ValueError(f"Expected batches of equal kinds (got other {f.kind.name} factors)")
        unary, constant = torch.cat([b.unary for b in batches]), torch.cat([b.constant for b in batches])
        sizes, alike = [len(b) for b in batches], zip(*(b.factors for b in batches), strict=True)
        factors = [type(parts[0]).concat(parts, sizes) for parts in alike]
        return first.with_factors(factors, unary=unary, constant=constant)

    # ---- reading ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.unary.shape[0])

    @property
    def num_variables(self) -> int:
        return int(self.unary.shape[1])

    @property
    def factors(self) -> tuple[FactorBatch, ...]:
        """All groups of factors, in the order of the structure."""
        return (*self.tables, *self.budgets, *self.structured)

    @property
    def counted(self) -> tuple[CountedBatch, ...]:
        """The groups of factors that depend on a sum alone, in the order of the structure."""
        return (*self.budgets, *(f for f in self.structured if f.counter is not None))

    @property
    def cardinalities(self) -> Tensor:
        """The number of states of each variable.  # shape: (N,), int64"""
        assert self.structure.cardinalities is not None
        return self.structure.cardinalities

    @property
    def device(self) -> torch.device:
        return self.unary.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unary.dtype

    @cached_property
    def state_mask(self) -> Tensor:
        """Which entries of the padded unaries are real states, shape (N, K), bool."""
        return torch.arange(self.unary.shape[2], device=self.device) < self.cardinalities[:, None]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ModelBatch:
        """The same models on another device or in another floating-point type; what is shared stays shared."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        moved = self._changed(move, move)
        return moved if device is None else moved.with_structure(self.structure.to(device))

    def select(self, which: Index) -> ModelBatch:
        """The models at a slice or index tensor, as a batch; what is shared stays shared."""
        return self._changed(lambda t: t[which], lambda t: t)

    def repeat(self, models: int) -> ModelBatch:
        """A batch of one model as a batch of ``models`` equal ones, which share all numbers but the unaries."""
        if len(self) != 1:
            raise ValueError(f"Expected a batch of one model to repeat (got {len(self)})")

        unary, constant = self.unary.expand(models, -1, -1), self.constant.expand(models)
        return self.with_factors([f.repeated(models) for f in self.factors], unary=unary, constant=constant)

    def detach(self) -> ModelBatch:
        """The same models without gradients."""
        return self._changed(Tensor.detach, Tensor.detach)

    def _changed(self, change: Callable[[Tensor], Tensor], once: Callable[[Tensor], Tensor]) -> ModelBatch:
        unary, constant = change(self.unary), change(self.constant)
        factors = [f.changed(len(constant), change, once) for f in self.factors]
        return self.with_factors(factors, unary=unary, constant=constant)

    def with_structure(self, structure: Structure) -> ModelBatch:
        """The same numbers under an equal structure, such as the same one on another device."""
        groups = zip(self.factors, structure.groups.values(), strict=True)
        return self.with_factors([replace(f, scopes=g.scopes) for f, g in groups], structure=structure)

    def with_factors(self, factors: Sequence[FactorBatch], **others: Any) -> ModelBatch:
        """The same structure with other numbers of its factors, and of whatever else is given."""
        tables, budgets, structured = by_form(factors)
        return replace(self, tables=tables, budgets=budgets, structured=structured, **others)

    def model(self, b: int) -> GraphicalModel:
        """Model ``b`` alone. Factors come out group by group."""
        if not -len(self) <= b < len(self):
            raise IndexError(f"Expected a model below {len(self)} (got {b})")
        model = GraphicalModel(self.cardinalities.cpu().numpy())
        model.add_unaries(self.unary[b][self.state_mask].double().cpu().numpy())
        for f in self.factors:
            own = {name: v[0] if len(v) == 1 else v[b] for name, v in f.numbers.items()}
            arrays = {name: (v.double() if v.is_floating_point() else v).cpu().numpy() for name, v in own.items()}
            model.add_factors(f.kind, f.scopes.cpu().numpy(), **arrays)
        model.constant = float(self.constant[b])
        return model

    def score(self, assignment: Tensor) -> Tensor:
        """Float64 scores of assignments (B, N) as (B,), or of S candidates each, (B, S, N), as (B, S)."""
        if assignment.dim() not in (2, 3) or assignment.shape[0] != len(self):
            raise ValueError(
                f"Expected assignments of shape ({len(self)}, {self.num_variables}) or "
                f"({len(self)}, S, {self.num_variables}) (got {tuple(assignment.shape)})"
            )
        if assignment.shape[-1] != self.num_variables:
            raise ValueError(f"Expected {self.num_variables} variables (got {assignment.shape[-1]})")
        x = assignment.to(self.device, torch.int64)
        x = x[:, None] if x.dim() == 2 else x  # shape: (B, S, N)
        unary = self.unary[:, None].expand(-1, x.shape[1], -1, -1)
        total = unary.gather(3, x[..., None]).squeeze(3).double().sum(2) + self.constant.double()[:, None]
        for factors in self.factors:
            total = total + factors.score(x)
        return total.squeeze(1) if assignment.dim() == 2 else total

    def __repr__(self) -> str:
        tables = sum(len(t.scopes) for t in self.tables)
        budgets = sum(len(b.scopes) for b in self.budgets)
        others = "".join(f", {len(f.scopes)} {f.kind.name}" for f in self.structured)
        return (
            f"ModelBatch({len(self)} models of {self.num_variables} variables, {tables} tables, "
            f"{budgets} budgets{others}; {self.dtype} on {self.device})"
        )


def _check_same_structure(first: GraphicalModel, other: GraphicalModel, b: int) -> None:
    if not np.array_equal(first.cardinalities, other.cardinalities):
        raise ValueError(f"Expected models of one structure (got other cardinalities in model {b})")
    for g, h in zip_longest(first.groups, other.groups):
        if g is None or h is None or (g.kind, g.shape) != (h.kind, h.shape) or not np.array_equal(g.scopes, h.scopes):
            raise ValueError(f"Expected models of one structure (got other {(g or h).kind.name} factors in model {b})")


def model_structure(
    cardinalities: Tensor,
    tables: Sequence[Tensor],
    budgets: Sequence[Tensor],
    structured: Sequence[tuple[str, Tensor]] = (),
) -> Structure:
    """The structure of models with these scopes: groups ``table0``, ``table1``, ..., ``budget0``, ..., then by kind."""
    groups = {f"table{g}": FactorGroup(scopes) for g, scopes in enumerate(tables)}
    groups |= {f"budget{g}": FactorGroup(scopes) for g, scopes in enumerate(budgets)}
    groups |= {f"{name}{g}": FactorGroup(scopes) for g, (name, scopes) in enumerate(structured)}
    return Structure(int(cardinalities.shape[0]), groups, cardinalities).interned()
