"""What every factor allows on its own: the cheapest bounds there are, on both sides."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch


def factor_maxima(batch: ModelBatch) -> Tensor:
    """Each factor at its best regardless of the others: an upper bound on every score, float64 (B,)."""
    total = batch.constant.double() + _flat(batch.unary.double(), 2).amax(2).sum(1)
    for t in batch.tables:
        total = total + _flat(t.values, 2).amax(2).double().sum(1)
    return total


def factor_minima(batch: ModelBatch) -> Tensor:
    """Each factor at its worst finite entry: no feasible assignment scores less, float64 (B,).

    So a model whose bound is below this has no feasible assignment.
    """
    total = batch.constant.double() + _least(batch.unary.double()).sum(1)
    for t in batch.tables:
        total = total + _least(t.values.double()).sum(1)
    return total


def _least(values: Tensor) -> Tensor:
    flat = _flat(values, 2)
    least = flat.masked_fill(flat == -torch.inf, torch.inf).amin(2)
    return least.masked_fill(least == torch.inf, 0.0)


def _flat(values: Tensor, dim: int) -> Tensor:
    return values.flatten(dim) if values.dim() > dim else values.unsqueeze(dim)
