"""Random numbers as functions of seed, purpose and step: a resumed run needs no generator state."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from fgnn.runtime.distributed import World


def seed_for(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit seed from the seed of a run, a purpose (``train``, ``validation``, ``test``) and counters.

    Streams of different purposes meet only if 63-bit hashes collide, so test instances were never trained on.
    """
    if seed < 0:
        raise ValueError(f"Expected a seed of at least 0 (got {seed})")
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *counters])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def epoch_order(count: int, seed: int, purpose: str, epoch: int) -> Tensor:
    """Return the order in which an epoch visits its items.  # shape: (count,)"""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(seed, purpose, epoch)))


class EpochBatches:
    """Indices of the batch of each step, in a new order every epoch; items that do not fill a batch are left out.

    Args:
        count: Items of the set, which is the same in every process.
        batch: Items of a step, over all processes.
        seed: The seed of the run.
        purpose: The purpose of the random numbers, as for `seed_for`.
        world: The processes that share each batch.
        device: The device of the indices.
    """

    def __init__(
        self, count: int, batch: int, seed: int, purpose: str, world: World, device: torch.device | str = "cpu"
    ) -> None:
        self.count, self.size, self.seed, self.purpose, self.device = count, batch, seed, purpose, device
        self.steps = count // batch
        self._share = world.share(batch)
        self._order: tuple[int, Tensor] | None = None

    def __call__(self, step: int) -> Tensor:
        """Return the indices of this process's share of a step.  # shape: (batch / processes,)"""
        epoch, place = divmod(step, self.steps)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, epoch_order(self.count, self.seed, self.purpose, epoch).to(self.device))
        return self._order[1][place * self.size : (place + 1) * self.size][self._share]
