"""UAI evidence files: observed variables and their states.

Two forms are in use: ``n v1 x1 v2 x2 ...``, and the competitions' form with a leading number of samples, which must
be 1. The first form has an odd number of words, the second an even one. ``#`` starts a comment.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.stream import Limits
from fgnn.pgm.io.tokens import TokenStream


def read_evidence(path: str | Path, cardinalities: NDArray[np.int64], limits: Limits | None = None) -> dict[int, int]:
    """The state of each observed variable, checked against a model's cardinalities."""
    stream = TokenStream(path, limits, comments=True)
    numbers: list[int] = []
    # two words per observation; the most there can be is one sample of every variable
    most = 2 * len(cardinalities) + 3
    while stream.peek() is not None and len(numbers) <= most:
        stream.place = f"number {len(numbers)}"
        numbers.append(stream.integer("a number"))
    taken = len(numbers)
    if not numbers:
        stream.fail("Expected the number of observations (got an empty file)")
    if len(numbers) % 2 == 0:
        if numbers[0] != 1:
            stream.fail(
                f"Expected the number of observations and twice as many numbers, or one sample of them "
                f"(got {len(numbers)} numbers that start with {numbers[0]})",
                "number 0",
            )
        numbers = numbers[1:]
    count, pairs = numbers[0], numbers[1:]
    if len(pairs) != 2 * count:
        got = f"{len(pairs)}" if taken <= most else f"more than {2 * len(cardinalities)}"
        stream.fail(f"Expected {2 * count} numbers for {count} observations (got {got})", f"number {taken - 1}")
    evidence: dict[int, int] = {}
    for c, (variable, state) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        place = f"observation {c}"
        if variable >= len(cardinalities):
            stream.fail(f"Expected a variable below {len(cardinalities)} (got {variable})", place)
        if state >= cardinalities[variable]:
            stream.fail(
                f"Expected a state below {cardinalities[variable]} for variable {variable} (got {state})", place
            )
        if evidence.setdefault(variable, state) != state:
            stream.fail(f"Expected one state for variable {variable} (got {evidence[variable]} and {state})", place)
    return evidence
