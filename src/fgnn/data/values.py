"""What arrays and lines of data sets may hold: numbers that arithmetic can work with, and classes that there are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, reason

LARGEST = 1e15  # far beyond any scan, and its square still far within float32


def as_float32(file: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    """Coordinates and features as they are used."""
    return within(file, values).astype(np.float32, copy=False)


def within(file: Path, values: NDArray[Any]) -> NDArray[Any]:
    """The numbers themselves, or a refusal where one is NaN or larger than any scan has."""
    # min and max pass NaN on; float() because half precision knows no such bound
    if values.size and not (float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST):
        raise InputError(f"Expected numbers within ±{LARGEST:g} (got {values.min()}..{values.max()})", file=file)
    return values


def as_classes(file: Path, values: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Labels as they are used, each below ``count``."""
    if values.size and not (values.min() >= 0 and values.max() < count):
        raise InputError(f"Expected classes 0..{count - 1} (got {values.min()}..{values.max()})", file=file)
    return values.astype(np.uint8, copy=False)


def read_rows(file: Path, columns: int, lines: list[str] | None = None) -> NDArray[np.float64]:
    """The numbers of a text file, so many on every line; ``lines`` where they have been read already."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # that there is no data is a warning to NumPy
            rows = np.loadtxt(file if lines is None else lines, dtype=np.float64, ndmin=2)
    except (OSError, ValueError, UserWarning) as error:
        raise InputError(f"cannot be read ({reason(error)})", file=file) from error
    if rows.shape[1] != columns:
        raise InputError(f"Expected {columns} columns (got {rows.shape[1]})", file=file)
    return within(file, rows)
