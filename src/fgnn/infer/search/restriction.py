"""Models restricted to some of their variables, given the states of the others."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch, model_structure


@dataclass(frozen=True, eq=False)
class _Part:
    """Factors of one group with the same axes free."""

    group: int
    rows: Tensor  # shape: (C,), which factors
    free: tuple[int, ...]  # axes; empty for budgets
    fixed: tuple[int, ...]
    scopes: Tensor  # shape: (C, free axes), as positions among the free variables
    given: Tensor  # shape: (C, fixed axes), variables


@dataclass(frozen=True, eq=False)
class Restriction:
    """Free variables of a structure, and the factors that read them."""

    variables: Tensor  # shape: (F,)
    structure: Structure  # of the free variables
    alone: tuple[_Part, ...]  # tables with one free variable
    tables: tuple[_Part, ...]
    budgets: tuple[_Part, ...]

    @classmethod
    def of(cls, batch: ModelBatch, variables: Tensor) -> Restriction:
        """Find the factors of a set of variables (F,)."""
        place = torch.full((batch.num_variables,), -1, dtype=torch.int64, device=batch.device)
        place[variables] = torch.arange(len(variables), device=batch.device)
        parts = [_parts(g, t.scopes, place) for g, t in enumerate(batch.tables)]
        tables = [part for some in parts for part in some]
        alone = tuple(part for part in tables if len(part.free) == 1)
        several = tuple(part for part in tables if len(part.free) > 1)
        budgets = tuple(part for g, u in enumerate(batch.budgets) for part in _budget_parts(g, u.scopes, place))
        structure = model_structure(
            batch.cardinalities[variables], [part.scopes for part in several], [part.scopes for part in budgets]
        )
        return cls(variables, structure, alone, several, budgets)

    def apply(self, batch: ModelBatch, x: Tensor) -> ModelBatch:
        """The models of the free variables, given assignments (B, N) of all."""
        unary = batch.unary[:, self.variables].clone()
        for part in self.alone:
            values = _conditioned(batch, part, x)  # shape: (B, C, k)
            wide = torch.nn.functional.pad(values, (0, unary.shape[2] - values.shape[2]))
            unary.index_add_(1, part.scopes.squeeze(1), wide)
        tables = []
        for part in self.tables:
            shape = [batch.tables[part.group].shape[a] for a in part.free]
            values = _conditioned(batch, part, x)
            tables.append(TableBatch(part.scopes, values.reshape(*values.shape[:2], *shape)))
        budgets = []
        for part in self.budgets:
            u = batch.budgets[part.group]
            ones = x[:, part.given].sum(2)
            low, high = (bound[:, part.rows] - ones for bound in (u.at_least, u.at_most))
            budgets.append(BudgetBatch(part.scopes, low.clamp(min=0), high.clamp(min=0)))
        whole = ModelBatch(self.structure, unary, tuple(tables), tuple(budgets), torch.zeros_like(batch.constant))
        return whole.with_structure(self.structure)


def _parts(group: int, scopes: Tensor, place: Tensor) -> list[_Part]:
    """The factors of a group by the axes that are free."""
    arity = scopes.shape[1]
    free = place[scopes] >= 0
    code = (free.long() << torch.arange(arity, device=scopes.device)).sum(1)
    parts = []
    for value in torch.unique(code).tolist():
        if value:
            rows = (code == value).nonzero().squeeze(1)
            axes = tuple(a for a in range(arity) if value >> a & 1)
            others = tuple(a for a in range(arity) if not value >> a & 1)
            here = scopes[rows]
            parts.append(_Part(group, rows, axes, others, place[here[:, list(axes)]], here[:, list(others)]))
    return parts


def _budget_parts(group: int, scopes: Tensor, place: Tensor) -> list[_Part]:
    """The budgets of a group by the number of free variables, which come first."""
    free = place[scopes] >= 0
    count = free.sum(1)
    ordered = scopes.gather(1, (~free).long().argsort(dim=1, stable=True))
    parts = []
    for value in torch.unique(count).tolist():
        if value:
            rows = (count == value).nonzero().squeeze(1)
            parts.append(_Part(group, rows, (), (), place[ordered[rows, :value]], ordered[rows, value:]))
    return parts


def _conditioned(batch: ModelBatch, part: _Part, x: Tensor) -> Tensor:
    """Entries of tables at the states of their fixed variables.  # shape: (B, C, cells of the free axes)"""
    table = batch.tables[part.group]
    shape = table.shape
    values = table.values[:, part.rows].permute(0, 1, *(2 + a for a in (*part.free, *part.fixed)))
    cells = prod(shape[a] for a in part.free)
    values = values.reshape(len(x), len(part.rows), cells, -1)
    at = torch.zeros(len(x), len(part.rows), dtype=torch.int64, device=x.device)
    for column, a in enumerate(part.fixed):
        at = at * shape[a] + x[:, part.given[:, column]]
    return values.gather(3, at[:, :, None, None].expand(-1, -1, cells, 1)).squeeze(3)
