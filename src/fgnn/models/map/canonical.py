"""Canonical form: models that differ only by a reparametrisation look the same to a network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch


def canonical(batch: ModelBatch) -> ModelBatch:
    """An equivalent batch of binary models whose 2 × 2 tables are zero except for the entry (1, 1).

    θ(x, y) = θ₀₀ + (θ₁₀ − θ₀₀) x + (θ₀₁ − θ₀₀) y + w xy with w = θ₁₁ − θ₁₀ − θ₀₁ + θ₀₀: the first term moves to the
    model's constant, the linear terms move to the unaries, and the table becomes [[0, 0], [0, w]]. Scores do not change
    beyond rounding. Other tables, and other models, are returned unchanged. Entries must be finite.
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
    """Whether all tables and all unaries of real states are finite: a 0-dimensional bool tensor."""
    finite = torch.isfinite(batch.unary[:, batch.state_mask]).all()
    for t in batch.tables:
        finite = finite & torch.isfinite(t.distinct("values")).all()
    return finite
