"""Binary models with pairs and budgets as integer programs for HiGHS, for comparison."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.models.map.equivalent import canonical
from fgnn.pgm import ModelBatch


def solve_milp(batch: ModelBatch, time_limit: float | None = None) -> Tensor:
    """Return the best assignments that HiGHS finds within the time limit per model, zeros if none.  # shape: (B, N)

    One 0/1 variable x_i per variable and one y_ij per pair, worth w_ij, with y ≤ x_i, y ≤ x_j and y ≥ x_i + x_j - 1.
    """
    if batch.unary.shape[2] != 2 or any(t.shape != (2, 2) for t in batch.tables):
        raise ValueError("Expected binary variables and tables over pairs (got others)")
    plain = canonical(batch.to("cpu", torch.float64))
    return torch.stack([torch.from_numpy(_solve(plain.select(slice(b, b + 1)), time_limit)) for b in range(len(plain))])


def _solve(model: ModelBatch, time_limit: float | None) -> NDArray[np.int64]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array, vstack

    n = model.num_variables
    unary = (model.unary[0, :, 1] - model.unary[0, :, 0]).numpy()
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(t.scopes.numpy() for t in model.tables)])
    worth = np.concatenate([np.zeros(0), *(t.values[0, :, 1, 1].numpy() for t in model.tables)])
    count, at = len(pairs), np.arange(len(pairs))
    size = n + count

    def rows(columns: list[NDArray[np.int64]], values: list[float]) -> coo_array:
        data = np.repeat(values, count)
        return coo_array((data, (np.tile(at, len(columns)), np.concatenate(columns))), shape=(count, size))

    y = n + at
    blocks, low, high = [], [], []
    for end in (pairs[:, 0], pairs[:, 1]):
        blocks.append(rows([y, end], [1.0, -1.0]))
        low.append(np.full(count, -np.inf))
        high.append(np.zeros(count))
    blocks.append(rows([y, pairs[:, 0], pairs[:, 1]], [1.0, -1.0, -1.0]))
    low.append(np.full(count, -1.0))
    high.append(np.full(count, np.inf))
    for u in model.budgets:
        scopes = u.scopes.numpy()
        place = np.repeat(np.arange(len(scopes)), scopes.shape[1])
        blocks.append(coo_array((np.ones(scopes.size), (place, scopes.reshape(-1))), shape=(len(scopes), size)))
        low.append(u.at_least[0].numpy().astype(float))
        high.append(u.at_most[0].numpy().astype(float))
    result = milp(
        -np.concatenate([unary, worth]),
        integrality=np.concatenate([np.ones(n), np.zeros(count)]),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(vstack(blocks).tocsr(), np.concatenate(low), np.concatenate(high)),
        options={} if time_limit is None else {"time_limit": time_limit},
    )
    if result.x is None:
        return np.zeros(n, dtype=np.int64)
    return np.asarray(result.x[:n] > 0.5).astype(np.int64)
