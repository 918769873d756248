"""Whether a model is far too wide for elimination, in milliseconds: before an order is searched for."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fgnn.infer.search.arrays import arrays_of
from fgnn.infer.search.chance import generator
from fgnn.infer.search.subgraph import plan_subgraph, workspace
from fgnn.pgm import ModelBatch

_MARGIN = 1.6  # better orders than by least degree save bits, but not this share of them
_MOST_BITS = 40.0


def far_too_wide(batch: ModelBatch, max_states: int) -> bool:
    """Whether eliminating by least degree needs so many joint states that no order is feasible.

    False where elimination may do better than the graph suggests: with forbidden entries, budgets or structured
    factors, and for a model of several components.
    """
    if batch.budgets or batch.structured or len(batch) == 0:
        return False
    model, far, _ = arrays_of(batch, 0)
    live = np.add.reduceat(np.isfinite(model.unary), model.states[:-1]) if len(model.cards) else model.cards
    free = np.nonzero(live > 1)[0]
    if far.any() or not len(free):
        return False
    count = len(model.cards)
    graph = csr_matrix(
        (np.ones(len(model.neighbour), np.int8), model.neighbour, model.neighbours), shape=(count, count)
    )
    if connected_components(graph[free][:, free], directed=False)[0] > 1:
        return False
    cells = int(2 ** min(_MOST_BITS, _MARGIN * np.log2(max(2, max_states)))) - 1
    # no step is too wide for this plan, but it ends where the joint states of all steps exceed the limit
    order, *_ = plan_subgraph(model, workspace(model, 1, 1), free, 1 << 62, cells, generator(0))
    return len(order) < len(free)
