"""Models of one structure as tensors: what solvers and networks read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from fgnn.graph import FactorGroup, Structure
from fgnn.pgm.group_batches import BudgetBatch, CountedBatch, FactorBatch, StructuredBatch, TableBatch, by_form
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
    def of(
        cls,
        cardinalities: Tensor,
        unary: Tensor,
        tables: Sequence[TableBatch],
        budgets: Sequence[BudgetBatch],
        constant: Tensor,
        structured: Sequence[StructuredBatch] = (),
    ) -> ModelBatch:
        """A batch from tensors alone; its structure is found again where an equal one is in use.

        Recognising it reads the scopes on the host. Where many batches of one structure are made, make the structure
        once (:func:`fgnn.pgm.model_structure`) and pass it to ``ModelBatch``.
        """
        others = [(f.kind.name, f.scopes) for f in structured]
        structure = model_structure(cardinalities, [t.scopes for t in tables], [u.scopes for u in budgets], others)
        batch = cls(structure, unary, tuple(tables), tuple(budgets), constant, tuple(structured))
        return batch.with_structure(structure)

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

        structure = model_structure(
            torch.from_numpy(np.array(cards)),
            [torch.from_numpy(np.array(group.scopes)) for group in first.table_groups],
            [torch.from_numpy(np.array(group.scopes)) for group in first.budget_groups],
            [(group.kind.name, torch.from_numpy(np.array(group.scopes))) for group in first.structured_groups],
        ).to(device)
        tables = tuple(
            TableBatch(structure.groups[f"table{g}"].scopes, put(np.stack([m.table_groups[g].values for m in models])))
            for g in range(len(first.table_groups))
        )
        budgets = tuple(
            BudgetBatch(
                structure.groups[f"budget{g}"].scopes,
                put(np.stack([m.budget_groups[g].at_least for m in models]), torch.int64),
                put(np.stack([m.budget_groups[g].at_most for m in models]), torch.int64),
            )
            for g in range(len(first.budget_groups))
        )
        structured = tuple(
            StructuredBatch(
                group.kind,
                group.shape,
                structure.groups[f"{group.kind.name}{g}"].scopes,
                {
                    name: put(np.stack([m.structured_groups[g].numbers[name] for m in models]), _type(number, dtype))
                    for name, number in group.kind.numbers.items()
                },
            )
            for g, group in enumerate(first.structured_groups)
        )
        constant = put(np.array([m.constant for m in models]))
        return cls(structure, put(unary), tables, budgets, constant, structured)

    @classmethod
    def concat(cls, batches: Sequence[ModelBatch]) -> ModelBatch:
        """Batches of one structure, one after another."""
        first = batches[0]
        if len(batches) == 1:
            return first
        if any(batch.structure.key != first.structure.key for batch in batches):
            raise ValueError("Expected batches of one structure (got several)")
        return replace(
            first,
            unary=torch.cat([b.unary for b in batches]),
            tables=tuple(map(TableBatch.concat, zip(*(b.tables for b in batches), strict=True))),
            budgets=tuple(map(BudgetBatch.concat, zip(*(b.budgets for b in batches), strict=True))),
            constant=torch.cat([b.constant for b in batches]),
            structured=tuple(
                StructuredBatch.concat(parts, [len(b) for b in batches])
                for parts in zip(*(b.structured for b in batches), strict=True)
            ),
        )

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

        def expand(numbers: Tensor) -> Tensor:
            return numbers.expand(models, *numbers.shape[1:])

        repeated = self._changed(expand, expand)
        return replace(
            repeated,
            tables=tuple(replace(t, shared=frozenset(t.names)) for t in repeated.tables),
            budgets=tuple(replace(u, shared=frozenset(u.names)) for u in repeated.budgets),
            structured=self.structured,
        )

    def detach(self) -> ModelBatch:
        """The same models without gradients."""
        return self._changed(Tensor.detach, Tensor.detach)

    def _changed(self, change: Callable[[Tensor], Tensor], once: Callable[[Tensor], Tensor]) -> ModelBatch:
        constant = change(self.constant)
        models = len(constant)
        return replace(
            self,
            unary=change(self.unary),
            tables=tuple(t.changed(models, change, once) for t in self.tables),
            budgets=tuple(u.changed(models, change, once) for u in self.budgets),
            constant=constant,
            structured=tuple(f.changed(change, once) for f in self.structured),
        )

    def with_structure(self, structure: Structure) -> ModelBatch:
        """The same numbers under an equal structure, such as the same one on another device."""
        return replace(
            self,
            structure=structure,
            tables=tuple(replace(t, scopes=structure.groups[f"table{g}"].scopes) for g, t in enumerate(self.tables)),
            budgets=tuple(replace(u, scopes=structure.groups[f"budget{g}"].scopes) for g, u in enumerate(self.budgets)),
            structured=tuple(
                replace(f, scopes=structure.groups[f"{f.kind.name}{g}"].scopes) for g, f in enumerate(self.structured)
            ),
        )

    def with_factors(self, factors: Sequence[FactorBatch]) -> ModelBatch:
        """The same structure with other numbers of its factors."""
        tables, budgets, structured = by_form(factors)
        return replace(self, tables=tables, budgets=budgets, structured=structured)

    def model(self, b: int) -> GraphicalModel:
        """Model ``b`` alone. Factors come out group by group."""
        if not -len(self) <= b < len(self):
            raise IndexError(f"Expected a model below {len(self)} (got {b})")
        model = GraphicalModel(self.cardinalities.cpu().numpy())
        model.add_unaries(self.unary[b][self.state_mask].double().cpu().numpy())
        for t in self.tables:
            model.add_tables(t.scopes.cpu().numpy(), t.values[b].double().cpu().numpy())
        for u in self.budgets:
            model.add_budgets(u.scopes.cpu().numpy(), u.at_most[b].cpu().numpy(), at_least=u.at_least[b].cpu().numpy())
        for f in self.structured:
            numbers = {name: (v[0] if len(v) == 1 else v[b]).cpu().numpy() for name, v in f.numbers.items()}
            model.add_factors(f.kind, f.scopes.cpu().numpy(), **numbers)
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
    for kind, mine, theirs in (
        ("table", [t.scopes for t in first.table_groups], [t.scopes for t in other.table_groups]),
        ("budget", [u.scopes for u in first.budget_groups], [u.scopes for u in other.budget_groups]),
    ):
        if len(mine) != len(theirs) or not all(np.array_equal(p, q) for p, q in zip(mine, theirs, strict=True)):
            raise ValueError(f"Expected models of one structure (got other {kind} scopes in model {b})")
    pairs = list(zip_longest(first.structured_groups, other.structured_groups))
    for g, h in pairs:
        if g is None or h is None or (g.kind, g.shape) != (h.kind, h.shape) or not np.array_equal(g.scopes, h.scopes):
            name = (g or h).kind.name
            raise ValueError(f"Expected models of one structure (got other {name} factors in model {b})")


def _type(number: type, dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if number is int else dtype


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
