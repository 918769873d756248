"""Sums of a few numbers that need no launch of their own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class LateSum:
    """The sum of shares (S, ...) over the first axis; a later launch may take it along, and fills ``total``."""

    shares: Tensor
    total: Tensor | None = None

    def reserve(self) -> Tensor:
        """Where the launch that takes it along stores the sum."""
        self.total = self.shares.new_empty(self.shares.shape[1:])
        return self.total

    def value(self) -> Tensor:
        """The sum."""
        if self.total is not None:
            return self.total
        return self.shares[0] if self.shares.shape[0] == 1 else self.shares.sum(0)
