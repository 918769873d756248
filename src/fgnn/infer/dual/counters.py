"""Counters in `dual`: factors that depend on a sum, as flat arrays for the compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_ROOM = 1 << 28  # numbers for partial sums, 2 GiB


class Counters(NamedTuple):
    """Factors that depend on a sum, as parents: structure, numbers of one model, and room for partial sums.

    The room is scratch that all models share: they are solved one after another, and every sweep fills it anew. Those
    that only bound a number of ones have bounds, all others a number for every sum.
    """

    start: Ints  # shape: (counters + 1,), the edges of a counter, in `edges`
    edges: Ints  # in the order of the variables
    place: Ints  # shape: (E,), of an edge among those of its counter
    weight: Ints  # shape: (E,), where the weights of the states of an edge begin
    weights: Ints
    sums: Ints  # shape: (counters,), T; 0 for bounds on ones
    modulus: Ints  # shape: (counters,)
    scores_at: Ints  # shape: (counters,), where the numbers by sum begin
    room_at: Ints  # shape: (counters,), where the room of a counter of n edges begins: n + 3 rows of T
    low: Ints  # shape: (counters,), for bounds on ones
    high: Ints
    scores: Floats
    room: Floats

    def of_model(self, model: ModelBatch) -> Counters:
        """The same with the numbers of a batch of one model."""
        low, high, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for f in model.counted:
            bounds = f.bounds() if f.form == "ones" else None
            if bounds is None:
                scores.append(f.by_sum(torch.float64)[0].reshape(-1).numpy())
            least, most = bounds or (torch.zeros(1, len(f.scopes), dtype=torch.int64),) * 2
            low.append(least[0].numpy())
            high.append(most[0].numpy())
        return self._replace(low=np.concatenate(low), high=np.concatenate(high), scores=np.concatenate(scores))


def build_counters(batch: ModelBatch, parent: Ints, child: Ints) -> Counters:
    """The counters of a batch, without numbers; their edges come after those of tables.

    Raises:
        ValueError: If partial sums take more than 2 GiB. As tables over auxiliary variables they would take even more.
    """
    lengths, sums, moduli, weights = ([np.zeros(0, np.int64)] for _ in range(4))
    tables = int((parent >= 0).sum())
    weight = [np.zeros(tables, np.int64)]
    at = 0
    for f in batch.counted:
        assert f.counter is not None
        count = len(f.scopes)
        ends = np.cumsum([len(w) for w in f.counter.weights])
        weights.append(np.concatenate([np.array(w, np.int64) for w in f.counter.weights]))
        weight.append(np.tile(at + np.concatenate([[0], ends[:-1]]), count))
        at += int(ends[-1])
        lengths.append(np.full(count, len(f.shape)))
        sums.append(np.full(count, len(f.counter.entries) if f.form == "other" else 0))
        moduli.append(np.full(count, f.counter.modulus))
    length, total, modulus = map(np.concatenate, (lengths, sums, moduli))
    edges = tables + np.lexsort([child[tables:], -parent[tables:]])
    place = np.zeros(len(parent), np.int64)
    place[edges] = np.arange(len(edges)) - np.repeat(np.cumsum(length) - length, length)
    rows = (length + 3) * total
    if rows.sum() > _MOST_ROOM:
        raise ValueError(f"Expected at most {_MOST_ROOM:,} partial sums of all factors together (got {rows.sum():,})")
    none = np.zeros(0)
    return Counters(
        start=np.concatenate([[0], np.cumsum(length)]).astype(np.int64),
        edges=edges,
        place=place,
        weight=np.concatenate(weight),
        weights=np.concatenate(weights),
        sums=total,
        modulus=modulus,
        scores_at=np.cumsum(total) - total,
        room_at=np.cumsum(rows) - rows,
        low=none.astype(np.int64),
        high=none.astype(np.int64),
        scores=none,
        room=np.empty(int(rows.sum())),
    )
