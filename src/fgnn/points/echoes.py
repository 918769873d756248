"""Intensity and return numbers of a laser scan as features, with flags where they are missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import Cloud

# Columns read from a scan, and columns of features.
RAW_COLUMNS, ECHO_COLUMNS = 3, 6


def raw_echoes(cloud: Cloud) -> NDArray[np.float32]:
    """Intensity, return number and number of returns, NaN where the scan has none.  # shape: (N, 3)"""
    out = np.full((len(cloud), RAW_COLUMNS), np.nan, np.float32)
    intensity = cloud.fields.get("intensity")
    if intensity is not None and intensity.ndim == 1:
        out[:, 0] = intensity
    number, total = (cloud.fields.get(name) for name in ("return_number", "number_of_returns"))
    if number is not None and total is not None:
        known = (number > 0) & (total > 0)
        out[known, 1], out[known, 2] = number[known], total[known]
    return out


def echo_features(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features of the points of one tile from `raw_echoes`.  # shape: (P, 3) -> (P, 6)

    The scale of intensities differs by sensor, so they are divided by the tile's median. The columns are its logarithm;
    whether the point is a last, an only or a later return; and whether intensity and returns are known.
    """
    out = np.zeros((len(raw), ECHO_COLUMNS), np.float32)
    intensity, number, total = raw.T
    known = np.isfinite(intensity)
    middle = float(np.median(intensity[known])) if known.any() else 0.0
    if middle > 0:
        out[known, 0] = np.clip(np.log2((np.maximum(intensity[known], 0) + 1) / (middle + 1)), -4, 4) / 2
        out[:, 4] = known
    counted = np.isfinite(number)
    out[:, 1] = counted & (number >= total)
    out[:, 2] = counted & (total == 1)
    out[:, 3] = counted & (number > 1)
    out[:, 5] = counted
    return out
