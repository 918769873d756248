"""The same model in one canonical form, so that a network need not learn that many forms mean one thing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch


def canonical(batch: ModelBatch) -> ModelBatch:
    """An equivalent batch whose finite 2 × 2 tables have their one interaction in the corner.

    θ(x, y) = θ₀₀ + (θ₁₀ − θ₀₀) x + (θ₀₁ − θ₀₀) y + w xy with w = θ₁₁ − θ₁₀ − θ₀₁ + θ₀₀: the constant goes to the
    constant, the two linear terms to the unaries, and [[0, 0], [0, w]] stays. Scores are the same up to rounding; other
    tables stay as they are.
    """
    unary, constant, tables = batch.unary, batch.constant, []
    if batch.unary.shape[2] != 2:
        return batch
    for t in batch.tables:
        if t.shape != (2, 2):
            tables.append(t)
            continue
        v = t.distinct("values")
        v00, v01, v10, v11 = v[..., 0, 0], v[..., 0, 1], v[..., 1, 0], v[..., 1, 1]  # shape: (B, C)
        corner = torch.zeros_like(v)
        corner[..., 1, 1] = v11 - v10 - v01 + v00
        tables.append(replace(t, values=corner.expand(t.values.shape)))
        lift = torch.zeros_like(v[:, :1, 0, 0]).repeat(1, batch.num_variables)  # shape: (B, N)
        lift = lift.index_add(1, t.scopes[:, 0], v10 - v00).index_add(1, t.scopes[:, 1], v01 - v00)
        unary = unary + torch.stack([torch.zeros_like(lift), lift], -1)
        constant = constant + v00.sum(1)
    return replace(batch, unary=unary, tables=tuple(tables), constant=constant)


def finite_tables(batch: ModelBatch) -> Tensor:
    """Whether no table and no real unary of the batch holds -inf: a 0-dimensional bool tensor."""
    found = torch.isfinite(batch.unary[:, batch.state_mask]).all()
    for t in batch.tables:
        found = found & torch.isfinite(t.distinct("values")).all()
    return found
