"""The scopes of a UAI file, read a block at a time and stored compactly: a large file has millions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES
from fgnn.pgm.io.tokens import TokenStream

# Scopes are processed this many at a time.
SLAB = 1 << 16

Chunk = tuple[NDArray[np.int8], NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class Scopes:
    """All scopes concatenated, and the number of variables in each."""

    cardinalities: NDArray[np.int64]  # shape: (N,)
    arity: NDArray[np.int8]  # shape: (C,)
    flat: NDArray[np.int32]  # shape: (sum of arity,)
    starts: NDArray[np.int64]  # where in ``flat`` every `SLAB`-th scope starts
    entries: int

    def __len__(self) -> int:
        return len(self.arity)

    def slab(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For the scopes ``begin..end``: where each starts, (arity, k_1, ..., k_A, 0, ...), and its table's size."""
        arity = self.arity[begin:end].astype(np.int64)
        offsets = int(self.starts[begin // SLAB]) + np.concatenate([[0], np.cumsum(arity)[:-1]])
        shapes = _shapes(self.cardinalities, arity, self.flat, offsets)
        return offsets, shapes, np.maximum(shapes[:, 1:], 1).prod(1)


def read_scopes(stream: TokenStream, cardinalities: NDArray[np.int64]) -> Scopes:
    """Read the number of tables and every scope; check the implied table sizes against the file's size."""
    count = stream.integer("the number of tables")
    stream.check_room(count, "tables")
    if len(cardinalities) > np.iinfo(np.int32).max:
        stream.fail(f"Expected fewer than 2^31 variables (got {len(cardinalities)})")
    chunks: list[Chunk] = [(np.zeros(0, dtype=np.int8), np.zeros(0, dtype=np.int32))]
    done, entries, by_block = 0, 0.0, True
    while done < count:
        chunk, valid = _whole_scopes(stream, count - done, len(cardinalities)) if by_block else (None, True)
        by_block = by_block and valid
        if chunk is None:
            # the scope crosses the end of a block, or is invalid: read it word by word, which locates the error
            stream.place = f"scope {done}"
            size = stream.integer("the size of a scope", 0, MOST_VARIABLES)
            scope = stream.integers(size, "a variable", 0, len(cardinalities) - 1)
            stream.place = ""
            chunk = (np.array([len(scope)], dtype=np.int8), np.array(scope, dtype=np.int32))
            ahead = 0
        else:
            ahead = len(chunk[0]) + len(chunk[1])
        entries += _check(stream, chunk, cardinalities, done)
        stream.skip(ahead)
        chunks.append(chunk)
        done += len(chunk[0])
    arity, flat = np.concatenate([a for a, _ in chunks]), np.concatenate([f for _, f in chunks])
    ends = np.cumsum(arity, dtype=np.int64)
    starts = np.concatenate([[0], ends[SLAB - 1 :: SLAB]]).astype(np.int64)
    return Scopes(cardinalities, arity, flat, starts, int(entries))


def _whole_scopes(stream: TokenStream, most: int, variables: int) -> tuple[Chunk | None, bool]:
    """The complete scopes in the rest of the block, None if there is none; and whether the block is valid so far."""
    ahead = stream.ahead()
    if ahead is None:
        return None, False
    words = ahead.tolist()
    heads: list[int] = []
    at = 0
    while len(heads) < most and at < len(words):
        arity = words[at]
        if not 0 <= arity <= MOST_VARIABLES or at + arity >= len(words) or arity != int(arity):
            break
        heads.append(at)
        at += int(arity) + 1
    if not heads:
        return None, True
    numbers = ahead[:at]
    if not stream.spelled_integers(at) or (numbers < 0).any():
        return None, False
    is_head = np.zeros(at, dtype=bool)
    is_head[heads] = True
    scopes = numbers[~is_head]
    if scopes.size and scopes.max() >= variables:
        return None, False
    return (numbers[is_head].astype(np.int8), scopes.astype(np.int32)), True


def _check(stream: TokenStream, chunk: Chunk, cardinalities: NDArray[np.int64], done: int) -> float:
    """Reject repeated variables and tables larger than the file; return the number of table entries."""
    arity, flat = chunk[0].astype(np.int64), chunk[1]
    offsets = np.concatenate([[0], np.cumsum(arity)[:-1]]).astype(np.int64)
    for a in np.unique(arity[arity > 1]).tolist():
        rows = np.flatnonzero(arity == a)
        ordered = np.sort(flat[offsets[rows][:, None] + np.arange(a)], axis=1)
        repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
        if repeated.size:
            c = int(rows[repeated[0]])
            got = " ".join(map(str, flat[offsets[c] : offsets[c] + a].tolist()))
            stream.fail(f"Expected distinct variables (got {got})", f"scope {done + c}", at=int(offsets[c]) + c)
    shapes = _shapes(cardinalities, arity, flat, offsets)
    sizes = np.maximum(shapes[:, 1:], 1).prod(1, dtype=np.float64)
    most = stream.most_bytes
    large = np.flatnonzero(sizes > most)
    if large.size:
        c = int(large[0])
        what = f"declares {sizes[c]:.0f} entries but the file has only {most} bytes"
        stream.fail(what, f"scope {done + c}", at=int(offsets[c]) + c)
    return float(sizes.sum())


def _shapes(
    cardinalities: NDArray[np.int64], arity: NDArray[np.int64], flat: NDArray[np.int32], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """One row per scope: (A, k_1, ..., k_A, 0, ...)."""
    widest = int(arity.max()) if len(arity) else 0
    shapes = np.zeros((len(arity), widest + 1), dtype=np.int64)
    shapes[:, 0] = arity
    for axis in range(widest):
        has = arity > axis
        shapes[has, axis + 1] = cardinalities[flat[offsets[has] + axis]]
    return shapes
