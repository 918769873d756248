"""Models restricted to some of their variables, given the states of the others."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.graph import Structure
from fgnn.infer.counted import counters, scores_by_sum
from fgnn.infer.exact.solver import TooLarge
from fgnn.pgm import ModelBatch, TableBatch, model_structure
from fgnn.pgm.factors import Counter

_MOST_CELLS = 1 << 10  # of what is left of a counter, which becomes a table


@dataclass(frozen=True, eq=False)
class _Part:
    """Factors of one group with the same axes free. Given the rest, they are tables over these."""

    group: int
    rows: Tensor  # shape: (C,), which factors
    scopes: Tensor  # shape: (C, free axes), as positions among the free variables
    shape: tuple[int, ...]  # of the free axes
    given: Tensor  # shape: (C, fixed axes), variables
    weights: Tensor  # shape: (C, fixed axes, K), what their states add to the place of an entry
    cells: Tensor  # shape: (cells of the free axes,), what the free variables add

    def values(self, entries: Tensor, x: Tensor) -> Tensor:
        """The tables (B, C, ...) from the entries (B or 1, all C, T) of the group, given assignments (B, N)."""
        states = x[:, self.given][..., None]  # shape: (B, C, fixed axes, 1)
        fixed = self.weights.expand(len(x), *self.weights.shape).gather(3, states).sum((2, 3))
        mine = entries[:, self.rows].expand(len(x), -1, -1)
        values = mine.gather(2, fixed[..., None] + self.cells)
        return values.view(*values.shape[:2], *self.shape)


@dataclass(frozen=True, eq=False)
class Restriction:
    """Free variables of a structure, and the factors that read them."""

    variables: Tensor  # shape: (F,)
    structure: Structure  # of the free variables
    alone: tuple[_Part, ...]  # factors with one free variable
    several: tuple[_Part, ...]

    @classmethod
    def of(cls, batch: ModelBatch, variables: Tensor) -> Restriction:
        """Find the factors of a set of variables (F,).

        Raises:
            TooLarge: If a counter has too many free variables.
        """
        place = torch.full((batch.num_variables,), -1, dtype=torch.int64, device=batch.device)
        place[variables] = torch.arange(len(variables), device=batch.device)
        parts = [part for g, t in enumerate(batch.tables) for part in _table_parts(g, t, place)]
        for g, (group, counter) in enumerate(counters(batch), start=len(batch.tables)):
            parts += _counter_parts(g, counter, group.scopes, place)
        alone = tuple(part for part in parts if len(part.shape) == 1)
        several = tuple(part for part in parts if len(part.shape) > 1)
        structure = model_structure(batch.cardinalities[variables], [part.scopes for part in several], [])
        return cls(variables, structure, alone, several)

    def apply(self, batch: ModelBatch, x: Tensor) -> ModelBatch:
        """The models of the free variables, given assignments (B, N) of all."""
        entries = [t.values.flatten(2) for t in batch.tables]
        entries += [scores_by_sum(group, counter).to(batch.dtype) for group, counter in counters(batch)]
        unary = batch.unary[:, self.variables].clone()
        for part in self.alone:
            values = part.values(entries[part.group], x)  # shape: (B, C, k)
            wide = torch.nn.functional.pad(values, (0, unary.shape[2] - values.shape[2]))
            unary.index_add_(1, part.scopes.squeeze(1), wide)
        tables = tuple(TableBatch(part.scopes, part.values(entries[part.group], x)) for part in self.several)
        whole = ModelBatch(self.structure, unary, tables, (), torch.zeros_like(batch.constant))
        return whole.with_structure(self.structure)


def _table_parts(group: int, table: TableBatch, place: Tensor) -> list[_Part]:
    """The tables of a group by the axes that are free."""
    scopes, shape = table.scopes, table.shape
    strides = [prod(shape[a + 1 :]) for a in range(len(shape))]
    weights = torch.arange(max(shape, default=1), device=scopes.device) * scopes.new_tensor(strides)[:, None]
    free = place[scopes] >= 0
    code = (free.long() << torch.arange(len(shape), device=scopes.device)).sum(1)
    parts = []
    for value in torch.unique(code).tolist():
        if value:
            rows = (code == value).nonzero().squeeze(1)
            axes = [a for a in range(len(shape)) if value >> a & 1]
            others = [a for a in range(len(shape)) if not value >> a & 1]
            here, size = scopes[rows], tuple(shape[a] for a in axes)
            cells = _added([weights[a, : shape[a]] for a in axes])
            fixed = weights[others].expand(len(rows), -1, -1)
            parts.append(_Part(group, rows, place[here[:, axes]], size, here[:, others], fixed, cells))
    return parts


def _counter_parts(group: int, counter: Counter, scopes: Tensor, place: Tensor) -> list[_Part]:
    """The counters of a group by the weights of their free variables, which come first."""
    distinct = list(dict.fromkeys(counter.weights))
    which = scopes.new_tensor([distinct.index(of_states) for of_states in counter.weights])
    widest = max(map(len, distinct))
    weights = torch.from_numpy(counter.padded(widest)).to(scopes.device)
    free = place[scopes] >= 0
    order = (~free).long().argsort(dim=1, stable=True)
    signatures = torch.where(free.gather(1, order), which[order], -1)
    unique, inverse = torch.unique(signatures, dim=0, return_inverse=True)
    parts = []
    for k, signature in enumerate(unique.tolist()):
        mine = [distinct[w] for w in signature if w >= 0]
        shape, count = tuple(map(len, mine)), len(mine)
        if not count:
            continue
        if prod(shape) > _MOST_CELLS:
            raise TooLarge(f"Expected counters of at most {_MOST_CELLS:,} free joint states (got {prod(shape):,})")
        rows = (inverse == k).nonzero().squeeze(1)
        here, at = scopes[rows].gather(1, order[rows]), order[rows, count:]
        cells = _added([scopes.new_tensor(of_states) for of_states in mine])
        parts.append(_Part(group, rows, place[here[:, :count]], shape, here[:, count:], weights[at], cells))
    return parts


def _added(weights: list[Tensor]) -> Tensor:
    """The sum of the weights at every joint state, the last variable fastest."""
    cells = weights[0].new_zeros(1)
    for of_states in weights:
        cells = (cells[:, None] + of_states).flatten()
    return cells
