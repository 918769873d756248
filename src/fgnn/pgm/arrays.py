"""Checks of the arrays that models are built from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def log_potentials(values: ArrayLike, where: str) -> NDArray[np.float64]:
    """A private float64 copy, free of NaN and +inf."""
    theta = np.array(values, dtype=np.float64)
    if theta.size and not theta.max() < np.inf:  # the largest of numbers with a NaN is NaN
        raise ValueError(f"Expected finite or -inf log-potentials (got NaN or +inf in {where})")
    return theta


def finite_sum(old: NDArray[np.float64], new: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """The sum, unless finite summands overflow: the resulting -inf would forbid a state."""
    try:
        with np.errstate(over="raise"):
            return old + new
    except FloatingPointError:
        raise ValueError(f"Expected log-potentials with a finite sum (got an overflow in {where})") from None


def integers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """``values`` as int64; not copied if they are int64 already. An empty list has no dtype and passes."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"Expected integer {what} (got {array.dtype})")
    return array.astype(np.int64, copy=False)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
