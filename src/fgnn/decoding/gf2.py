"""Linear algebra over GF(2) with 64 columns to a word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Words = NDArray[np.uint64]


def pack(matrix: Bits) -> Words:
    """Pack the columns of a matrix: bit k of word w is column 64 w + k.  # shape: (m, n) -> (m, words)"""
    m, n = matrix.shape
    padded = np.zeros((m, -(-n // 64) * 64), np.uint8)
    padded[:, :n] = matrix
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def unpack(words: Words, columns: int) -> Bits:
    """Undo `pack`."""
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :columns]


def reduce(matrix: Bits) -> tuple[Bits, list[int]]:
    """Return the reduced row echelon form without its zero rows, and the pivot columns."""
    rows = pack(np.ascontiguousarray(matrix))
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        word, bit = column // 64, np.uint64(column % 64)
        ones = (rows[:, word] >> bit) & np.uint64(1)
        at = len(pivots)
        below = np.flatnonzero(ones[at:])
        if not len(below):
            continue
        pivot = at + int(below[0])
        rows[[at, pivot]], ones[[at, pivot]] = rows[[pivot, at]], ones[[pivot, at]]
        ones[at] = 0
        rows[ones != 0] ^= rows[at]
        pivots.append(column)
        if len(pivots) == len(rows):
            break
    return unpack(rows[: len(pivots)], matrix.shape[1]), pivots


def rank(matrix: Bits) -> int:
    """The rank over GF(2)."""
    return len(reduce(matrix)[1])


def nullspace(matrix: Bits) -> Bits:
    """A basis of the vectors x with H x = 0, one per row."""
    reduced, pivots = reduce(matrix)
    free = np.setdiff1d(np.arange(matrix.shape[1]), pivots)
    basis = np.zeros((len(free), matrix.shape[1]), np.uint8)
    basis[np.arange(len(free)), free] = 1
    basis[:, pivots] = reduced[:, free].T
    return basis
