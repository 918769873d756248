"""Variables that a sum need not visit: those whose only table adds up to a constant, as unobserved leaves of a Bayesian
network do. Summing one out removes its table, which may turn its parents into leaves."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import GraphicalModel, ModelBatch

# Sums that differ by at most this, in log Z, are equal.
_EQUAL = 1e-11


def without_barren(batch: ModelBatch) -> ModelBatch:
    """A single model of the same log Z without barren variables; the batch itself if there are none, or several models.

    Variables keep their numbers. One that is summed out keeps a single state, of score 0.
    """
    if len(batch) != 1 or len(batch.factors) > len(batch.tables):
        return batch
    cards = batch.cardinalities.tolist()
    unary = [row[:k] for row, k in zip(_array(batch.unary[0]), cards, strict=True)]
    values = [_array(t.values[0]) for t in batch.tables]
    scope_of = {(g, c): scope for g, t in enumerate(batch.tables) for c, scope in enumerate(t.scopes.tolist())}
    tables_of: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for table, scope in scope_of.items():
        for i in scope:
            tables_of[i].add(table)
    todo = [i for i in range(len(cards)) if len(tables_of[i]) <= 1]
    gone: set[int] = set()
    constant = float(batch.constant[0].detach())
    while todo:
        i = todo.pop()
        if i in gone or len(tables_of[i]) > 1:
            continue
        if not tables_of[i]:
            constant += float(np.logaddexp.reduce(unary[i]))
            gone.add(i)
            continue
        ((g, c),) = tables_of[i]
        scope = scope_of[g, c]
        total = _sum_out(values[g][c], scope.index(i), unary[i])
        if not np.isfinite(total).all() or np.ptp(total) > _EQUAL:
            continue
        constant += float(total.flat[0])
        gone.add(i)
        del scope_of[g, c]
        for j in scope:
            tables_of[j].discard((g, c))
        todo += [j for j in scope if j not in gone]
    if not gone:
        return batch
    reduced = GraphicalModel([1 if i in gone else k for i, k in enumerate(cards)])
    reduced.add_unaries(np.concatenate([np.zeros(1) if i in gone else row for i, row in enumerate(unary)]))
    for g, t in enumerate(batch.tables):
        kept = [c for c in range(len(t.scopes)) if (g, c) in scope_of]
        if kept:
            reduced.add_tables([scope_of[g, c] for c in kept], values[g][kept])
    reduced.constant = constant
    return ModelBatch.stack([reduced], device=batch.device)


def _array(numbers: Tensor) -> NDArray[np.float64]:
    return np.asarray(numbers.detach().cpu().double())


def _sum_out(values: NDArray[np.float64], axis: int, unary: NDArray[np.float64]) -> NDArray[np.float64]:
    shape = [1] * values.ndim
    shape[axis] = len(unary)
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp.reduce(values + unary.reshape(shape), axis=axis))
