"""What generated families of models share: endless streams, and fixed sets in a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.data.sampling import Source, stream_seed
from fgnn.data.stored import StoredModels, load_models, save_models
from fgnn.pgm import ModelBatch


@dataclass(frozen=True)
class GeneratedModels(ABC):
    """Models of one structure, drawn from a seed and labelled exactly; its fields say which."""

    @abstractmethod
    def sample(
        self,
        count: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        source: Source = "device",
    ) -> ModelBatch:
        """Draw models, on the device where they are used.

        Args:
            count: How many.
            seed: One seed, one set of models (on one kind of device; see ``source``).
            device: Where the tensors lie.
            dtype: Of the potentials.
            source: ``device`` draws there, so that CPU and GPU differ for a seed; ``cpu`` gives equal numbers on both.
        """

    @abstractmethod
    def labels(self, batch: ModelBatch) -> Tensor:
        """The proved optimum of each model, shape (B, N), int64."""

    def batches(self, batch_size: int, seed: int = 0, start: int = 0, **options: Any) -> Iterator[ModelBatch]:
        """An endless stream of fresh batches; ``start`` takes it up again at any place, without drawing those before.

        Options are those of `sample`.
        """
        index = start
        while True:
            yield self.sample(batch_size, seed=stream_seed(seed, index), **options)
            index += 1

    def save(self, folder: str | Path, count: int, seed: int = 0) -> StoredModels:
        """Draw a fixed set, label it, and write it; a file is written whole or not at all."""
        batch = self.sample(count, seed=seed, source="cpu")
        save_models(folder, StoredModels(self, batch, self.labels(batch), seed))
        return self.load(folder)

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> StoredModels:
        """Read a set back: the family that drew it, its models and its labels."""
        return load_models(folder, device=device, expected=cls)
