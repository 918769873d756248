"""toulbar2's ``.cfn`` files: JSON in spirit, with decimal costs, names, and much freedom in punctuation.

Quotes, commas and colons may be left out, braces and brackets are the same, and so are the field names altogether
(``{problem: {name: p mustbe: <5}}`` or ``{{p <5}}``); only the order of the fields is fixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.costs import CostNetwork
from fgnn.pgm.io.rules import add_rule
from fgnn.pgm.io.stream import Limits
from fgnn.pgm.io.text import LARGEST, Text, to_numbers
from fgnn.pgm.io.tokens import shown
from fgnn.pgm.model import GraphicalModel

_OPEN, _CLOSE = "{[", "}]"
_BOUND = re.compile(r"([<>])([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.ASCII)


@dataclass(eq=False)
class _Names:
    """Variables and the names of their states, in order."""

    variables: dict[str, int] = field(default_factory=dict)
    states: list[dict[str, int]] = field(default_factory=list)
    cardinalities: list[int] = field(default_factory=list)


def read_cfn(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a ``.cfn`` file; the score is minus the cost, or the value where the file maximises."""
    text = Text(path, limits, marks="{}[]", separators=",:", comment=r"(?m:^[ \t]*#)[^\n]*|//[^\n]*")
    reader = _Reader(text)
    model = reader.network()
    if text.peek() is not None:
        text.next("the end")
        text.fail("Expected the end of the file (got more)")
    return model


class _Reader:
    def __init__(self, text: Text) -> None:
        self.text = text
        self.tagged = False

    # ---- structure ----------------------------------------------------------------------------------------

    def open(self, what: str, place: str = "") -> None:
        if not self.text.is_mark(_OPEN):
            self.text.fail(f"Expected '{{' or '[' of {what} (got {self._ahead()})", place, at=self.text.at)
        self.text.next(what, place)

    def close(self, what: str, place: str = "") -> None:
        if not self.text.is_mark(_CLOSE):
            self.text.fail(f"Expected '}}' or ']' after {what} (got {self._ahead()})", place, at=self.text.at)
        self.text.next(what, place)

    def closes(self) -> bool:
        return self.text.is_mark(_CLOSE)

    def tag(self, name: str, place: str = "") -> None:
        if self.tagged:
            self.text.expect(name, place)

    def _ahead(self) -> str:
        token = self.text.peek()
        return "the end of the file" if token is None else shown(token)

    # ---- parts --------------------------------------------------------------------------------------------

    def network(self) -> GraphicalModel:
        self.open("the network")
        if not self.text.is_mark(_OPEN):
            self.text.expect("problem")
            self.tagged = True
        upper, maximise = self._problem()
        names = self._variables()
        network = CostNetwork(
            self.text.path,
            names.cardinalities,
            upper,
            self.text.source.most_entries,
            self.text.refuse,
            maximise=maximise,
        )
        self._functions(network, names)
        self.close("the functions")
        return network.build()

    def _problem(self) -> tuple[float, bool]:
        self.open("the problem")
        self.tag("name")
        self.text.name("the problem's name")
        self.tag("mustbe")
        word = self.text.name("a bound")
        found = _BOUND.fullmatch(word)
        if found is None or abs(float(found[2])) > LARGEST:
            self.text.fail(f"Expected a bound such as <12.5 or >-3 (got {shown(word)})", "problem")
        self.close("the problem")
        maximise = found[1] == ">"
        return (-float(found[2]) if maximise else float(found[2])), maximise

    def _variables(self) -> _Names:
        self.tag("variables")
        self.open("the variables")
        names = _Names()
        while not self.closes():
            index = len(names.cardinalities)
            name, place = f"x{index}", f"variable {index}"
            token = self.text.peek() or ""
            if not self.text.is_mark(_OPEN) and not _numeric(token):
                name = self.text.name("a variable", place)
            if name in names.variables:
                self.text.fail(f"Expected every variable once (got {shown(name)} twice)", place)
            names.variables[name] = index
            states: dict[str, int] = {}
            if self.text.is_mark(_OPEN):
                states = self._states(place)
                size = len(states)
            else:
                size = abs(self.text.integer("a domain or its size", -(2**31), 2**31, place))
            if size == 0:
                self.text.fail("Expected at least one state (got none)", place)
            names.states.append(states)
            names.cardinalities.append(size)
        self.close("the variables")
        return names

    def _states(self, place: str) -> dict[str, int]:
        self.open("the states", place)
        states: dict[str, int] = {}
        while not self.closes():
            state = self.text.name("a state", place)
            if state in states:
                self.text.fail(f"Expected distinct states (got {shown(state)} twice)", place)
            states[state] = len(states)
        self.close("the states", place)
        return states

    def _functions(self, network: CostNetwork, names: _Names) -> None:
        self.tag("functions")
        self.open("the functions")
        waiting: dict[str, list[tuple[list[int], str]]] = {}
        c = 0
        while not self.closes():
            place = f"function {c}"
            name = ""
            if not self.text.is_mark(_OPEN):
                name = self.text.name("a function's name", place)
                place = f"function {shown(name)}"
            costs, scope = self._function(network, names, place, waiting)
            if costs is not None:
                for other, where in waiting.pop(name, []) if name else []:
                    shape = network.claim(other, where)
                    if shape != costs.shape:
                        self.text.fail(f"Expected the domains of {shown(name)}, whose table it shares", where)
                    network.add(other, costs)
                network.add(scope, costs)
            c += 1
        if waiting:
            name, users = next(iter(waiting.items()))
            self.text.fail(f"Expected a table named {shown(name)} further on (got none)", users[0][1])
        self.close("the functions")

    def _function(
        self, network: CostNetwork, names: _Names, place: str, waiting: dict[str, list[tuple[list[int], str]]]
    ) -> tuple[NDArray[np.float64] | None, list[int]]:
        """One function: its costs, or None where a rule or a shared table gives them."""
        text = self.text
        self.open("a function", place)
        scope = self._scope(network, names, place)
        default: float | None = None
        if text.peek() == "defaultcost" if self.tagged else _numeric(text.peek() or ""):
            self.tag("defaultcost", place)
            default = text.number("the default cost", place)
        costs: NDArray[np.float64] | None = None
        kind = text.name("costs or type", place) if self.tagged else ""
        if kind not in ("costs", "type", ""):
            text.fail(f"Expected costs or type (got {shown(kind)})", place)
        if kind != "type" and text.is_mark(_OPEN):
            costs = self._table(network, names, scope, default, place)
        else:
            word = text.name("a table, or the name of one", place)
            self.tag("params", place) if kind == "type" else None
            if text.is_mark(_OPEN):
                self.open("the parameters", place)
                given = _CfnParameters(self, names, place)
                add_rule(network, word, scope, given, place)
                self.close("the parameters", place)
            elif default is None and kind != "type":
                waiting.setdefault(word, []).append((scope, place))
            else:
                text.fail(f"Expected a table (got {shown(word)})", place)
        self.close("the function", place)
        return costs, scope

    def _scope(self, network: CostNetwork, names: _Names, place: str) -> list[int]:
        self.tag("scope", place)
        self.open("the scope", place)
        scope = []
        while not self.closes():
            scope.append(self.variable(names, place))
        self.close("the scope", place)
        network.check_scope(scope, place)
        return scope

    def variable(self, names: _Names, place: str) -> int:
        """A variable by name or number."""
        word = self.text.name("a variable", place)
        if word.isdecimal() and word.isascii() and len(word) <= 18 and int(word) < len(names.cardinalities):
            return int(word)
        if word not in names.variables:
            self.text.fail(f"Expected a variable (got {shown(word)})", place)
        return names.variables[word]

    def _table(
        self, network: CostNetwork, names: _Names, scope: list[int], default: float | None, place: str
    ) -> NDArray[np.float64]:
        sign = -1.0 if network.maximise else 1.0
        shape = network.claim(scope, place)
        self.open("the costs", place)
        if default is None:
            costs = self.text.numbers_until(_CLOSE, "costs", place)
            size = int(np.prod(shape, dtype=np.int64))
            if len(costs) != size:
                self.text.fail(f"Expected {size} costs (got {len(costs)})", place)
            return sign * costs.reshape(shape)
        costs = np.full(shape, sign * default)
        if not scope and not self.closes():
            costs[()] = sign * self.text.number("a cost", place)
        else:
            self._tuples(names, scope, costs, sign, place)
        self.close("the costs", place)
        return costs

    def _tuples(self, names: _Names, scope: list[int], costs: NDArray[np.float64], sign: float, place: str) -> None:
        while not self.closes():
            cell = []
            for i in scope:
                word = self.text.name("a state", place)
                k = names.states[i].get(word, -1)
                if k < 0 and word.isdecimal() and word.isascii() and len(word) <= 18:
                    k = int(word)
                if not 0 <= k < names.cardinalities[i]:
                    self.text.fail(f"Expected a state of variable {i} (got {shown(word)})", place)
                cell.append(k)
            costs[tuple(cell)] = sign * self.text.number("a cost", place)


class _CfnParameters:
    """Parameters by name, in their fixed order."""

    def __init__(self, reader: _Reader, names: _Names, place: str) -> None:
        self._reader = reader
        self._text = reader.text
        self._names = names
        self._place = place

    def _tag(self, tag: str) -> None:
        if tag:
            self._reader.tag(tag, self._place)

    def word(self, tag: str) -> str:
        self._tag(tag)
        return self._text.name(tag, self._place)

    def cost(self, tag: str) -> float:
        self._tag(tag)
        return self._text.number(tag, self._place)

    def integer(self, tag: str) -> int:
        self._tag(tag)
        return self._text.integer(tag or "a number", -(10**18), 10**18, self._place)

    def integers(self, tag: str, count: int) -> list[int]:
        if not tag:
            return [self.integer("") for _ in range(count)]
        self._tag(tag)
        self._reader.open(tag, self._place)
        listed = self._listed(tag)
        if len(listed) != count:
            self._text.fail(f"Expected {count} {tag} (got {len(listed)})", self._place)
        return listed

    def rows(self, tag: str, width: int) -> list[list[float]]:
        self._tag(tag)
        self._reader.open(tag, self._place)
        rows: list[list[float]] = []
        while not self._reader.closes():
            if width == 1:
                rows.append([self._text.number(tag, self._place)])
                continue
            self._reader.open(f"one of the {tag}", self._place)
            row: list[float] = []
            if tag == "tuples":  # the first is a variable, which may be named
                row.append(float(self._reader.variable(self._names, self._place)))
            row += self._text.numbers_until(_CLOSE, tag, self._place).tolist()
            if len(row) != width:
                self._text.fail(f"Expected {width} numbers in each of the {tag} (got {len(row)})", self._place)
            rows.append(row)
        self._reader.close(tag, self._place)
        return rows

    def sets(self, tag: str, count: int) -> list[list[int]]:
        self._tag(tag)
        self._reader.open(tag, self._place)
        result = []
        for _ in range(count):
            self._reader.open(f"one of the {tag}", self._place)
            result.append(self._listed(tag))
        self._reader.close(tag, self._place)
        return result

    def _listed(self, tag: str) -> list[int]:
        values = self._text.numbers_until(_CLOSE, tag, self._place)
        if (values != np.floor(values)).any() or (np.abs(values) >= 2**53).any():
            self._text.fail(f"Expected integers in {tag}", self._place)
        return [int(v) for v in values]


def _numeric(word: str) -> bool:
    return to_numbers([word]) is not None
