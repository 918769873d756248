"""toulbar2's ``.wcsp`` files: integer costs, as lists of tuples or as rules.

Costs are 64-bit integers. Beyond 2^53 they are rounded to float64, but never across the upper bound.
pytoulbar2's own reader exits or crashes the process on some malformed files, so files are read here.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.costs import CostNetwork
from fgnn.pgm.io.numbers import shown
from fgnn.pgm.io.rules import add_rule
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import EXACT, TokenStream, rounded_below
from fgnn.pgm.model import GraphicalModel

_DIGITS = 40  # of an integer, at most


def read_wcsp(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.wcsp`` file; the score is minus the cost, costs that reach the upper bound become ``-inf``."""
    stream = TokenStream(path, limits)
    stream.word("the problem's name")
    count = stream.integer("the number of variables")
    stream.integer("the largest domain size")
    functions = stream.integer("the number of cost functions")
    upper = stream.peek() or b""
    top = int(upper) if upper.isdigit() and len(upper) <= _DIGITS else None
    bound = float(stream.numbers(1, "upper bound", low=0.0)[0])
    stream.check_room(count, "variables")
    sizes = stream.numbers(count, "domain sizes", lambda i: f"variable {i}", integral=True)
    if (sizes == 0).any():
        empty = int(np.flatnonzero(sizes == 0)[0])
        stream.fail("Expected at least one state (got a domain of size 0)", f"variable {empty}")
    # a negative size marks an interval domain, which has the same states
    cards = np.abs(sizes).astype(np.int64).tolist()
    network = CostNetwork(stream, cards, bound)
    stream.check_room(functions, "cost functions")
    shared: list[NDArray[np.float64]] = []  # tables that later functions refer to by number
    for c in range(functions):
        stream.place = f"cost function {c}"
        _read_function(stream, network, shared, math.ceil(bound) if top is None else top)
    stream.end()
    return network.build()


def _read_function(stream: TokenStream, network: CostNetwork, shared: list[NDArray[np.float64]], top: int) -> None:
    """Read a cost function; costs that reach ``top``, the upper bound as an integer, forbid."""
    last = len(network.cardinalities) - 1
    arity = stream.integer("the number of variables", -last - 1, last + 1)
    scope = stream.integers(abs(arity), "a variable", 0, last)
    network.check_scope(scope, stream.place)
    default = stream.word("the default cost")
    if default == b"-1":
        if arity < 0:
            stream.fail("Expected a table to share (got a function given by a rule)")
        name = stream.word("a keyword").decode("utf-8", "replace")
        add_rule(network, name, scope, _WcspParameters(stream), stream.place)
        return
    if not default.isdigit() or len(default) > _DIGITS:
        stream.fail(f"Expected a default cost, an integer of at least 0, or -1 (got {shown(default)})")
    tuples = stream.integer("the number of tuples", -len(shared))
    shape = network.claim(scope, stream.place)
    if tuples < 0:
        costs = shared[-tuples - 1]
        if costs.shape != shape:
            stream.fail(f"Expected domains of {_by(costs.shape)} states, as shared (got {_by(shape)})")
    else:
        number = float(default) if int(default) < EXACT else rounded_below(int(default), top)
        costs = _read_tuples(stream, shape, number, tuples, top)
    if arity < 0:
        shared.append(costs)
    network.add(scope, costs)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _read_tuples(
    stream: TokenStream, shape: tuple[int, ...], default: float, count: int, top: int
) -> NDArray[np.float64]:
    """A table from its default cost and ``count`` tuples of states and a cost."""
    width = len(shape) + 1

    def place(i: int) -> str:
        return f"{stream.place}, tuple {i // width}"

    rows = stream.numbers(count * width, "numbers", place, integral=True, top=top).reshape(count, width)
    states = rows[:, :-1]
    bad = (states < 0) | (states >= shape)
    if bad.any():
        row, axis = (int(v) for v in np.argwhere(bad)[0])
        what = f"Expected a state below {shape[axis]} (got {states[row, axis]:.0f})"
        fail(what, stream.path, place(row * width))
    costs = np.full(shape, default)
    if shape:
        costs[tuple(states.astype(np.int64).T)] = rows[:, -1]
    elif count:
        costs[()] = rows[-1, -1]
    return costs


class _WcspParameters:
    """Parameters by position; lists of variable length are preceded by their length."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream

    def word(self, tag: str) -> str:
        return self._stream.word(tag).decode("utf-8", "replace")

    def cost(self, tag: str) -> float:
        return float(self._stream.integer(tag))

    def integer(self, tag: str) -> int:
        return self._stream.integer(tag or "a number", -math.inf)

    def integers(self, tag: str, count: int) -> list[int]:
        return [self.integer(tag) for _ in range(count)]

    def rows(self, tag: str, width: int) -> list[list[float]]:
        count = self._stream.integer(f"the number of {tag}")
        self._stream.check_room(count * width, tag)
        return [[float(v) for v in self.integers(tag, width)] for _ in range(count)]

    def sets(self, tag: str, count: int) -> list[list[int]]:
        result = []
        for _ in range(count):
            size = self._stream.integer(f"the number of {tag}")
            # knapsackp lists (value, weight) pairs and gives the number of pairs
            size *= 2 if tag == "weightedvalues" else 1
            self._stream.check_room(size, tag)
            result.append(self.integers(tag, size))
        return result
