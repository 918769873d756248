"""The slots of each target in one padded table, so that sums and maxima over them are gathers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def padded_width(targets: Tensor, count: int) -> int:
    """The largest number of slots that any of ``count`` targets has."""
    return int(torch.bincount(targets, minlength=count).max()) if targets.numel() else 0


def slots_by_target(targets: Tensor, count: int) -> Tensor:
    """The slots s with ``targets[s] == t``, in order, for each of ``count`` targets t.

    Rows with fewer slots than the longest are padded with the number of slots, one past the last.

    Returns:
        Slots, shape (count, D), int64.
    """
    slots = targets.numel()
    ordered, order = torch.sort(targets, stable=True)
    degree = torch.bincount(targets, minlength=count)
    table = torch.full((count, padded_width(targets, count)), slots, device=targets.device)
    table[ordered, torch.arange(slots, device=targets.device) - (degree.cumsum(0) - degree)[ordered]] = order
    return table


@dataclass(frozen=True, eq=False)
class PaddedIncidence:
    """Sums and maxima over the slots of each target."""

    slots: Tensor  # shape: (T, D), int64; padded with the number of slots

    @classmethod
    def of(cls, targets: Tensor, count: int) -> PaddedIncidence:
        """``targets[s]`` is the target of slot s, one of ``count``."""
        return cls(slots_by_target(targets, count))

    def sum(self, values: Tensor) -> Tensor:
        """(R, S, ...) over slots to (R, T, ...) over targets."""
        return self._gather(values, 0).sum(2)

    def max(self, values: Tensor, empty: float) -> Tensor:
        """(R, S, ...) over slots to (R, T, ...) over targets; ``empty`` where a target has no slot."""
        if self.slots.shape[1] == 0:
            return values.new_full((values.shape[0], self.slots.shape[0], *values.shape[2:]), empty)
        return self._gather(values, empty).amax(2)

    def _gather(self, values: Tensor, padding: float) -> Tensor:
        pad = values.new_full((values.shape[0], 1, *values.shape[2:]), padding)
        picked = torch.cat([values, pad], 1).index_select(1, self.slots.reshape(-1))
        return picked.reshape(values.shape[0], *self.slots.shape, *values.shape[2:])
