"""Parity-check codes: the checks of a binary matrix as index arrays, with rank, encoder and syndromes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.decoding.gf2 import nullspace, rank
from fgnn.drawing import FactorMark, Sketch, States
from fgnn.drawing.sketch import BROKEN_COLOUR, CONSTRAINT_COLOUR, check_nodes
from fgnn.graph import FactorGraph, FactorGroup

Bits = NDArray[np.uint8]

# The rank of more checks than this would take minutes.
_MOST_FOR_RANK = 4096
# Name and colour of a check that a word satisfies, and of one that it violates.
_MARKS = (("check", CONSTRAINT_COLOUR), ("violated", BROKEN_COLOUR))


@dataclass(frozen=True, eq=False)
class Code:
    """A binary linear code: the words x with H x = 0 (mod 2).

    Attributes:
        num_bits: Columns of H.
        starts: Check c has the bits ``bits[starts[c] : starts[c + 1]]``.  # shape: (checks + 1,)
        bits: The bits of every check, ascending within a check.  # shape: (edges,)
        hidden: The first bits, this many, are never sent; a receiver knows nothing about them.
        name: What to call it in tables.
    """

    num_bits: int
    starts: NDArray[np.int64]
    bits: NDArray[np.int64]
    hidden: int = 0
    name: str = ""

    @classmethod
    def of(cls, matrix: Any, name: str = "") -> Code:
        """Build the code of a parity-check matrix: an array or a SciPy sparse matrix of zeros and ones."""
        if hasattr(matrix, "tocoo"):
            coo = matrix.tocoo()
            rows, columns, values, shape = coo.row, coo.col, np.asarray(coo.data), coo.shape
        else:
            dense = np.asarray(matrix)
            if dense.ndim != 2:
                raise ValueError(f"Expected a matrix (got an array of shape {dense.shape})")
            rows, columns = dense.nonzero()
            values, shape = dense[rows, columns], dense.shape
        if not np.isin(values, (0, 1)).all():
            raise ValueError("Expected a matrix of zeros and ones")
        keep = values != 0
        return cls.of_edges(rows[keep], columns[keep], (int(shape[0]), int(shape[1])), name)

    @classmethod
    def of_edges(cls, checks: ArrayLike, bits: ArrayLike, shape: tuple[int, int], name: str = "") -> Code:
        """Build the code whose matrix of this shape is one at each (check, bit)."""
        check, bit = np.asarray(checks, np.int64), np.asarray(bits, np.int64)
        if check.shape != bit.shape or check.ndim != 1:
            raise ValueError(f"Expected as many checks as bits (got shapes {check.shape} and {bit.shape})")
        for what, index, count in (("check", check, shape[0]), ("bit", bit, shape[1])):
            if len(index) and (index.min() < 0 or index.max() >= count):
                raise ValueError(f"Expected {what} numbers from 0 to {count - 1} (got {index.min()} to {index.max()})")
        order = np.lexsort((bit, check))
        check, bit = check[order], bit[order]
        if np.any((check[1:] == check[:-1]) & (bit[1:] == bit[:-1])):
            raise ValueError("Expected every bit at most once in a check")
        starts = np.zeros(shape[0] + 1, np.int64)
        np.cumsum(np.bincount(check, minlength=shape[0]), out=starts[1:])
        return cls(shape[1], starts, bit, name=name)

    @classmethod
    def of_columns(cls, columns: Sequence[Sequence[int]], checks: int) -> Code:
        """Build the code whose bit i is in the checks ``columns[i]``."""
        bits = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
        return cls.of_edges([c for column in columns for c in column], bits, (checks, len(columns)))

    @classmethod
    def disjoint(cls, codes: Sequence[Code]) -> Code:
        """Build the code whose words are those of several codes, one after the other."""
        bits, edges = (np.cumsum([0, *sizes]) for sizes in ([c.num_bits for c in codes], [c.num_edges for c in codes]))
        starts = [code.starts[:-1] + edge for code, edge in zip(codes, edges, strict=False)]
        moved = [code.bits + bit for code, bit in zip(codes, bits, strict=False)]
        return cls(int(bits[-1]), np.concatenate([*starts, edges[-1:]]), np.concatenate(moved))

    @property
    def num_checks(self) -> int:
        """Rows of H."""
        return len(self.starts) - 1

    @property
    def num_edges(self) -> int:
        """Ones of H."""
        return len(self.bits)

    @cached_property
    def checks(self) -> NDArray[np.int64]:
        """The check of every edge.  # shape: (edges,)"""
        return np.repeat(np.arange(self.num_checks), np.diff(self.starts))

    @cached_property
    def by_bit(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and edge numbers by bit: bit i has the edges ``edges[starts[i] : starts[i + 1]]``."""
        edges = np.argsort(self.bits, kind="stable")
        starts = np.zeros(self.num_bits + 1, np.int64)
        np.cumsum(np.bincount(self.bits, minlength=self.num_bits), out=starts[1:])
        return starts, edges

    def matrix(self) -> Bits:
        """H as a dense array.  # shape: (checks, bits)"""
        dense = np.zeros((self.num_checks, self.num_bits), np.uint8)
        dense[self.checks, self.bits] = 1
        return dense

    @cached_property
    def dimension(self) -> int:
        """The number of message bits: bits minus the rank of H."""
        return self.num_bits - rank(self.matrix())

    @property
    def rate(self) -> float:
        """Message bits per bit sent; large codes are taken to have independent checks."""
        messages = self.dimension if self.num_checks <= _MOST_FOR_RANK else self.num_bits - self.num_checks
        return messages / (self.num_bits - self.hidden)

    @cached_property
    def generator(self) -> Bits:
        """A basis of the code words.  # shape: (dimension, bits)"""
        return nullspace(self.matrix())

    def encode(self, messages: ArrayLike) -> Bits:
        """Return the code words of messages.  # shape: (B, dimension) -> (B, bits)"""
        words = np.asarray(messages)
        if words.ndim != 2 or words.shape[1] != self.dimension:
            raise ValueError(f"Expected messages of shape (B, {self.dimension}) (got {words.shape})")
        # float32 products are exact up to 2^24 ones and use BLAS
        return np.asarray(words.astype(np.float32) @ self.generator.astype(np.float32) % 2, np.uint8)

    def syndrome(self, words: ArrayLike) -> Bits:
        """H x (mod 2) of words.  # shape: (B, bits) -> (B, checks)"""
        x = np.asarray(words)
        if x.ndim != 2 or x.shape[1] != self.num_bits:
            raise ValueError(f"Expected words of shape (B, {self.num_bits}) (got {x.shape})")
        return self._sparse_product(x)

    def _sparse_product(self, x: NDArray[Any]) -> Bits:
        from scipy.sparse import csr_matrix

        h = csr_matrix((np.ones(self.num_edges, np.int32), self.bits, self.starts), (self.num_checks, self.num_bits))
        return np.asarray((h @ x.T.astype(np.int32)).T & 1, np.uint8)

    def graph(self) -> FactorGraph:
        """The Tanner graph: bits are variables, checks are factors of the group ``check``."""
        scopes = [self.bits[a:b].tolist() for a, b in pairwise(self.starts)]
        return FactorGraph(self.num_bits, {"check": FactorGroup(scopes)})

    def _sketch_(self, states: States) -> Sketch:
        """The Tanner graph; checks that a word violates are red."""
        check_nodes(self.num_bits + self.num_checks, "bits and checks")
        states.check([2] * self.num_bits, self.num_bits)
        word = states.assignment
        broken = np.zeros(self.num_checks) if word is None else self.syndrome(word[None])[0]
        marks = [
            FactorMark(tuple(self.bits[a:b].tolist()), *_MARKS[int(bad)])
            for (a, b), bad in zip(pairwise(self.starts), broken, strict=True)
        ]
        return Sketch(self.num_bits, tuple(marks), states, tuple(f"bit {i}" for i in range(self.num_bits)))

    def __repr__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"Code({label}{self.num_bits} bits, {self.num_checks} checks, {self.num_edges} edges)"
