"""Whether a format can hold a field exactly: its name in the header, its values in a type of the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError


def refuse(name: str, why: str, path: Path) -> InputError:
    """The error for a field that a file cannot hold."""
    return InputError(
        f"{path.suffix.lower()} files cannot hold the field {name!r}: {why}; rename or drop it", file=path
    )


def check_word(name: str, path: Path, forbidden: str = "") -> None:
    """Reject a name that is not a single word in a text header, or contains a character of ``forbidden``."""
    if name.encode("utf-8", "surrogateescape").split() != [name.encode("utf-8", "surrogateescape")]:
        raise refuse(name, "its name is empty or has white space", path)
    if any(character in name for character in ("\0", *forbidden)):
        raise refuse(name, f"its name has one of the characters NUL {' '.join(forbidden)}".rstrip(), path)


def check_values(name: str, values: NDArray[Any], kind: np.dtype[Any], path: Path) -> None:
    """Reject values that change when they are stored as ``kind``, and several values per point."""
    if values.ndim != 1:
        raise refuse(name, f"it has {values.shape[1]} values per point", path)
    if not survives(values, kind):
        raise refuse(name, f"some of its values ({values.dtype}) do not fit {kind}", path)


def survives(values: NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether all values are the same after a conversion to ``kind``."""
    source = values.dtype
    if source == kind or source.kind == "b" or not values.size:
        return source.kind in "biuf"
    if source.kind not in "biuf":
        return False
    if kind.kind in "iu":
        if source.kind == "f" and not (np.isfinite(values) & (values == np.round(values))).all():
            return False
        info = np.iinfo(kind)
        return bool(info.min <= int(values.min()) and int(values.max()) <= info.max)
    if source.kind in "iu":
        most = 2 ** (np.finfo(kind).nmant + 1)  # every integer up to here is a number of this type
        return bool(-most <= int(values.min()) and int(values.max()) <= most)
    with np.errstate(all="ignore"):
        return np.array_equal(values.astype(kind).astype(source), values, equal_nan=True)


def plain_kind(kind: np.dtype[Any], wide_integers: bool = True) -> np.dtype[Any]:
    """The type that stores a field in formats without booleans, half precision and, perhaps, 64-bit integers."""
    if kind.kind == "b":
        return np.dtype(np.uint8)
    if kind.kind == "f":
        return np.dtype(np.float32 if kind.itemsize <= 4 else np.float64)
    return kind if wide_integers or kind.itemsize < 8 else np.dtype(np.float64)
