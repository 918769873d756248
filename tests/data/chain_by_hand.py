"""The optimum of a chain with windows by dynamic programming over the last ``window - 1`` states, in plain NumPy."""

from __future__ import annotations

import numpy as np

from fgnn import ModelBatch


def best_score(batch: ModelBatch, b: int, window: int) -> float:
    """The best score of model ``b``. A state's bit j is the variable j places back."""
    unary = batch.unary[b].double().numpy()
    pair = batch.tables[0].values[b].double().numpy()
    at_most = batch.budgets[0].at_most[b].numpy()
    keep = window - 1
    states = np.arange(2**keep)
    ones = np.array([bin(s).count("1") for s in states])
    value = np.full(2**keep, -np.inf)
    value[0] = 0.0  # before the chain there are only zeros, and no pair
    for i in range(len(unary)):
        after = np.full(2**keep, -np.inf)
        for x in (0, 1):
            step = value + unary[i, x]
            if i > 0:
                step = step + pair[i - 1, states & 1, x]
            if i >= keep:
                step = np.where(ones + x <= at_most[i - keep], step, -np.inf)
            np.maximum.at(after, ((states << 1) | x) & (2**keep - 1), step)
        value = after
    return float(value.max())
