"""How well answers meet the exact ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

BATCH = 32  # the paper's ± turns out to be the standard deviation of means over batches of this many


@dataclass(frozen=True)
class Quality:
    """Of a set of instances: agreement with the exact MAP (mean and the standard deviation over batches of 32), how
    many instances are wholly optimal and feasible, and the mean loss in score of the feasible ones."""

    agreement: float
    deviation: float | None  # None: fewer than two batches
    optimal: float
    feasible: float
    gap: float | None  # None: none is feasible
    count: int

    @classmethod
    def of(cls, batch: ModelBatch, answer: Tensor, labels: Tensor) -> Quality:
        """Of answers and exact labels, (B, N) each.

        An instance is optimal where its score equals the optimum's: another assignment of the same score is as good.
        """
        hits = (answer == labels).double().mean(1)
        best, score = batch.score(labels), batch.score(answer)
        feasible = score > -torch.inf
        slack = 1e-6 * best.abs().clamp(min=1.0)
        loss = (best - score)[feasible]
        means = hits[: len(hits) // BATCH * BATCH].view(-1, BATCH).mean(1)
        return cls(
            agreement=float(hits.mean()),
            deviation=float(means.std()) if len(means) > 1 else None,
            optimal=float((score >= best - slack).double().mean()),
            feasible=float(feasible.double().mean()),
            gap=float(loss.mean()) if len(loss) else None,
            count=len(hits),
        )
