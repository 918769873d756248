"""Variables that a sum need not visit: those whose only table adds up to a constant, as unobserved leaves of a Bayesian
network do. Summing one out removes its table, which may turn its parents into leaves."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel, ModelBatch

# Sums that differ by at most this, in log Z, are equal.
_EQUAL = 1e-11


def without_barren(batch: ModelBatch) -> ModelBatch:
    """A single model of the same log Z without barren variables; the batch itself if there are none, or several models.

    Variables keep their numbers. One that is summed out keeps a single state, of score 0.
    """
    if len(batch) != 1 or batch.structured or batch.budgets:
        return batch
    model = batch.detach().model(0)
    unary = np.split(model.unaries, np.cumsum(model.cardinalities)[:-1])
    tables: dict[int, tuple[tuple[int, ...], NDArray[np.float64]]] = {
        c: (tuple(t.scope), np.asarray(t.values)) for c, t in enumerate(model.tables())
    }
    tables_of: dict[int, set[int]] = defaultdict(set)
    for c, (scope, _) in tables.items():
        for i in scope:
            tables_of[i].add(c)
    todo = [i for i in range(model.num_variables) if len(tables_of[i]) <= 1]
    gone: set[int] = set()
    constant = model.constant
    while todo:
        i = todo.pop()
        if i in gone or len(tables_of[i]) > 1:
            continue
        if not tables_of[i]:
            constant += float(np.logaddexp.reduce(unary[i]))
            gone.add(i)
            continue
        (c,) = tables_of[i]
        scope, values = tables[c]
        total = _sum_out(values, scope.index(i), unary[i])
        if not np.isfinite(total).all() or np.ptp(total) > _EQUAL:
            continue
        constant += float(total.flat[0])
        gone.add(i)
        del tables[c]
        for j in scope:
            tables_of[j].discard(c)
        todo += [j for j in scope if j not in gone]
    if not gone:
        return batch
    cards = [1 if i in gone else int(k) for i, k in enumerate(model.cardinalities)]
    reduced = GraphicalModel(cards)
    for i, values in enumerate(unary):
        if i not in gone:
            reduced.add_unary(i, values)
    for scope, values in tables.values():
        reduced.add_table(scope, values)
    reduced.constant = constant
    return ModelBatch.stack([reduced], device=batch.device)


def _sum_out(values: NDArray[np.float64], axis: int, unary: NDArray[np.float64]) -> NDArray[np.float64]:
    shape = [1] * values.ndim
    shape[axis] = len(unary)
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp.reduce(values + unary.reshape(shape), axis=axis))
