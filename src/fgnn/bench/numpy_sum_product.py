"""Sum-product in NumPy for one binary pairwise model, vectorised over its tables: a peer of the batched method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel


def numpy_sum_product(
    model: GraphicalModel, iterations: int = 200, damping: float = 0.5, tolerance: float = 1e-5
) -> NDArray[np.float64]:
    """The probability of every state, (N, 2), by flooding with the stopping rule of the batched method.

    Args:
        model: Binary variables and pairs.
        iterations: The largest number of iterations.
        damping: The weight of the old message.
        tolerance: Stop if no undamped update changes a message by more.
    """
    unaries = model.unaries.reshape(-1, 2)
    unary = unaries[:, 1] - unaries[:, 0]
    (pairs,) = model.table_groups
    if pairs.shape != (2, 2) or model.budget_groups:
        raise ValueError(f"Expected binary pairs alone (got {model!r})")
    theta = pairs.values  # shape: (C, 2, 2)
    first, second = pairs.scopes.T
    flat, edges = np.concatenate([first, second]), len(first)
    messages, update = np.zeros(len(flat)), np.empty(len(flat))
    for _ in range(iterations):
        nu = (unary + np.bincount(flat, weights=messages, minlength=len(unary)))[flat] - messages
        from_first, from_second = nu[:edges], nu[edges:]
        update[:edges] = np.logaddexp(theta[:, 1, 0], theta[:, 1, 1] + from_second) - np.logaddexp(
            theta[:, 0, 0], theta[:, 0, 1] + from_second
        )
        update[edges:] = np.logaddexp(theta[:, 0, 1], theta[:, 1, 1] + from_first) - np.logaddexp(
            theta[:, 0, 0], theta[:, 1, 0] + from_first
        )
        change = update - messages
        messages += (1 - damping) * change
        if np.abs(change).max() <= tolerance:
            break
    belief = unary + np.bincount(flat, weights=messages, minlength=len(unary))
    one = 1 / (1 + np.exp(-belief))
    return np.stack([1 - one, one], 1)
