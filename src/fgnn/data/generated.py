"""Families of generated models: samples, endless streams, and fixed sets in a folder, all drawn from seeds."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fgnn.data.stored import StoredModels, load_models, save_models
from fgnn.graph import Structure
from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch

# For one seed, numbers drawn on the device differ between CPU and GPU; those drawn on the CPU and copied do not.
Source = Literal["device", "cpu"]


class Random:
    """Seeded random tensors on a device."""

    def __init__(self, seed: int, device: torch.device | str, dtype: torch.dtype, source: Source) -> None:
        if source not in ("device", "cpu"):
            raise ValueError(f"Expected numbers drawn on the device or the cpu (got {source!r})")
        self.device, self.dtype = device, dtype
        self._generator = torch.Generator(device if source == "device" else "cpu").manual_seed(seed)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1)."""
        numbers = torch.rand(*shape, generator=self._generator, device=self._generator.device, dtype=self.dtype)
        return numbers.to(self.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        numbers = torch.randn(*shape, generator=self._generator, device=self._generator.device, dtype=self.dtype)
        return numbers.to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform in low..high, both included."""
        device = self._generator.device
        return torch.randint(low, high + 1, shape, generator=self._generator, device=device).to(self.device)


@dataclass(frozen=True)
class GeneratedModels(ABC):
    """A family of models of one structure, drawn from a seed and labelled exactly; its fields are its parameters."""

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
            count: Number of models.
            seed: Determines the models (on one kind of device; see ``source``).
            device: Of the tensors.
            dtype: Of the potentials.
            source: ``device`` draws on the device, so CPU and GPU differ for one seed; ``cpu`` draws the same for both.
        """
        return self._draw(count, Random(seed, device, dtype, source))

    def _draw(self, count: int, random: Random) -> ModelBatch:
        """Draw models; what a family defines, unless it overrides `sample`."""
        raise NotImplementedError

    @abstractmethod
    def labels(self, batch: ModelBatch) -> Tensor:
        """The proved optimum of each model, shape (B, N), int64."""

    def batches(self, batch_size: int, seed: int = 0, start: int = 0, **options: Any) -> Iterator[ModelBatch]:
        """An endless stream of new batches; ``start`` resumes it at any batch without drawing those before.

        Options are those of `sample`.
        """
        for index in itertools.count(start):
            # unlikely to equal a seed chosen by hand, or one of another stream
            state = np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)
            yield self.sample(batch_size, seed=int(state[0] >> np.uint64(1)), **options)

    def save(self, folder: str | Path, count: int, seed: int = 0) -> StoredModels:
        """Draw and label a fixed set, and write it to a folder; files are never left half written."""
        batch = self.sample(count, seed=seed, source="cpu")
        save_models(folder, StoredModels(self, batch, self.labels(batch), seed))
        return self.load(folder)

    @classmethod
    def load(cls, folder: str | Path, device: torch.device | str = "cpu") -> StoredModels:
        """Read a saved set: its family, models and labels."""
        return load_models(folder, device=device, expected=cls)

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"Expected a {name} of at least 1 (got {getattr(self, name)})")


def pairs_and_budgets(
    structure: Structure, unary: Tensor, pairs: Tensor, at_most: Tensor, shared: frozenset[str] = frozenset()
) -> ModelBatch:
    """Models with one group of pairs, if there are any, and one of budgets.

    Args:
        structure: On the device of the tensors.
        unary: Shape (B, N, 2).
        pairs: Values, shape (B, C, 2, 2); a leading axis of 1 if shared.
        at_most: Shape (B, budgets); a leading axis of 1 if shared.
        shared: Which of ``values`` and ``at_most`` all models share.
    """
    count = len(unary)
    tables: tuple[TableBatch, ...] = ()
    if "table0" in structure.groups:
        scopes = structure.groups["table0"].scopes
        tables = (TableBatch(scopes, pairs.expand(count, -1, -1, -1), shared=shared & {"values"}),)
    budgets = BudgetBatch(
        scopes=structure.groups["budget0"].scopes,
        at_least=torch.zeros(1, 1, dtype=torch.int64, device=unary.device).expand(count, at_most.shape[1]),
        at_most=at_most.expand(count, -1),
        shared=shared & {"at_most"} | {"at_least"},
    )
    return ModelBatch(structure, unary, tables, (budgets,), unary.new_zeros(count))
