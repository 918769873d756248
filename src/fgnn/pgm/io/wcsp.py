"""toulbar2's ``.wcsp`` files: integer costs, by lists of tuples or by rules.

The package's own reader exits or crashes the process on some malformed files, so files are read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.costs import CostNetwork
from fgnn.pgm.io.rules import add_rule
from fgnn.pgm.io.stream import Limits, fail
from fgnn.pgm.io.tokens import TokenStream, shown
from fgnn.pgm.model import GraphicalModel


def read_wcsp(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.wcsp`` file; the score is minus the cost, costs that reach the upper bound are ``-inf``."""
    stream = TokenStream(path, limits)
    stream.word("the problem's name")
    count = stream.integer("the number of variables")
    stream.integer("the largest domain size")
    functions = stream.integer("the number of cost functions")
    upper = float(stream.numbers(1, "upper bound", low=0.0)[0])
    stream.check_room(count, "variables")
    sizes = stream.numbers(count, "domain sizes", lambda i: f"variable {i}", integral=True)
    if (sizes == 0).any():
        empty = int(np.flatnonzero(sizes == 0)[0])
        stream.fail("Expected at least one state (got a domain of size 0)", f"variable {empty}")
    # a negative size says that the domain is an interval; its states are the same
    cards = np.abs(sizes).astype(np.int64).tolist()
    network = CostNetwork(path, cards, upper, stream.source.most_entries, stream.fail)
    stream.check_room(functions, "cost functions")
    shared: list[_Shared] = []
    for c in range(functions):
        _read_function(stream, network, shared, c)
    stream.end()
    return network.build()


@dataclass(frozen=True, eq=False)
class _Shared:
    """A table that later functions may refer to by its number."""

    costs: NDArray[np.float64]


def _read_function(stream: TokenStream, network: CostNetwork, shared: list[_Shared], c: int) -> None:
    place = f"cost function {c}"
    last = len(network.cardinalities) - 1
    arity = stream.integer("the number of variables", -last - 1, last + 1, place)
    scope = stream.integers(abs(arity), "a variable", 0, last, place)
    network.check_scope(scope, place)
    default = stream.word("the default cost", place)
    if default == b"-1":
        if arity < 0:
            stream.fail("Expected a table to share (got a function given by a rule)", place)
        name = stream.word("a keyword", place).decode("utf-8", "replace")
        add_rule(network, name, scope, _WcspParameters(stream, place), place)
        return
    if not default.isdigit() or len(default) > 18:
        stream.fail(f"Expected a default cost, an integer of at least 0, or -1 (got {shown(default)})", place)
    tuples = stream.integer("the number of tuples", -len(shared), None, place)
    shape = network.claim(scope, place)
    if tuples < 0:
        costs = shared[-tuples - 1].costs
        if costs.shape != shape:
            stream.fail(f"Expected domains of {_by(costs.shape)} states, as shared (got {_by(shape)})", place)
    else:
        costs = _read_tuples(stream, shape, float(default), tuples, place)
    if arity < 0:
        shared.append(_Shared(costs))
    network.add(scope, costs)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _read_tuples(
    stream: TokenStream, shape: tuple[int, ...], default: float, count: int, place: str
) -> NDArray[np.float64]:
    width = len(shape) + 1

    def where(i: int) -> str:
        return f"{place}, tuple {i // width}"

    rows = stream.numbers(count * width, "numbers", where, integral=True).reshape(count, width)
    states = rows[:, :-1]
    bad = (states < 0) | (states >= shape)
    if bad.any():
        row, axis = (int(v) for v in np.argwhere(bad)[0])
        what = f"Expected a state below {shape[axis]} (got {states[row, axis]:.0f})"
        fail(what, stream.path, f"{place}, tuple {row}")
    costs = np.full(shape, default)
    if shape:
        costs[tuple(states.astype(np.int64).T)] = rows[:, -1]
    elif count:
        costs[()] = rows[-1, -1]
    return costs


class _WcspParameters:
    """Parameters by position; lists of unknown length are preceded by their length."""

    def __init__(self, stream: TokenStream, place: str) -> None:
        self._stream = stream
        self._place = place

    def word(self, tag: str) -> str:
        return self._stream.word(tag, self._place).decode("utf-8", "replace")

    def cost(self, tag: str) -> float:
        return float(self._stream.integer(tag, 0, None, self._place))

    def integer(self, tag: str) -> int:
        return self._stream.integer(tag or "a number", None, None, self._place)

    def integers(self, tag: str, count: int) -> list[int]:
        return [self.integer(tag) for _ in range(count)]

    def rows(self, tag: str, width: int) -> list[list[float]]:
        count = self._stream.integer(f"the number of {tag}", 0, None, self._place)
        self._stream.check_room(count * width, tag, self._place)
        return [[float(v) for v in self.integers(tag, width)] for _ in range(count)]

    def sets(self, tag: str, count: int) -> list[list[int]]:
        result = []
        for _ in range(count):
            size = self._stream.integer(f"the number of {tag}", 0, None, self._place)
            # knapsackp lists pairs of a value and a weight and counts the pairs
            size *= 2 if tag == "weightedvalues" else 1
            self._stream.check_room(size, tag, self._place)
            result.append(self.integers(tag, size))
        return result
