"""The cheapest upper bound: every factor at its own maximum."""

from __future__ import annotations

from torch import Tensor

from fgnn.pgm import ModelBatch


def factor_maxima(batch: ModelBatch) -> Tensor:
    """The sum of all factors' maxima, an upper bound on every score.  # shape: (B,), float64"""
    total = batch.constant.double() + batch.unary.double().amax(2).sum(1)
    for t in batch.tables:
        values = t.values.flatten(2) if t.values.dim() > 2 else t.values.unsqueeze(2)
        total = total + values.amax(2).double().sum(1)
    return total
