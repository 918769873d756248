"""libDAI factor graphs (``.fg``): sparse tables in which the first variable of a scope varies fastest.

Variables carry labels; in sorted order they become variables 0, 1, ... of the model. Unlisted entries are 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES, TableRuns, log_potentials, table_size
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream
from fgnn.pgm.model import GraphicalModel


def read_fg(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.fg`` file; potentials become log-potentials, zeros and unlisted entries become ``-inf``."""
    stream = TokenStream(path, limits, comments=True)
    count = stream.integer("the number of factors")
    stream.check_room(count, "factors")
    cardinalities: dict[int, int] = {}  # by label
    factors = [_read_factor(stream, c, cardinalities) for c in range(count)]
    stream.end()
    labels = sorted(cardinalities)
    stream.claim(sum(cardinalities.values()), "the variables", "states")
    index = {label: i for i, label in enumerate(labels)}
    model = GraphicalModel(np.array([cardinalities[label] for label in labels], dtype=np.int64))
    with TableRuns(model) as runs:
        for scope, potentials in factors:
            runs.add([index[label] for label in scope], log_potentials(potentials))
    return model


def _read_factor(stream: TokenStream, c: int, cardinalities: dict[int, int]) -> tuple[list[int], NDArray[np.float64]]:
    """The labels of a factor's variables and its potentials; adds to ``cardinalities``."""
    stream.place = f"factor {c}"
    arity = stream.integer("the number of variables", 0, MOST_VARIABLES)
    labels = stream.integers(arity, "a variable's label")
    if len(set(labels)) < arity:
        stream.fail(f"Expected distinct variables (got {' '.join(map(str, labels))})")
    cards = stream.integers(arity, "a cardinality", 1)
    for label, k in zip(labels, cards, strict=True):
        if cardinalities.setdefault(label, k) != k:
            stream.fail(f"Expected {cardinalities[label]} states for variable {label}, as before (got {k})")
    size = table_size(cards, stream.most_entries)
    stream.claim(size)
    listed = stream.integer("the number of entries", 0, size)
    numbers = stream.numbers(2 * listed, "numbers", lambda i: f"factor {c}, entry {i // 2}", low=0.0)
    index, values = numbers[::2], numbers[1::2]
    wrong = np.flatnonzero((index != np.floor(index)) | (index >= size))
    if wrong.size:
        at = int(wrong[0])
        what = f"Expected an entry's index below {size} (got {index[at]:.12g})"
        fail(what, stream.path, f"factor {c}, entry {at}")
    cells = index.astype(np.int64)
    flat = np.zeros(size)
    flat[cells] = values
    distinct, counts = np.unique(cells, return_counts=True)
    if len(distinct) < listed:
        fail(f"Expected every index once (got {distinct[counts > 1][0]} twice or more)", stream.path, stream.place)
    stream.place = ""
    return labels, flat.reshape(cards, order="F")
