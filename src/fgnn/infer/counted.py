"""Factors that count, for methods that change variables: the score of every sum, and how far it is from allowed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import Kind, ModelBatch
from fgnn.pgm.factors import Counter
from fgnn.pgm.group_batches import CountedBatch

Weights = tuple[tuple[int, ...], ...]  # of every state, by position


def counts_plainly(kind: Kind, shape: tuple[int, ...]) -> bool:
    """Whether factors depend only on a sum without a modulus: what to keep for methods that solve subgraphs.

    A running sum modulo m has m states, so a subgraph can solve a whole chain of tables, but only a few variables of a
    counter.
    """
    counter = kind.counter(shape)
    return counter is not None and not counter.modulus


def counters(batch: ModelBatch) -> list[tuple[CountedBatch, Counter]]:
    """The groups that follow the tables, with their counters; an error if some have none."""
    found = [(group, group.counter) for group in batch.counted if group.counter is not None]
    if len(batch.tables) + len(found) < len(batch.factors):
        names = ", ".join(dict.fromkeys(f.kind.name for f in batch.structured if f.counter is None))
        raise ValueError(f"Expected tables and factors that count (got {names} factors)")
    return found


def num_sums(counter: Counter) -> int:
    """How many sums there are, from 0 to the largest, whatever the modulus."""
    return 1 + sum(map(max, counter.weights))


def add_variable(shares: NDArray[np.float64], weights: tuple[int, ...]) -> NDArray[np.float64]:
    """The share of the joint states that has each sum, with one more variable of these weights."""
    total = np.zeros(len(shares) + max(weights))
    for w in weights:
        total[w : w + len(shares)] += shares / len(weights)
    return total


def scores_by_sum(group: CountedBatch, counter: Counter) -> Tensor:
    """The log-potential of every sum from 0 to the largest; with a modulus they repeat.  # shape: (B or 1, C, T)"""
    scores = group.by_sum(torch.float64)
    if not counter.modulus:
        return scores
    return scores[..., torch.arange(num_sums(counter), device=scores.device) % counter.modulus]


def distances(scores: Tensor) -> Tensor:
    """How far each sum is from the nearest allowed one; T where none is allowed.  # shape: (..., T), float64"""
    size = scores.shape[-1]
    at, forbidden = torch.arange(size, device=scores.device), scores == -torch.inf
    before = at.expand_as(scores).masked_fill(forbidden, -size).cummax(-1).values
    after = at.expand_as(scores).masked_fill(forbidden, 2 * size).flip(-1).cummin(-1).values.flip(-1)
    return torch.minimum(at - before, after - at).clamp(max=size).double()
