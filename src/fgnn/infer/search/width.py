"""Whether a model is far too wide for elimination, in milliseconds: before an order is searched for."""

from __future__ import annotations

from math import comb

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fgnn.infer.search.arrays import adjacency, arrays_of
from fgnn.infer.search.chance import generator
from fgnn.infer.search.subgraph import plan_subgraph, workspace
from fgnn.pgm import ModelBatch

_MARGIN = 1.6  # better orders than by least degree save bits, but not this share of them
_MOST_BITS = 40.0
_COUNTED_BITS = 60.0  # of joint states that a plan can count


def far_too_wide(batch: ModelBatch, max_states: int) -> bool:
    """Whether eliminating by least degree needs so many joint states that no order is feasible.

    Budgets add no edges here, since elimination may count their ones, but they forbid states: a clique is taken to have
    as small a share of its bits as the strictest budget. False where elimination may do better than the graph suggests:
    with forbidden entries or structured factors, and for a model of several components.
    """
    if batch.structured or len(batch) == 0:
        return False
    model, far, _ = arrays_of(batch, 0)
    live = np.add.reduceat(np.isfinite(model.unary), model.states[:-1]) if len(model.cards) else model.cards
    free = np.nonzero(live > 1)[0]
    if far.any() or not len(free):
        return False
    count = len(model.cards)
    if batch.budgets:
        starts, ends = adjacency([t.scopes.cpu().numpy() for t in batch.tables], count)
        model = model._replace(neighbours=starts, neighbour=ends)
    ends = model.neighbour
    graph = csr_matrix((np.ones(len(ends), np.int8), ends, model.neighbours), shape=(count, count))
    if connected_components(graph[free][:, free], directed=False)[0] > 1:
        return False
    bits = min(_MOST_BITS, _MARGIN * np.log2(max(2, max_states))) / _allowed_bits(batch)
    if bits > _COUNTED_BITS:
        return False
    # no step is too wide for this plan, but it ends where the joint states of all steps exceed the limit
    most = int(2**bits) - 1
    order, *_ = plan_subgraph(model, workspace(model, 1, 1), free, 1 << 62, most, generator(0))
    return len(order) < len(free)


def _allowed_bits(batch: ModelBatch) -> float:
    """The smallest share of its bits that a budget of the first model leaves, at least a hundredth."""
    share = 1.0
    for budget in batch.budgets:
        size = budget.scopes.shape[1]
        ways = np.cumsum([0, *(comb(size, ones) for ones in range(size + 1))], dtype=np.float64)
        low, high = (b[0].cpu().numpy().clip(0, size) for b in (budget.at_least, budget.at_most))
        share = min(share, float(np.log2(np.maximum(1.0, ways[high + 1] - ways[low])).min()) / size)
    return max(0.01, share)
