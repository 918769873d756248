"""Ground labels of airborne LiDAR: the samples of the ISPRS filter test and class codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fgnn.errors import InputError
from fgnn.points import Cloud

# ASPRS codes.
GROUND, OTHER = 2, 1

# The fifteen samples of the ISPRS test (Sithole and Vosselman 2004); the first digit is the site: town (1 to 4) or
# country (5 to 7).
SAMPLES = (
    "samp11", "samp12", "samp21", "samp22", "samp23", "samp24", "samp31", "samp41", "samp42", "samp51", "samp52",
    "samp53", "samp54", "samp61", "samp71",
)  # fmt: skip


def read_samples(file: str | Path) -> dict[str, Cloud]:
    """The ISPRS samples of one ``.npz`` (``samp11_xyz``, ``samp11_ground``, …), each with ``classification``."""
    clouds = {}
    with np.load(file, allow_pickle=False) as arrays:
        for name in SAMPLES:
            if f"{name}_xyz" not in arrays or f"{name}_ground" not in arrays:
                raise InputError(f"Expected {name}_xyz and {name}_ground", file=file)
            label = np.where(arrays[f"{name}_ground"] == 1, GROUND, OTHER).astype(np.uint8)
            clouds[name] = Cloud(arrays[f"{name}_xyz"].astype(np.float64), {"classification": label})
    return clouds
