"""Seeded random numbers for generated models."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

# For one seed, numbers drawn on the device differ between CPU and GPU; numbers drawn on the CPU and copied do not.
Source = Literal["device", "cpu"]


def generator(seed: int, device: torch.device | str, source: Source) -> torch.Generator:
    """A seeded generator on the device, or on the CPU if ``source`` says so."""
    if source not in ("device", "cpu"):
        raise ValueError(f"Expected numbers drawn on the device or the cpu (got {source!r})")
    return torch.Generator(device if source == "device" else "cpu").manual_seed(seed)


def stream_seed(seed: int, index: int) -> int:
    """The seed of batch ``index`` of a stream, unlike small seeds and those of other streams."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))
