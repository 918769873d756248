"""UAI evidence files: observed variables and their states.

Two forms are in use: ``n v1 x1 v2 x2 ...``, and the competitions' form with a leading number of samples, which must
be 1. The first form has an odd number of words, the second an even one. ``#`` starts a comment.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream


def read_evidence(path: str | Path, cardinalities: NDArray[np.int64], limits: Limits | None = None) -> dict[int, int]:
    """The state of each observed variable, checked against a model's cardinalities."""
    stream = TokenStream(path, limits, comments=True)
    numbers: list[int] = []
    lines: list[int] = []  # of the numbers
    # two words per observation; the most there can be is one sample of every variable
    most = 2 * len(cardinalities) + 3
    while stream.peek() is not None and len(numbers) <= most:
        stream.place = f"number {len(numbers)}"
        numbers.append(stream.integer("a number"))
        lines.append(stream.line(None))
    taken = len(numbers)

    def reject(what: str, place: str, number: int) -> NoReturn:
        fail(what, stream.path, place, lines[number])

    if not numbers:
        stream.fail("Expected the number of observations (got an empty file)")
    if len(numbers) % 2 == 0:
        if numbers[0] != 1:
            reject(
                f"Expected the number of observations and twice as many numbers, or one sample of them "
                f"(got {len(numbers)} numbers that start with {numbers[0]})",
                "number 0",
                0,
            )
        numbers = numbers[1:]
    count, pairs = numbers[0], numbers[1:]
    if len(pairs) != 2 * count:
        got = f"{len(pairs)}" if taken <= most else f"more than {2 * len(cardinalities)}"
        reject(f"Expected {2 * count} numbers for {count} observations (got {got})", f"number {taken - 1}", taken - 1)
    evidence: dict[int, int] = {}
    for c, (variable, state) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        place, last = f"observation {c}", taken - len(pairs) + 2 * c + 1
        if variable >= len(cardinalities):
            reject(f"Expected a variable below {len(cardinalities)} (got {variable})", place, last - 1)
        if state >= cardinalities[variable]:
            what = f"Expected a state below {cardinalities[variable]} for variable {variable} (got {state})"
            reject(what, place, last)
        if evidence.setdefault(variable, state) != state:
            reject(f"Expected one state for variable {variable} (got {evidence[variable]} and {state})", place, last)
    return evidence
