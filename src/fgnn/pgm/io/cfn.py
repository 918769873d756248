"""toulbar2's ``.cfn`` files: a loose form of JSON with decimal costs and names.

Quotes, commas and colons are optional, braces and brackets are interchangeable, and the field names may be left out
altogether (``{problem: {name: p mustbe: <5}}`` or ``{{p <5}}``); only the order of the fields is fixed. A cost of
``inf`` forbids, as does a value of ``-inf`` where the file maximises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.costs import CostNetwork
from fgnn.pgm.io.numbers import shown
from fgnn.pgm.io.rules import add_rule
from fgnn.pgm.io.stream import Limits
from fgnn.pgm.io.text import LARGEST, Text, is_infinite, is_number
from fgnn.pgm.model import GraphicalModel

_OPEN, _CLOSE = "{[", "}]"
_BOUND = re.compile(r"([<>])([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:(?<=<)|(?<=>)-)inf)", re.ASCII)


def read_cfn(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.cfn`` file; the score is minus the cost, or the value if the file maximises."""
    text = Text(path, limits, marks="{}[]", separators=",:", comment=r"(?m:^[ \t]*#)[^\n]*|//[^\n]*")
    return _Reader(text).read()


class _Reader:
    network: CostNetwork

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tagged = False
        self.cardinalities: list[int] = []
        self._variables: dict[str, int] = {}
        self._states: list[dict[str, int]] = []  # state names of each variable
        self._waiting: dict[str, list[tuple[list[int], str]]] = {}  # by table name: scopes and places that refer to it

    # ---- structure ----------------------------------------------------------------------------------------

    def open(self, what: str) -> None:
        self._take_mark(_OPEN, f"'{{' or '[' of {what}")

    def close(self, what: str) -> None:
        self._take_mark(_CLOSE, f"'}}' or ']' after {what}")

    def _take_mark(self, marks: str, what: str) -> None:
        if not self.text.is_mark(marks):
            token = self.text.peek()
            got = "the end of the file" if token is None else shown(token)
            self.text.fail(f"Expected {what} (got {got})", at=self.text.at)
        self.text.next(what)

    def items(self, what: str, *, tag: str = "") -> Iterator[None]:
        """Iterate over the items between an opening and a closing mark; the body takes one item."""
        self.tag(tag)
        self.open(what)
        while not self.text.is_mark(_CLOSE):
            yield
        self.close(what)

    def tag(self, name: str) -> None:
        """Take a field name, in files that have them."""
        if self.tagged and name:
            self.text.expect(name)

    # ---- parts --------------------------------------------------------------------------------------------

    def read(self) -> GraphicalModel:
        self.open("the network")
        if not self.text.is_mark(_OPEN):
            self.text.expect("problem")
            self.tagged = True
        upper, maximise = self._read_problem()
        self._read_variables()
        self.network = CostNetwork(self.text, self.cardinalities, upper, maximise=maximise)
        self._read_functions()
        self.close("the functions")
        if self.text.peek() is not None:
            self.text.next("the end")
            self.text.fail("Expected the end of the file (got more)")
        return self.network.build()

    def _read_problem(self) -> tuple[float, bool]:
        """The upper bound on the cost, and whether the file maximises."""
        self.open("the problem")
        self.tag("name")
        self.text.name("the problem's name")
        self.tag("mustbe")
        word = self.text.name("a bound")
        bound = _BOUND.fullmatch(word)
        if bound is None or (abs(float(bound[2])) > LARGEST and not is_infinite(bound[2])):
            self.text.fail(f"Expected a bound such as <12.5 or >-3 (got {shown(word)})", "problem")
        self.close("the problem")
        maximise = bound[1] == ">"
        return (-float(bound[2]) if maximise else float(bound[2])), maximise

    def _read_variables(self) -> None:
        text = self.text
        for _ in self.items("the variables", tag="variables"):
            index = len(self.cardinalities)
            text.place = f"variable {index}"
            name = f"x{index}"
            if not text.is_mark(_OPEN) and not is_number(text.peek() or ""):
                name = text.name("a variable")
            if name in self._variables:
                text.fail(f"Expected every variable once (got {shown(name)} twice)")
            self._variables[name] = index
            states: dict[str, int] = {}
            if text.is_mark(_OPEN):
                states = text.numbered_states(text.name("a state") for _ in self.items("the states"))
                size = len(states)
            else:
                size = abs(text.integer("a domain or its size", -(2**31), 2**31))
            if size == 0:
                text.fail("Expected at least one state (got none)")
            self._states.append(states)
            self.cardinalities.append(size)
            text.place = ""

    def _read_functions(self) -> None:
        text = self.text
        for c, _ in enumerate(self.items("the functions", tag="functions")):
            text.place = f"function {c}"
            name = ""
            if not text.is_mark(_OPEN):
                name = text.name("a function's name")
                text.place = f"function {shown(name)}"
            costs, scope = self._read_function()
            if costs is not None:
                for other, place in self._waiting.pop(name, []) if name else []:
                    if self.network.claim(other, place) != costs.shape:
                        text.fail(f"Expected the domains of {shown(name)}, whose table it shares", place)
                    self.network.add(other, costs)
                self.network.add(scope, costs)
            text.place = ""
        for name, users in self._waiting.items():
            text.fail(f"Expected a table named {shown(name)} further on (got none)", users[0][1])

    def _read_function(self) -> tuple[NDArray[np.float64] | None, list[int]]:
        """The costs and the scope of one function; no costs if a rule or a shared table gives them."""
        text = self.text
        self.open("a function")
        scope = [self.variable() for _ in self.items("the scope", tag="scope")]
        self.network.check_scope(scope, text.place)
        default: float | None = None
        word = text.peek() or ""
        if word == "defaultcost" if self.tagged else is_number(word) or is_infinite(word):
            self.tag("defaultcost")
            default = self._cost("the default cost")
        costs: NDArray[np.float64] | None = None
        kind = text.name("costs or type") if self.tagged else ""
        if kind not in ("costs", "type", ""):
            text.fail(f"Expected costs or type (got {shown(kind)})")
        if kind != "type" and text.is_mark(_OPEN):
            costs = self._read_table(scope, default)
        else:
            word = text.name("a table, or the name of one")
            if kind == "type":
                self.tag("params")
            if text.is_mark(_OPEN):
                self.open("the parameters")
                add_rule(self.network, word, scope, self, text.place)
                self.close("the parameters")
            elif default is None and kind != "type":
                self._waiting.setdefault(word, []).append((scope, text.place))
            else:
                text.fail(f"Expected a table (got {shown(word)})")
        self.close("the function")
        return costs, scope

    def variable(self) -> int:
        """Take a variable by name or number."""
        word = self.text.name("a variable")
        index = _index(word)
        if 0 <= index < len(self.cardinalities):
            return index
        if word not in self._variables:
            self.text.fail(f"Expected a variable (got {shown(word)})")
        return self._variables[word]

    def _read_table(self, scope: list[int], default: float | None) -> NDArray[np.float64]:
        sign = -1.0 if self.network.maximise else 1.0
        shape = self.network.claim(scope, self.text.place)
        self.open("the costs")
        if default is None:
            costs = self.text.numbers_until(_CLOSE, "costs", infinite=True)
            self._check_infinite(sign * costs)
            size = int(np.prod(shape, dtype=np.int64))
            if len(costs) != size:
                self.text.fail(f"Expected {size} costs (got {len(costs)})")
            return sign * costs.reshape(shape)
        costs = np.full(shape, sign * default)
        if not scope and not self.text.is_mark(_CLOSE):
            costs[()] = sign * self._cost("a cost")
        else:
            while not self.text.is_mark(_CLOSE):
                cell = tuple(self._state(i) for i in scope)
                costs[cell] = sign * self._cost("a cost")
        self.close("the costs")
        return costs

    def _cost(self, what: str) -> float:
        """Take a cost, or a value if the file maximises, which may be infinite if that forbids."""
        cost = self.text.number(what, infinite=True)
        self._check_infinite(np.array([-cost if self.network.maximise else cost]))
        return cost

    def _check_infinite(self, costs: NDArray[np.float64]) -> None:
        """Refuse infinite costs that would reward instead of forbid."""
        if (costs == -np.inf).any():
            forbids, got = ("-inf", "inf") if self.network.maximise else ("inf", "-inf")
            self.text.fail(f"Expected an infinite cost to forbid, {forbids} (got {got})")

    def _state(self, variable: int) -> int:
        """Take a state of a variable by name or number."""
        word = self.text.name("a state")
        state = self._states[variable].get(word, _index(word))
        if not 0 <= state < self.cardinalities[variable]:
            self.text.fail(f"Expected a state of variable {variable} (got {shown(word)})")
        return state

    # ---- parameters of a rule, by name and in their fixed order: `rules.Parameters` ----------------------

    def word(self, tag: str) -> str:
        self.tag(tag)
        return self.text.name(tag)

    def cost(self, tag: str) -> float:
        self.tag(tag)
        return self.text.number(tag)

    def integer(self, tag: str) -> int:
        self.tag(tag)
        return self.text.integer(tag or "a number", -(10**18), 10**18)

    def integers(self, tag: str, count: int) -> list[int]:
        if not tag:
            return [self.integer("") for _ in range(count)]
        self.tag(tag)
        self.open(tag)
        values = self._integers_until_close(tag)
        if len(values) != count:
            self.text.fail(f"Expected {count} {tag} (got {len(values)})")
        return values

    def rows(self, tag: str, width: int) -> list[list[float]]:
        rows: list[list[float]] = []
        for _ in self.items(tag, tag=tag):
            if width == 1:
                rows.append([self.text.number(tag)])
                continue
            self.open(f"one of the {tag}")
            row: list[float] = []
            if tag == "tuples":  # the first is a variable, perhaps by name
                row.append(float(self.variable()))
            row += self.text.numbers_until(_CLOSE, tag).tolist()
            if len(row) != width:
                self.text.fail(f"Expected {width} numbers in each of the {tag} (got {len(row)})")
            rows.append(row)
        return rows

    def sets(self, tag: str, count: int) -> list[list[int]]:
        self.tag(tag)
        self.open(tag)
        result = []
        for _ in range(count):
            self.open(f"one of the {tag}")
            result.append(self._integers_until_close(tag))
        self.close(tag)
        return result

    def _integers_until_close(self, tag: str) -> list[int]:
        values = self.text.numbers_until(_CLOSE, tag)
        if (values != np.floor(values)).any() or (np.abs(values) >= 2**53).any():
            self.text.fail(f"Expected integers in {tag}")
        return [int(v) for v in values]


def _index(word: str) -> int:
    """A word as a number of a variable or state, -1 for any other word."""
    return int(word) if word.isdecimal() and word.isascii() and len(word) <= 18 else -1
