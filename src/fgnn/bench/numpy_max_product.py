"""Max-product in NumPy for a single binary model, vectorised over its factors: a peer of the batched solver.

It runs the same algorithm (flooding, damping, message ratios, budgets by sorting, the same stopping rule) in as few
array operations as a single model allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel

Floats = NDArray[np.float64]


def numpy_max_product(
    model: GraphicalModel, iterations: int = 200, damping: float = 0.5, tolerance: float = 1e-5
) -> tuple[NDArray[np.int64], int]:
    """The decoded assignment and the number of iterations.

    Args:
        model: Binary variables, pairs, and budgets of one size without a lower bound.
        iterations: The largest number of iterations.
        damping: The weight of the old message.
        tolerance: Stop if no undamped update changes a message by more.
    """
    unaries = model.unaries.reshape(-1, 2)
    unary = unaries[:, 1] - unaries[:, 0]
    (pairs,), (budgets,) = model.table_groups, model.budget_groups
    if pairs.shape != (2, 2) or budgets.at_least.any():
        raise ValueError(f"Expected binary pairs and budgets with an upper bound only (got {model!r})")
    theta = pairs.values  # shape: (C, 2, 2)
    first, second = pairs.scopes.T
    size = budgets.scopes.shape[1]
    rows = np.arange(len(budgets.scopes))
    at_most = budgets.at_most
    flat = np.concatenate([first, second, budgets.scopes.ravel()])
    edges, cut = len(first), 2 * len(first)
    messages = np.zeros(len(flat))
    update = np.empty(len(flat))
    done = 0
    while done < iterations:
        done += 1
        belief = unary + np.bincount(flat, weights=messages, minlength=len(unary))
        nu = belief[flat] - messages
        from_first, from_second = nu[:edges], nu[edges:cut]
        update[:edges] = np.maximum(theta[:, 1, 0], theta[:, 1, 1] + from_second) - np.maximum(
            theta[:, 0, 0], theta[:, 0, 1] + from_second
        )
        update[edges:cut] = np.maximum(theta[:, 0, 1], theta[:, 1, 1] + from_first) - np.maximum(
            theta[:, 0, 0], theta[:, 1, 0] + from_first
        )
        d = nu[cut:].reshape(-1, size)
        order = np.sort(d, axis=1)[:, ::-1]
        kth = order[rows, at_most - 1]
        following = np.where(at_most < size, order[rows, np.minimum(at_most, size - 1)], -np.inf)
        others = np.where(d >= kth[:, None], following[:, None], kth[:, None])
        update[cut:] = -np.maximum(others, 0.0).ravel()
        change = update - messages
        messages += (1 - damping) * change
        if np.abs(change).max() <= tolerance:
            break
    belief = unary + np.bincount(flat, weights=messages, minlength=len(unary))
    return (belief > 0).astype(np.int64), done
