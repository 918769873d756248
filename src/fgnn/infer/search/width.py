"""Whether a model is far too wide for elimination, in milliseconds: before an order is searched for."""

from __future__ import annotations

import math
import time

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from fgnn.infer.counted import add_variable, counters, scores_by_sum
from fgnn.infer.search.arrays import Floats, adjacency, arrays_of
from fgnn.infer.search.chance import generator
from fgnn.infer.search.subgraph import plan_subgraph, workspace
from fgnn.pgm import ModelBatch

_MARGIN = 1.6  # better orders than by least degree save bits, but not this share of them
_MOST_BITS = 40.0
_COUNTED_BITS = 60.0  # of joint states that a plan can count


def far_too_wide(batch: ModelBatch, max_states: int, deadline: float = math.inf) -> bool:
    """Whether eliminating by least degree needs so many joint states that no order is feasible.

    Counters add no edges here, since elimination may add up their sums, but they forbid states: a clique is taken to
    have as small a share of its bits as the strictest counter. False where elimination may do better than the graph
    suggests: with forbidden entries or factors of other forms, and for a model of several components; and where the
    deadline, by `time.perf_counter`, passes first.
    """
    if any(f.counter is None for f in batch.structured) or len(batch) == 0:
        return False
    batch = batch.select(slice(0, 1))
    model, far, _ = arrays_of(batch, 0)
    live = np.add.reduceat(np.isfinite(model.unary), model.states[:-1]) if len(model.cards) else model.cards
    free = np.nonzero(live > 1)[0]
    if far.any() or not len(free):
        return False
    count = len(model.cards)
    if batch.counted:
        starts, ends = adjacency([t.scopes.cpu().numpy() for t in batch.tables], count)
        model = model._replace(neighbours=starts, neighbour=ends, large=np.zeros_like(model.large))
    ends = model.neighbour
    graph = csr_matrix((np.ones(len(ends), np.int8), ends, model.neighbours), shape=(count, count))
    if connected_components(graph[free][:, free], directed=False)[0] > 1:
        return False
    if (share := _allowed_bits(batch, deadline)) is None:
        return False
    bits = min(_MOST_BITS, _MARGIN * np.log2(max(2, max_states))) / share
    if bits > _COUNTED_BITS:
        return False
    # no step is too wide for this plan, but it ends where the joint states of all steps exceed the limit
    most = int(2**bits) - 1
    order, *_ = plan_subgraph(model, workspace(model, 1, 1), free, 1 << 62, most, generator(0))
    return len(order) < len(free)


def _allowed_bits(batch: ModelBatch, deadline: float) -> float | None:
    """The smallest share of its bits that a counter of the first model leaves, at least a hundredth; None: no time."""
    share = 1.0
    for group, counter in counters(batch):
        chance: Floats = np.ones(1)  # of each sum, if all joint states are as likely
        for weights in counter.weights:
            if time.perf_counter() > deadline:
                return None
            chance = add_variable(chance, weights)
        allowed = np.isfinite(scores_by_sum(group, counter)[0].cpu().numpy()) @ chance
        bits = float(np.log2(np.maximum(allowed.min(initial=1.0), np.finfo(np.float64).tiny)))
        share = min(share, 1.0 + bits / max(1.0, float(np.log2(group.shape).sum())))
    return max(0.01, share)
