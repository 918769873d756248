"""The optimum by plain enumeration: what the solvers' tests compare with."""

from __future__ import annotations

import itertools

import numpy as np

from fgnn import GraphicalModel


def best_score(model: GraphicalModel) -> float:
    """The highest score over all assignments, -inf where none is feasible."""
    states = itertools.product(*(range(k) for k in model.cardinalities.tolist()))
    return float(model.score(np.array(list(states), dtype=np.int64).reshape(-1, model.num_variables)).max())


def chain(seed: int, length: int = 30, window: int = 8, at_most: int = 5) -> GraphicalModel:
    """A chain with random unaries, one rewarding pair table and budgets over sliding windows."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * length)
    model.add_unaries(rng.random(2 * length))
    pairs = np.stack([np.arange(length - 1), np.arange(1, length)], 1)
    model.add_tables(pairs, np.broadcast_to(np.array([[0.0, 0.1], [0.2, 1.0]]), (length - 1, 2, 2)))
    windows = np.arange(length - window + 1)[:, None] + np.arange(window)
    model.add_budgets(windows, np.full(len(windows), at_most))
    return model
