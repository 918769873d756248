"""Numbers in text: converted in bulk, and checked for what float64 cannot hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
# A number that underflows to 0 has an exponent of three digits, or hundreds of zeros.
_TINY = re.compile(rb"[eE]-\d{3}|0{300}")


def shown(word: bytes | str) -> str:
    """A word quoted, escaped and truncated for a one-line message."""
    text = _decoded(word)
    return ascii(text if len(text) <= 30 else text[:27] + "...")


def to_number(word: bytes | str) -> float:
    """The number a word spells in decimal, NaN for any other word."""
    text = _decoded(word)
    return float(text) if _NUMBER.fullmatch(text) else np.nan


def to_numbers(text: bytes, count: int) -> NDArray[np.float64] | None:
    """The numbers of a text of ``count`` words, or None if some word is not a number."""
    try:
        with warnings.catch_warnings():
            # NumPy before 2.4 only warns when it stops early
            warnings.simplefilter("error", DeprecationWarning)
            values = np.fromstring(text, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    return values if len(values) == count else None


def underflows(word: bytes | str) -> bool:
    """Whether a word spells a nonzero number that float64 rounds to 0: improbable is not impossible."""
    text = _decoded(word)
    return to_number(text) == 0 and bool(re.split("[eE]", text)[0].strip("+-.0"))


def any_underflows(values: NDArray[np.float64], text: bytes, words: Sequence[bytes | str], first: int = 0) -> bool:
    """Whether a word underflows among those whose ``values`` are given, which start at ``words[first]``."""
    if values.all() or not _TINY.search(text):
        return False
    return any(underflows(words[first + k]) for k in np.flatnonzero(values == 0).tolist())


def _decoded(word: bytes | str) -> str:
    if isinstance(word, str):
        return word
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word.decode("latin-1")  # one character per byte
