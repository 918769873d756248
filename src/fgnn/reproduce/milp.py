"""Models as integer programs for HiGHS, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.lp.program import linear_program
from fgnn.models.map.equivalent import canonical
from fgnn.pgm import ModelBatch


def solve_milp(batch: ModelBatch, time_limit: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the best assignments that HiGHS finds within the time limit per model, and whether it claims a proof.

    Assignments have shape (B, N), zeros where it finds none; claims (B,), bool.

    A model of binary variables and finite pairs has one 0/1 variable x_i per variable and one y_ij per pair, worth
    w_ij, with y ≤ x_i, y ≤ x_j and y ≥ x_i + x_j - 1. Any other model is the relaxation of `lp` with integer states.
    """
    if batch.structured:
        raise ValueError("Expected tables and budgets only (got a structured factor); expand the models first")
    plain = batch.to("cpu", torch.float64)
    pairs = batch.unary.shape[2] == 2 and bool((batch.cardinalities == 2).all())
    pairs = pairs and all(t.shape == (2, 2) and bool(t.values.isfinite().all()) for t in batch.tables)
    pairs = pairs and bool(batch.unary.isfinite().all())
    if pairs:
        plain = canonical(plain)
    answers, proved = [], []
    for b in range(len(plain)):
        one = plain.select(slice(b, b + 1))
        states, claim = _solve_pairs(one, time_limit) if pairs else _solve_any(one, time_limit)
        answers.append(torch.from_numpy(states))
        proved.append(claim)
    return torch.stack(answers), torch.tensor(proved)


def _solve_any(model: ModelBatch, time_limit: float | None) -> tuple[NDArray[np.int64], bool]:
    """The relaxation of `lp` with integer states."""
    from scipy.optimize import Bounds, LinearConstraint

    program, numbers = linear_program(model)
    states = np.zeros(model.num_variables, dtype=np.int64)
    if numbers.infeasible[0]:
        return states, True
    constraints = [LinearConstraint(program.equal, program.equal_to, program.equal_to)]
    if program.less.shape[0]:
        constraints.append(LinearConstraint(program.less, -np.inf, numbers.less_than[0]))
    cost = numbers.cost[0]
    integral = (np.arange(cost.size) < program.num_states).astype(np.int64)
    x, proved = _run(cost, integral, Bounds(numbers.lower[0], numbers.upper[0]), constraints, time_limit)
    if x is not None:
        for i, (first, k) in enumerate(zip(program.first.tolist(), program.cardinalities.tolist(), strict=True)):
            marginals = x[first : first + k - 1]
            states[i] = 1 + int(marginals.argmax()) if marginals.sum() > 0.5 else 0
    return states, proved


def _run(
    cost: NDArray[np.float64], integral: NDArray[np.int64], bounds: Any, constraints: Any, time_limit: float | None
) -> tuple[NDArray[np.float64] | None, bool]:
    """HiGHS's solution, None if it has none, and whether it claims a proof."""
    from scipy.optimize import milp

    options = {} if time_limit is None else {"time_limit": time_limit}
    result = milp(cost, integrality=integral, bounds=bounds, constraints=constraints, options=options)
    return result.x, result.status in (0, 2)


def _solve_pairs(model: ModelBatch, time_limit: float | None) -> tuple[NDArray[np.int64], bool]:
    from scipy.optimize import Bounds, LinearConstraint
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
    x, proved = _run(
        -np.concatenate([unary, worth]),
        (np.arange(size) < n).astype(np.int64),
        Bounds(0, 1),
        LinearConstraint(vstack(blocks).tocsr(), np.concatenate(low), np.concatenate(high)),
        time_limit,
    )
    states = np.zeros(n, dtype=np.int64) if x is None else np.asarray(x[:n] > 0.5).astype(np.int64)
    return states, proved
