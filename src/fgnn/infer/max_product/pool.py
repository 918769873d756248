"""The models that max-product is working on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.numbers import Numbers


@dataclass(eq=False)
class Pool:
    """Some models of a batch, with their messages and their progress."""

    models: Tensor  # shape: (b,), indices in the batch
    numbers: Numbers
    messages: Tensor  # shape: (Q or 2Q, b)
    active: Tensor  # shape: (b,), bool: not converged, with iterations left
    converged: Tensor  # shape: (b,), bool
    done: Tensor  # shape: (b,), iterations

    @classmethod
    def fresh(cls, models: Tensor, numbers: Numbers, rows: int) -> Pool:
        """Models that have not begun; ``numbers`` are those of the whole batch."""
        return cls(
            models=models,
            numbers=numbers if len(models) == numbers.unary.shape[1] else numbers.columns(models),
            messages=numbers.unary.new_zeros(rows, len(models)),
            active=torch.ones_like(models, dtype=torch.bool),
            converged=torch.zeros_like(models, dtype=torch.bool),
            done=torch.zeros_like(models),
        )

    def at(self, mask: Tensor) -> Pool:
        """The models where a mask holds."""
        which = mask.nonzero().flatten()
        return Pool(
            self.models[which], self.numbers.columns(which), *(t.index_select(-1, which) for t in self._progress)
        )

    def joined(self, other: Pool, numbers: Numbers) -> Pool:
        """These models and others; ``numbers`` are those of the whole batch."""
        if not len(self.models):
            return other
        models = torch.cat([self.models, other.models])
        progress = (torch.cat(pair, -1) for pair in zip(self._progress, other._progress, strict=True))
        return Pool(models, numbers.columns(models), *progress)

    @property
    def _progress(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.messages, self.active, self.converged, self.done
