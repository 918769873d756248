"""Structured factors written as tables and budgets over auxiliary variables, for methods that read only those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm.batch import ModelBatch, model_structure
from fgnn.pgm.factors import Kind
from fgnn.pgm.factors.gadget import FORBIDDEN, FREE, Gadget, table_values
from fgnn.pgm.group_batches import BudgetBatch, StructuredBatch, TableBatch

Keep = Callable[[Kind, tuple[int, ...]], bool]  # whether factors of a kind and shape stay as they are


@dataclass(frozen=True, eq=False)
class Lowered:
    """A batch of tables and budgets alone, whose first N variables are those of the original.

    Every feasible assignment extends to exactly one of the same score, so optima, sums and samples are the same.
    """

    batch: ModelBatch
    num_variables: int  # N
    complete: Callable[[Tensor], Tensor]  # assignments (..., N) to (..., N + M)


def lower(batch: ModelBatch, *, local: bool = False, keep: Keep = lambda kind, shape: False) -> Lowered:
    """The batch without structured factors, but for those of kinds to ``keep``. Its structure is compiled once.

    ``local`` avoids auxiliary variables, at the price of larger tables and weaker relaxations.
    """
    kept = tuple(keep(f.kind, f.shape) for f in batch.structured)
    if all(kept):
        return Lowered(batch, batch.num_variables, lambda x: x)
    kinds = tuple((f.kind, f.shape) for f in batch.structured)
    plan = batch.structure.derived(("lowered", kinds, local, kept), lambda: _Plan.of(batch, local, kept))
    return Lowered(plan.numbers(batch), batch.num_variables, plan.complete)


@dataclass(frozen=True, eq=False)
class _Tables:
    """Local tables of one shape in all factors of a group, or fixed ones of several groups."""

    scopes: Tensor  # shape: (C, A)
    entries: Tensor  # shape: (k_1, ..., k_A), or (C, k_1, ..., k_A) of fixed tables
    source: int | None  # the structured group whose potentials they select; None: fixed


@dataclass(frozen=True, eq=False)
class _Budgets:
    scopes: Tensor  # shape: (C, n)
    at_least: Tensor  # shape: (C,)
    at_most: Tensor  # shape: (C,)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The lowered structure, and where its numbers come from."""

    structure: Structure
    kept: tuple[bool, ...]  # of each structured group, whether it stays as it is
    gadgets: tuple[Gadget, ...]  # of each structured group; those of kept ones are empty
    scopes: tuple[Tensor, ...]  # shape: (C, n), of each structured group
    indicators: tuple[Tensor, Tensor]  # shape: (I,) each: the variable and the state of each indicator
    tables: tuple[_Tables, ...]
    budgets: tuple[_Budgets, ...]

    @classmethod
    def of(cls, batch: ModelBatch, local: bool, kept: tuple[bool, ...]) -> _Plan:
        build = _Builder(batch, local, kept)
        for source, f in enumerate(batch.structured):
            build.add(f, source)
        return build.plan()

    def complete(self, x: Tensor) -> Tensor:
        """Assignments (..., N) with the states of the auxiliary variables, (..., N + M)."""
        variable, state = self.indicators
        parts = [x, (x[..., variable] == state).long()]
        for gadget, scopes in zip(self.gadgets, self.scopes, strict=True):
            if gadget.cardinalities:
                parts.append(gadget.complete(x[..., scopes]).flatten(-2))
        return torch.cat(parts, -1)

    def numbers(self, batch: ModelBatch) -> ModelBatch:
        """The lowered batch."""
        models, cards = len(batch), self.structure.cardinalities
        assert cards is not None
        widest = max(batch.unary.shape[2], int(cards.max()))
        unary = torch.nn.functional.pad(batch.unary, (0, widest - batch.unary.shape[2]), value=-torch.inf)
        own = cards[batch.num_variables :]
        fresh = torch.zeros(len(own), widest, dtype=batch.dtype, device=batch.device)
        fresh = fresh.masked_fill(torch.arange(widest, device=batch.device) >= own[:, None], -torch.inf)
        shared = frozenset(("values",))
        tables, at = list(batch.tables), len(batch.tables)
        for g, t in enumerate(self.tables, start=at):
            if t.source is None:
                values = torch.zeros(t.entries.shape, dtype=batch.dtype, device=batch.device)[None]
                values = values.masked_fill(t.entries == FORBIDDEN, -torch.inf)
            else:
                values = table_values(t.entries, batch.structured[t.source].potentials(batch.dtype), batch.dtype)
            values_of = values.expand(models, *values.shape[1:]) if len(values) == 1 else values
            scopes = self.structure.groups[f"table{g}"].scopes
            tables.append(TableBatch(scopes, values_of, shared=shared if len(values) == 1 else frozenset()))
        bounds = frozenset(("at_least", "at_most"))
        budgets = list(batch.budgets)
        for g, u in enumerate(self.budgets, start=len(batch.budgets)):
            low, high = (b[None].expand(models, -1) for b in (u.at_least, u.at_most))
            budgets.append(BudgetBatch(self.structure.groups[f"budget{g}"].scopes, low, high, shared=bounds))
        lowered = replace(
            batch,
            unary=torch.cat([unary, fresh.expand(models, -1, -1)], 1),
            tables=tuple(tables),
            budgets=tuple(budgets),
            structured=tuple(f for f, kept in zip(batch.structured, self.kept, strict=True) if kept),
        )
        return lowered.with_structure(self.structure)


class _Builder:
    """Collects the auxiliary variables, tables and budgets of all structured factors."""

    def __init__(self, batch: ModelBatch, local: bool, kept: tuple[bool, ...]) -> None:
        self.batch, self.kept, device = batch, kept, batch.device
        self.gadgets: list[Gadget] = []
        self.tables: list[_Tables] = []
        self.fixed: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}  # by shape: scopes and entries
        self.budgets: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
        cards = batch.cardinalities
        widest = int(cards.max())
        # Indicators come first, so that factors over the same variables share them.
        wanted = [cards.new_zeros(0)]
        for f, keep in zip(batch.structured, kept, strict=True):
            gadget = Gadget() if keep else f.kind.local_gadget(f.shape) if local else f.kind.gadget(f.shape)
            self.gadgets.append(gadget)
            wanted += [f.scopes[:, a] * widest + s for a, s in gadget.indicators]
        keys = torch.unique(torch.cat(wanted))  # ascending
        self.keys, self.widest = keys, widest
        self.indicators = keys // widest, keys % widest
        self.cards = [cards, torch.full_like(keys, 2)]
        self.next = len(cards) + len(keys)
        own = torch.stack([self.indicators[0], torch.arange(len(keys), device=device) + len(cards)], 1)
        sizes = cards[self.indicators[0]]
        for k in torch.unique(sizes).tolist():
            here = sizes == k
            holds = torch.arange(k, device=device) == self.indicators[1][here][:, None]  # shape: (I, k)
            allowed = torch.stack([~holds, holds], 2)
            self.fixed[k, 2] = [(own[here], torch.where(allowed, FREE, FORBIDDEN))]

    def _fix(self, scopes: Tensor, entries: Tensor) -> None:
        """Add fixed tables, (C, A) and (k_1, ..., k_A)."""
        each = entries.expand(len(scopes), *entries.shape)
        self.fixed.setdefault(tuple(entries.shape), []).append((scopes, each))

    def add(self, f: StructuredBatch, source: int) -> None:
        """Add the factors of one group."""
        gadget, device = self.gadgets[source], f.scopes.device
        count, own = len(f.scopes), len(gadget.cardinalities)
        columns = [f.scopes]
        if gadget.indicators:
            wanted = [f.scopes[:, a] * self.widest + s for a, s in gadget.indicators]
            places = torch.searchsorted(self.keys, torch.stack(wanted, 1))
            columns.append(places + self.batch.num_variables)
        if own:
            columns.append(self.next + torch.arange(count * own, device=device).view(count, own))
            self.cards.append(torch.tensor(gadget.cardinalities, device=device).repeat(count))
            self.next += count * own
        local = torch.cat(columns, 1)  # shape: (C, local variables)
        for table in gadget.tables:
            entries = torch.as_tensor(table.entries, device=device)
            scopes = local[:, list(table.scope)]
            if bool((entries >= 0).any()):
                self.tables.append(_Tables(scopes, entries, source))
            else:
                self._fix(scopes, entries)
        for budget in gadget.budgets:
            low, high = (torch.full((count,), b, device=device) for b in (budget.at_least, budget.at_most))
            self.budgets.setdefault(len(budget.scope), []).append((local[:, list(budget.scope)], low, high))

    def plan(self) -> _Plan:
        """Compile what was added. Tables of one shape become one group."""
        for parts in self.fixed.values():
            scopes, entries = (torch.cat(column) for column in zip(*parts, strict=True))
            self.tables.append(_Tables(scopes, entries, None))
        budgets = tuple(_Budgets(*map(torch.cat, zip(*parts, strict=True))) for parts in self.budgets.values())
        batch = self.batch
        structure = model_structure(
            torch.cat(self.cards),
            [t.scopes for t in batch.tables] + [t.scopes for t in self.tables],
            [u.scopes for u in batch.budgets] + [u.scopes for u in budgets],
            [(f.kind.name, f.scopes) for f, kept in zip(batch.structured, self.kept, strict=True) if kept],
        )
        of_factors = tuple(f.scopes for f in batch.structured)
        return _Plan(
            structure, self.kept, tuple(self.gadgets), of_factors, self.indicators, tuple(self.tables), budgets
        )
