"""Lines of numbers as records, for the formats that write points in text after a header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.errors import InputError


def records_of(lines: Sequence[bytes], dtype: np.dtype[Any], file: Path, place: str) -> np.ndarray:
    """One record a line, a number for each of its fields; ``place`` says where the lines stand, for the refusal."""
    names = dtype.names or ()
    try:
        if not lines[0].strip():  # NumPy would warn where all lines are empty
            raise ValueError("an empty line")
        rows = np.loadtxt(lines, dtype=np.float64, ndmin=2, comments=None)
        if rows.shape != (len(lines), len(names)):
            raise ValueError("wrong number of values")
    except ValueError as error:
        raise InputError(f"Expected {len(names)} numbers a line", file=file, place=place) from error
    records = np.empty(len(lines), dtype)
    for column, name in enumerate(names):
        with np.errstate(invalid="ignore", over="ignore"):
            records[name] = rows[:, column]
    return records
