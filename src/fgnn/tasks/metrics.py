"""Quality of assignments against the exact MAP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

BATCH = 32  # the paper's ± is the standard deviation of means over batches of this size


@dataclass(frozen=True)
class Quality:
    """Agreement with the exact MAP (mean, and standard deviation over batches of 32), the shares of optimal and
    feasible instances, and the mean score lost by the feasible ones."""

    agreement: float
    deviation: float | None  # None for fewer than two batches
    optimal: float
    feasible: float
    gap: float | None  # None if no instance is feasible
    count: int

    @classmethod
    def of(cls, batch: ModelBatch, answer: Tensor, labels: Tensor) -> Quality:
        """Compare answers with exact labels, (B, N) each.

        An instance is optimal if its score equals the optimum, whichever assignment reaches it.
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
