"""What every factor allows on its own: the cheapest bound there is."""

from __future__ import annotations

from torch import Tensor

from fgnn.pgm import ModelBatch


def factor_maxima(batch: ModelBatch) -> Tensor:
    """Each factor at its best regardless of the others: an upper bound on every score, float64 (B,)."""
    total = batch.constant.double() + _flat(batch.unary.double(), 2).amax(2).sum(1)
    for t in batch.tables:
        total = total + _flat(t.values, 2).amax(2).double().sum(1)
    return total


def _flat(values: Tensor, dim: int) -> Tensor:
    return values.flatten(dim) if values.dim() > dim else values.unsqueeze(dim)
