"""Models of one structure as tensors on one device: what batched solvers and networks read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fgnn.pgm.model import GraphicalModel

Index = slice | Tensor


@dataclass(frozen=True, eq=False)
class TableBatch:
    """Tables of one shape: shared scopes, one set of numbers per model (or one for all, expanded)."""

    scopes: Tensor  # shape: (C, A), int64
    values: Tensor  # shape: (B, C, k_1, ..., k_A)

    @property
    def shape(self) -> tuple[int, ...]:
        """The cardinalities (k_1, ..., k_A) of the axes."""
        return tuple(self.values.shape[2:])


@dataclass(frozen=True, eq=False)
class BudgetBatch:
    """Budgets over the same number of variables: shared scopes, bounds per model."""

    scopes: Tensor  # shape: (C, n), int64
    at_least: Tensor  # shape: (B, C), int64
    at_most: Tensor  # shape: (B, C), int64


@dataclass(frozen=True, eq=False)
class ModelBatch:
    """``B`` models with the same variables and scopes and other numbers, on one device.

    ``unary`` is padded with ``-inf`` up to the largest cardinality K, so a padded state is never chosen. Tensors
    may be expanded along the batch (stride 0) where all models share them.
    """

    cardinalities: Tensor  # shape: (N,), int64
    unary: Tensor  # shape: (B, N, K), padded with -inf
    tables: tuple[TableBatch, ...]
    budgets: tuple[BudgetBatch, ...]
    constant: Tensor  # shape: (B,)

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
        unary = np.full((len(models), *real.shape), -np.inf)
        unary[:, real] = np.stack([m.unaries for m in models])

        def put(array: np.ndarray, as_type: torch.dtype = dtype) -> Tensor:
            return torch.tensor(array, dtype=as_type, device=device)

        tables = tuple(
            TableBatch(
                put(group.scopes, torch.int64),
                put(np.stack([m.table_groups[g].values for m in models])),
            )
            for g, group in enumerate(first.table_groups)
        )
        budgets = tuple(
            BudgetBatch(
                put(group.scopes, torch.int64),
                put(np.stack([m.budget_groups[g].at_least for m in models]), torch.int64),
                put(np.stack([m.budget_groups[g].at_most for m in models]), torch.int64),
            )
            for g, group in enumerate(first.budget_groups)
        )
        constant = put(np.array([m.constant for m in models]))
        return cls(put(cards, torch.int64), put(unary), tables, budgets, constant)

    # ---- reading ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.unary.shape[0])

    @property
    def num_variables(self) -> int:
        return int(self.unary.shape[1])

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
        """The same models on another device or in another floating-point type; expanded tensors stay expanded."""

        def move(tensor: Tensor) -> Tensor:
            kind = dtype if tensor.is_floating_point() else None
            if tensor.dim() and tensor.shape[0] > 1 and tensor.stride(0) == 0:
                return tensor[:1].to(device=device, dtype=kind).expand(tensor.shape)
            return tensor.to(device=device, dtype=kind)

        return ModelBatch(
            move(self.cardinalities),
            move(self.unary),
            tuple(TableBatch(move(t.scopes), move(t.values)) for t in self.tables),
            tuple(BudgetBatch(move(b.scopes), move(b.at_least), move(b.at_most)) for b in self.budgets),
            move(self.constant),
        )

    def select(self, which: Index) -> ModelBatch:
        """The models at a slice or index tensor, as a batch; expanded tensors stay expanded."""
        constant = self.constant[which]

        def take(tensor: Tensor) -> Tensor:
            if tensor.shape[0] > 1 and tensor.stride(0) == 0:
                return tensor[:1].expand(len(constant), *tensor.shape[1:])
            return tensor[which]

        return replace(
            self,
            unary=take(self.unary),
            tables=tuple(replace(t, values=take(t.values)) for t in self.tables),
            budgets=tuple(replace(b, at_least=take(b.at_least), at_most=take(b.at_most)) for b in self.budgets),
            constant=constant,
        )

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
        for t in self.tables:
            cell = torch.zeros(*x.shape[:2], len(t.scopes), dtype=torch.int64, device=self.device)
            for axis, states in enumerate(t.shape):
                cell = cell * states + x[:, :, t.scopes[:, axis]]
            flat = t.values.flatten(2)[:, None].expand(-1, x.shape[1], -1, -1)
            total = total + flat.gather(3, cell[..., None]).squeeze(3).double().sum(2)
        for u in self.budgets:
            ones = x[:, :, u.scopes].sum(3)  # shape: (B, S, C)
            kept = (ones >= u.at_least[:, None]) & (ones <= u.at_most[:, None])
            total = total.masked_fill(~kept.all(2), -torch.inf)
        return total.squeeze(1) if assignment.dim() == 2 else total

    def __repr__(self) -> str:
        tables = sum(len(t.scopes) for t in self.tables)
        budgets = sum(len(b.scopes) for b in self.budgets)
        return (
            f"ModelBatch({len(self)} models of {self.num_variables} variables, {tables} tables, "
            f"{budgets} budgets; {self.dtype} on {self.device})"
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
