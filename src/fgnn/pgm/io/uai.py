"""UAI model files, ``MARKOV`` and ``BAYES``.

A file lists the cardinalities, then all scopes, then all tables of potentials; the last variable of a scope varies
fastest. In a Bayesian network the scope of variable i's table is its parents and then i itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES, Allowance, TableRuns, log_potentials, table_size
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream, shown
from fgnn.pgm.model import GraphicalModel

# Tables are read in batches of about this many numbers.
_BATCH = 1 << 18


def read_uai(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a UAI file; potentials become log-potentials, 0 becomes ``-inf``."""
    stream = TokenStream(path, limits)
    kind = stream.word("MARKOV or BAYES")
    if kind.upper() not in (b"MARKOV", b"BAYES"):
        stream.fail(f"Expected MARKOV or BAYES (got {shown(kind)})")
    count = stream.integer("the number of variables")
    stream.check_room(count, "variables")
    numbers = stream.numbers(count, "cardinalities", lambda i: f"variable {i}", low=1, integral=True)
    allowance = Allowance(stream.source.most_entries, stream.fail)
    allowance.claim(int(numbers.sum()), "cardinalities", "states")
    model = GraphicalModel(numbers.astype(np.int64))
    arity, flat, sizes = _read_scopes(stream, model.cardinalities)
    _read_tables(stream, model, arity, flat, sizes)
    stream.end()
    return model


def _read_scopes(
    stream: TokenStream, cardinalities: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The arity of every table, all scopes end to end, and the size of every table."""
    count = stream.integer("the number of tables")
    stream.check_room(count, "tables")
    states = cardinalities.tolist()
    last = len(states) - 1
    # arrays, not lists of tuples: a large file has millions of scopes
    arity, flat, sizes = array("q"), array("q"), array("q")
    for c in range(count):
        a = stream.integer("the size of a scope", 0, MOST_VARIABLES, f"scope {c}")
        scope = stream.integers(a, "a variable", 0, last, f"scope {c}")
        if len(set(scope)) < a:
            stream.fail(f"Expected distinct variables (got {_listed(scope)})", f"scope {c}")
        most = stream.source.most_bytes
        size = table_size([states[i] for i in scope], most)
        if size > most:
            stream.fail(f"declares {size} entries or more but the file has only {most} bytes", f"scope {c}")
        arity.append(a)
        flat.extend(scope)
        sizes.append(size)
    return np.array(arity), np.array(flat), np.array(sizes)


def _listed(scope: list[int]) -> str:
    return " ".join(map(str, scope))


def _read_tables(
    stream: TokenStream,
    model: GraphicalModel,
    arity: NDArray[np.int64],
    flat: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    stream.check_room(int(sizes.sum()) + len(sizes), "entries")
    path = stream.path
    offsets = np.concatenate([[0], np.cumsum(arity)]).astype(np.int64)
    runs = TableRuns(model)
    for first, stop in _batches(sizes):
        heads = np.concatenate([[0], np.cumsum(sizes[first:stop] + 1)]).astype(np.int64)

        def place(i: int, first: int = first, heads: NDArray[np.int64] = heads) -> str:
            return f"table {first + int(np.searchsorted(heads, i, side='right')) - 1}"

        batch = stream.numbers(int(heads[-1]), "numbers", place, low=0.0)
        wrong = np.flatnonzero(batch[heads[:-1]] != sizes[first:stop])
        if wrong.size:
            c = int(wrong[0])
            got = batch[heads[c]]
            fail(f"Expected a table of {sizes[first + c]} entries (got {got:.12g})", path, f"table {first + c}")
        for c, end in _runs(model.cardinalities, arity, flat, offsets, first, stop):
            size = int(sizes[c])
            at = int(heads[c - first])
            block = batch[at : at + (end - c) * (size + 1)].reshape(end - c, size + 1)[:, 1:]
            values = log_potentials(np.ascontiguousarray(block))
            scopes = flat[offsets[c] : offsets[end]].reshape(end - c, int(arity[c]))
            if scopes.shape[1] < 2:
                for scope, theta in zip(scopes.tolist(), values, strict=True):
                    model.add_table(scope, theta)
            else:
                runs.extend(scopes, values.reshape(end - c, *model.cardinalities[scopes[0]].tolist()))
        del batch
    runs.flush()


def _batches(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Consecutive tables of about `_BATCH` numbers together, or one that is larger."""
    ends = np.cumsum(sizes + 1)
    first, total = 0, len(sizes)
    while first < total:
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _BATCH, side="right")))
        yield first, stop
        first = stop


def _runs(
    cardinalities: NDArray[np.int64],
    arity: NDArray[np.int64],
    flat: NDArray[np.int64],
    offsets: NDArray[np.int64],
    first: int,
    stop: int,
) -> Iterator[tuple[int, int]]:
    """Split ``first..stop`` into runs of consecutive tables whose axes have the same cardinalities."""
    widest = int(arity[first:stop].max()) if stop > first else 0
    shapes = np.zeros((stop - first, widest + 1), dtype=np.int64)
    shapes[:, 0] = arity[first:stop]
    for axis in range(widest):
        has = arity[first:stop] > axis
        shapes[has, axis + 1] = cardinalities[flat[offsets[first:stop][has] + axis]]
    cuts = np.flatnonzero((shapes[1:] != shapes[:-1]).any(1)) + 1
    edges = [first, *(cuts + first).tolist(), stop]
    yield from pairwise(edges)
