"""libDAI factor graphs (``.fg``): sparse tables in which the first variable of a scope varies fastest.

Variables carry labels; sorted, they become the variables 0, 1, ... of the model. Entries that a factor does not
list are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES, Allowance, TableRuns, log_potentials, table_size
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream
from fgnn.pgm.model import GraphicalModel


@dataclass(frozen=True, eq=False)
class _Factor:
    labels: list[int]
    potentials: NDArray[np.float64]  # shape: (k_1, ..., k_A)


def read_fg(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.fg`` file; potentials become log-potentials, 0 and what is not listed become ``-inf``."""
    stream = TokenStream(path, limits, comments=True)
    count = stream.integer("the number of factors")
    stream.check_room(count, "factors")
    allowance = Allowance(stream.source.most_entries, stream.fail)
    states: dict[int, int] = {}
    factors = [_read_factor(stream, c, states, allowance) for c in range(count)]
    stream.end()
    labels = sorted(states)
    allowance.claim(sum(states.values()), "the variables", "states")
    index = {label: i for i, label in enumerate(labels)}
    model = GraphicalModel(np.array([states[label] for label in labels], dtype=np.int64))
    runs = TableRuns(model)
    for factor in factors:
        runs.add([index[label] for label in factor.labels], log_potentials(factor.potentials))
    runs.finish()
    return model


def _read_factor(stream: TokenStream, c: int, states: dict[int, int], allowance: Allowance) -> _Factor:
    place = f"factor {c}"
    arity = stream.integer("the number of variables", 0, MOST_VARIABLES, place)
    labels = stream.integers(arity, "a variable's label", 0, None, place)
    if len(set(labels)) < arity:
        stream.fail(f"Expected distinct variables (got {' '.join(map(str, labels))})", place)
    cards = stream.integers(arity, "a cardinality", 1, None, place)
    for label, k in zip(labels, cards, strict=True):
        if states.setdefault(label, k) != k:
            stream.fail(f"Expected {states[label]} states for variable {label}, as before (got {k})", place)
    size = table_size(cards, allowance.most)
    allowance.claim(size, place)
    listed = stream.integer("the number of entries", 0, size, place)
    numbers = stream.numbers(2 * listed, "numbers", lambda i: f"factor {c}, entry {i // 2}", low=0.0)
    where, values = numbers[::2], numbers[1::2]
    wrong = np.flatnonzero((where != np.floor(where)) | (where >= size))
    if wrong.size:
        at = int(wrong[0])
        what = f"Expected an entry's index below {size} (got {where[at]:.12g})"
        fail(what, stream.path, f"factor {c}, entry {at}")
    cells = where.astype(np.int64)
    flat = np.zeros(size)
    flat[cells] = values
    if len(np.unique(cells)) < listed:
        first, often = np.unique(cells, return_counts=True)
        fail(f"Expected every index once (got {first[often > 1][0]} twice or more)", stream.path, place)
    return _Factor(labels, flat.reshape(cards, order="F"))
