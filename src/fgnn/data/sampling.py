"""Random numbers for generated models, and the seeds of a stream of batches."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

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


def stream_seed(seed: int, index: int) -> int:
    """The seed of batch ``index`` of a stream: unlikely to equal a seed chosen by hand, or one of another stream."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))
