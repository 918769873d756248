"""Max-product and sum-product in NumPy for a single binary model, vectorised over its factors: peers of the batched
methods.

They run the same algorithm (flooding, damping, message ratios, budgets by sorting, the same stopping rule) in as few
array operations as a single model allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm import BudgetGroup, GraphicalModel

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
    (budgets,) = model.budget_groups
    if budgets.at_least.any():
        raise ValueError(f"Expected budgets with an upper bound only (got {model!r})")
    belief, done = _belief_ratios(model, np.maximum, budgets, iterations, damping, tolerance)
    return (belief > 0).astype(np.int64), done


def numpy_sum_product(
    model: GraphicalModel, iterations: int = 200, damping: float = 0.5, tolerance: float = 1e-5
) -> Floats:
    """The probability of every state, (N, 2), of a model of binary variables and pairs; arguments as above."""
    if model.budget_groups:
        raise ValueError(f"Expected binary pairs alone (got {model!r})")
    belief, _ = _belief_ratios(model, np.logaddexp, None, iterations, damping, tolerance)
    one = 1 / (1 + np.exp(-belief))
    return np.stack([1 - one, one], 1)


def _belief_ratios(
    model: GraphicalModel,
    join: Callable[[Floats, Floats], Floats],
    budgets: BudgetGroup | None,
    iterations: int,
    damping: float,
    tolerance: float,
) -> tuple[Floats, int]:
    """The log-ratio of state 1 to state 0 by variable (N,), and the number of iterations."""
    unaries = model.unaries.reshape(-1, 2)
    unary = unaries[:, 1] - unaries[:, 0]
    (pairs,) = model.table_groups
    if pairs.shape != (2, 2):
        raise ValueError(f"Expected binary pairs (got {model!r})")
    theta = pairs.values  # shape: (C, 2, 2)
    first, second = pairs.scopes.T
    edges, cut = len(first), 2 * len(first)
    flat = np.concatenate([first, second, *([] if budgets is None else [budgets.scopes.ravel()])])
    messages, update = np.zeros(len(flat)), np.empty(len(flat))
    done = 0
    while done < iterations:
        done += 1
        belief = unary + np.bincount(flat, weights=messages, minlength=len(unary))
        nu = belief[flat] - messages
        from_first, from_second = nu[:edges], nu[edges:cut]
        update[:edges] = join(theta[:, 1, 0], theta[:, 1, 1] + from_second) - join(
            theta[:, 0, 0], theta[:, 0, 1] + from_second
        )
        update[edges:cut] = join(theta[:, 0, 1], theta[:, 1, 1] + from_first) - join(
            theta[:, 0, 0], theta[:, 1, 0] + from_first
        )
        if budgets is not None:
            update[cut:] = _budget_ratios(nu[cut:].reshape(budgets.scopes.shape), budgets.at_most).ravel()
        change = update - messages
        messages += (1 - damping) * change
        if np.abs(change).max() <= tolerance:
            break
    return unary + np.bincount(flat, weights=messages, minlength=len(unary)), done


def _budget_ratios(nu: Floats, at_most: NDArray[np.int64]) -> Floats:
    """Max-product messages of budgets: a one costs the k-th largest of the others, if that is positive.

    # shapes: (C, n), (C,) -> (C, n)
    """
    count, size = nu.shape
    rows = np.arange(count)
    order = np.sort(nu, axis=1)[:, ::-1]
    kth = order[rows, at_most - 1]
    following = np.where(at_most < size, order[rows, np.minimum(at_most, size - 1)], -np.inf)
    others = np.where(nu >= kth[:, None], following[:, None], kth[:, None])
    return -np.maximum(others, 0.0)
