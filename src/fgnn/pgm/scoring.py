"""Scores of assignments under one model, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm.checks import check_state

if TYPE_CHECKING:
    from fgnn.pgm.model import GraphicalModel

# Assignments are scored in slices of about this many gathered entries, to bound temporary memory.
_MOST_ENTRIES = 1 << 22


def score_assignments(model: GraphicalModel, states: NDArray[np.int64]) -> NDArray[np.float64]:
    """The scores of assignments; ``-inf`` where a constraint is violated.  # shape: (B, N) to (B,)"""
    bad = (states < 0) | (states >= model.cardinalities)
    if bad.any():
        b, i = (int(v) for v in np.argwhere(bad)[0])
        check_state(i, int(states[b, i]), int(model.cardinalities[i]))
    widest = max([model.num_variables, *(group.scopes.size for group in model.groups)])
    step = max(1, _MOST_ENTRIES // max(1, widest))
    try:
        with np.errstate(over="raise"):
            parts = [_score_slice(model, states[at : at + step]) for at in range(0, len(states), step)]
    except FloatingPointError:
        raise ValueError("Expected log-potentials with a finite sum (got an overflow)") from None
    return np.concatenate(parts) if parts else np.zeros(0)


def _score_slice(model: GraphicalModel, states: NDArray[np.int64]) -> NDArray[np.float64]:
    offsets = np.cumsum(model.cardinalities) - model.cardinalities
    total = model.unaries[offsets + states].sum(1) + model.constant
    for tables in model.table_groups:
        flat = tables.values.reshape(len(tables.values), -1)
        strides = np.cumprod([1, *tables.shape[:0:-1]])[::-1]
        cell = states[:, tables.scopes] @ strides  # shape: (B, C)
        total += flat[np.arange(len(flat)), cell].sum(1)
    for budgets in model.budget_groups:
        ones = states[:, budgets.scopes].sum(2)  # shape: (B, C)
        broken = ((ones < budgets.at_least) | (ones > budgets.at_most)).any(1)
        total[broken] = -np.inf
    for group in model.structured_groups:
        numbers = {name: torch.from_numpy(v)[None] for name, v in group.numbers.items()}
        theta = group.kind.potentials(group.shape, numbers)
        x = torch.from_numpy(states[:, group.scopes])  # shape: (B, C, n)
        total += group.kind.score(group.shape, x, theta).numpy().sum(1)
    return np.asarray(total, dtype=np.float64)
