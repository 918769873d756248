"""Checks on the values of data sets: finite numbers of sensible size, and valid classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, reason
from fgnn.files import check_input

LARGEST = 1e15  # far beyond any scan; its square fits float32


def as_float32(file: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    """Checked coordinates or features as float32."""
    return within(file, values).astype(np.float32, copy=False)


def within(file: Path, values: NDArray[Any]) -> NDArray[Any]:
    """The values; raises `InputError` if one is NaN or beyond ±LARGEST."""
    # min and max propagate NaN; float() because the bound overflows half precision
    if values.size and not (float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST):
        raise InputError(f"Expected numbers within ±{LARGEST:g} (got {values.min()}..{values.max()})", file=file)
    return values


def as_classes(file: Path, values: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Checked labels below ``count`` as uint8."""
    if values.size and not (values.min() >= 0 and values.max() < count):
        raise InputError(f"Expected classes 0..{count - 1} (got {values.min()}..{values.max()})", file=file)
    return values.astype(np.uint8, copy=False)


def read_rows(file: Path, columns: int, lines: list[str] | None = None) -> NDArray[np.float64]:
    """The numbers of a text file with ``columns`` per line; ``lines`` if it has already been read."""
    if lines is None:
        check_input(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns about empty input
            rows = np.loadtxt(file if lines is None else lines, dtype=np.float64, ndmin=2)
    except (OSError, ValueError, UserWarning) as error:
        raise InputError(f"cannot be read ({reason(error)})", file=file) from error
    if rows.shape[1] != columns:
        raise InputError(f"Expected {columns} columns (got {rows.shape[1]})", file=file)
    return within(file, rows)


def check_same_points(files: Sequence[Path], arrays: Sequence[NDArray[Any]]) -> None:
    """Reject files whose arrays (S, P, …) differ in P from the first."""
    for file, array in zip(files, arrays, strict=True):
        if array.shape[1] != arrays[0].shape[1]:
            raise InputError(f"Expected {arrays[0].shape[1]} points each (got {array.shape[1]})", file=file)
