"""UAI model files, ``MARKOV`` and ``BAYES``.

A file lists the cardinalities, then all scopes, then all tables of potentials; the last variable of a scope varies
fastest. In a Bayesian network the scope of variable i's table is its parents and then i itself. ``#`` starts a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import TableRuns, log_potentials
from fgnn.pgm.io.numbers import shown
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream
from fgnn.pgm.io.uai_scopes import SLAB, Scopes, read_scopes
from fgnn.pgm.model import GraphicalModel

# Tables are read in batches of about this many numbers.
_BATCH = 1 << 18
# Files with more tables than this are grouped by shape within each batch; smaller files keep their order.
KEEP_ORDER = 100_000


def read_uai(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a UAI file; potentials become log-potentials, 0 becomes ``-inf``.

    Tables keep the file's order, unless there are more than `KEEP_ORDER`.
    """
    stream = TokenStream(path, limits, comments=True)
    kind = stream.word("MARKOV or BAYES")
    if kind.upper() not in (b"MARKOV", b"BAYES"):
        stream.fail(f"Expected MARKOV or BAYES (got {shown(kind)})")
    count = stream.integer("the number of variables")
    numbers = stream.numbers(count, "cardinalities", lambda i: f"variable {i}", low=1, integral=True)
    stream.claim(int(numbers.sum()), "cardinalities", "states")
    model = GraphicalModel(numbers.astype(np.int64))
    scopes = read_scopes(stream, model.cardinalities)
    stream.check_room(scopes.entries + len(scopes), "numbers")
    with TableRuns(model) as runs:
        for first in range(0, len(scopes), SLAB):
            _read_slab(stream, runs, scopes, first, min(first + SLAB, len(scopes)))
    stream.end()
    return model


def _read_slab(stream: TokenStream, runs: TableRuns, scopes: Scopes, begin: int, end: int) -> None:
    """Read the tables ``begin..end``, a batch of about `_BATCH` numbers at a time."""
    offsets, shapes, sizes = scopes.slab(begin, end)
    ends = np.cumsum(sizes + 1)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _BATCH, side="right")))
        heads = np.concatenate([[0], ends[first:stop] - before])

        def place(i: int, at: int = begin + first, heads: NDArray[np.int64] = heads) -> str:
            return f"table {at + int(np.searchsorted(heads, i, side='right')) - 1}"

        batch = stream.numbers(int(heads[-1]), "numbers", place, low=0.0)
        wrong = np.flatnonzero(batch[heads[:-1]] != sizes[first:stop])
        if wrong.size:
            c = int(wrong[0])
            what = f"Expected a table of {sizes[first + c]} entries (got {batch[heads[c]]:.12g})"
            fail(what, stream.path, f"table {begin + first + c}")
        for members in _of_one_shape(shapes[first:stop], in_order=len(scopes) <= KEEP_ORDER):
            c = first + int(members[0])
            arity, size = int(shapes[c, 0]), int(sizes[c])
            values = log_potentials(_rows(batch, heads[members] + 1, size))
            variables = scopes.flat[offsets[first + members][:, None] + np.arange(arity)].astype(np.int64)
            runs.extend(variables, values.reshape(len(members), *shapes[c, 1 : arity + 1].tolist()))
        del batch
        first = stop


def _rows(batch: NDArray[np.float64], starts: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The ``size`` numbers from each start, shape (C, size); a view if there is only one."""
    if len(starts) == 1:
        return batch[None, int(starts[0]) : int(starts[0]) + size]
    return np.asarray(batch[starts[:, None] + np.arange(size)])


def _of_one_shape(shapes: NDArray[np.int64], *, in_order: bool) -> Iterator[NDArray[np.int64]]:
    """Rows of equal shape: runs of consecutive rows, or all rows of a shape together."""
    if in_order:
        cuts = np.flatnonzero((shapes[1:] != shapes[:-1]).any(1)) + 1
        for first, stop in pairwise([0, *cuts.tolist(), len(shapes)]):
            yield np.arange(first, stop)
        return
    _, first_row, kind = np.unique(shapes, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)  # NumPy 2.0 keeps an axis here
    for k in np.argsort(first_row):
        yield np.flatnonzero(kind == k)
