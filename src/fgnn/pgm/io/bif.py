"""Bayesian networks in the interchange format (``.bif``).

Variables are numbered in declaration order. Each becomes one table over its parents and then itself. A block with
``property function max`` is a noisy-MAX: see `noisy_max`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES, TableRuns, log_potentials, table_size
from fgnn.pgm.io.noisy_max import noisy_max, noisy_sizes
from fgnn.pgm.io.numbers import shown
from fgnn.pgm.io.stream import Limits
from fgnn.pgm.io.text import Text, numbers_of
from fgnn.pgm.model import GraphicalModel

# a row without quotes or comments: (a, b) 0.1, 0.9;
_ROW = re.compile(r'\(([^()"{};]*)\)([^();"{}]*);\s*')


@dataclass(frozen=True, eq=False)
class _Variable:
    index: int
    states: dict[str, int]


_Variables = dict[str, _Variable]
_Tables = dict[str, tuple[list[int], NDArray[np.float64]]]  # by child


def read_bif(path: Path, limits: Limits | None = None) -> GraphicalModel:
    """Read a BIF network; probabilities become log-potentials, 0 becomes ``-inf``."""
    text = Text(path, limits, marks="{}[]();,|", comment=r"/\*(?s:.*?)(?:\*/|\Z)|//[^\n]*")
    variables: _Variables = {}
    tables: _Tables = {}
    while text.peek() is not None:
        kind = text.name("network, variable or probability")
        if kind == "network":
            _skip_network(text)
        elif kind == "variable":
            _read_variable(text, variables)
        elif kind == "probability":
            _read_probability(text, variables, tables)
        else:
            text.fail(f"Expected network, variable or probability (got {shown(kind)})")
        text.place = ""
    if not variables:
        text.fail("Expected a network with variables (got none)")
    for name in variables:
        if name not in tables:
            text.fail("Expected a probability block for every variable (got none)", f"variable {shown(name)}")
    model = GraphicalModel([len(v.states) for v in variables.values()])
    with TableRuns(model) as runs:
        for scope, values in tables.values():
            runs.add(scope, log_potentials(values))
    return model


def _read_property(text: Text) -> list[str]:
    """Take a property; return its words."""
    words = []
    while (word := text.next("';'")) != ";":
        words += word.replace("=", " ").lower().split()
    return words


def _skip_network(text: Text) -> None:
    if not text.is_mark("{"):
        text.name("the network's name")
    text.expect("{")
    while not text.is_mark("}"):
        _read_property(text)
    text.expect("}")


def _read_variable(text: Text, variables: _Variables) -> None:
    name = text.name("a variable's name")
    text.place = f"variable {shown(name)}"
    if name in variables:
        text.fail("Expected every variable once (got it twice)")
    text.expect("{")
    states: dict[str, int] = {}
    while not text.is_mark("}"):
        kind = text.name("type or property")
        if kind == "property":
            _read_property(text)
        elif kind == "type" and not states:
            states = _read_states(text)
        else:
            text.fail(f"Expected one type, or a property (got {shown(kind)})")
    text.expect("}")
    if not states:
        text.fail("Expected the type of the variable (got none)")
    variables[name] = _Variable(len(variables), states)


def _read_states(text: Text) -> dict[str, int]:
    text.expect("discrete")
    text.expect("[")
    count = text.integer("the number of states", 1, len(text.text))
    text.expect("]")
    text.expect("{")
    states = text.numbered_states(text.names_until("}", "a state"))
    if len(states) != count:
        text.fail(f"Expected {count} states (got {len(states)})")
    text.expect(";")
    return states


def _read_probability(text: Text, variables: _Variables, tables: _Tables) -> None:
    text.expect("(")
    names: list[str] = []
    for name in text.names_until(")", "a variable", ",|"):
        if name not in variables:
            text.fail(f"Expected a declared variable (got {shown(name)})")
        names.append(name)
    if not names:
        text.fail("Expected a variable (got none)")
    text.place = f"probability of {shown(names[0])}"
    if len(set(names)) < len(names):
        text.fail("Expected distinct variables (got one twice)")
    if names[0] in tables:
        text.fail("Expected one probability block for each variable (got two)")
    if len(names) > MOST_VARIABLES:
        text.fail(f"Expected at most {MOST_VARIABLES} variables in a table (got {len(names)})")
    child, *parents = (variables[name] for name in names)
    text.claim(table_size((len(v.states) for v in (child, *parents)), text.most_entries))
    tables[names[0]] = ([v.index for v in parents] + [child.index], _read_rows(text, child, parents))


def _read_rows(text: Text, child: _Variable, parents: list[_Variable]) -> NDArray[np.float64]:
    """P(child | parents) with the child on the last axis."""
    shape = [len(p.states) for p in parents]
    width = len(child.states)
    values = np.full((*shape, width), np.nan)  # NaN: missing
    default: NDArray[np.float64] | None = None
    table: NDArray[np.float64] | None = None
    noisy = False
    text.expect("{")
    _read_plain_rows(text, parents, values)
    while not text.is_mark("}"):
        if text.is_mark("("):
            key = _read_key(text, parents)
            if not np.isnan(values[key][0]):
                text.fail("Expected every row once (got one twice)")
            values[key] = _row(text, width)
            continue
        kind = text.name("table, default, property or a row")
        if kind == "property":
            noisy = noisy or _read_property(text) == ["function", "max"]
        elif kind == "default" and default is None:
            default = _row(text, width)
        elif kind == "table" and table is None and np.isnan(values).all():
            table = _row(text)
        else:
            text.fail(f"Expected one table, one default, a property or a row (got {shown(kind)})")
    text.expect("}")
    if table is not None and noisy and parents and default is None and len(table) in noisy_sizes(shape, width):
        return _checked_noisy_max(text, table, shape, width)
    if table is not None:
        # a table runs over the child first and then the parents, the last fastest
        _check_width(text, table, values.size)
        values = np.moveaxis(table.reshape(width, *shape), 0, -1).copy()
    missing = np.isnan(values[..., 0])
    if default is not None:
        values[missing] = default
    elif missing.any():
        states = [list(p.states)[i] for p, i in zip(parents, np.argwhere(missing)[0], strict=True)]
        text.fail(f"Expected a row for every state of the parents (got none for {', '.join(map(shown, states))})")
    return values


def _read_plain_rows(text: Text, parents: list[_Variable], values: NDArray[np.float64]) -> None:
    """Fast path: read all rows of a block at once if they are plain and valid, otherwise read nothing."""
    width = values.shape[-1]
    at = text.at
    keys: list[tuple[int, ...]] = []
    rows: list[str] = []
    while (row := _ROW.match(text.text, at)) is not None:
        names = row[1].split(",")
        if len(names) != len(parents) or row[2].count(",") != width - 1:
            return
        key = tuple(p.states.get(name.strip(), -1) for p, name in zip(parents, names, strict=True))
        if -1 in key:
            return
        keys.append(key)
        rows.append(row[2])
        at = row.end()
    numbers = numbers_of(",".join(rows).split(","))
    if not keys or numbers is None or (numbers < 0).any() or len(set(keys)) < len(keys):
        return
    values[tuple(np.array(keys).T)] = numbers.reshape(len(keys), width)
    text.at = at


def _read_key(text: Text, parents: list[_Variable]) -> tuple[int, ...]:
    """The states of the parents that a row is for."""
    text.expect("(")
    key: list[int] = []
    for state in text.names_until(")", "a state"):
        if len(key) == len(parents):
            text.fail(f"Expected {len(parents)} states of the parents (got more)")
        states = parents[len(key)].states
        if state not in states:
            text.fail(f"Expected a state of parent {len(key)} (got {shown(state)})")
        key.append(states[state])
    if len(key) < len(parents) or not parents:
        text.fail(f"Expected {len(parents)} states of the parents (got {len(key)})")
    return tuple(key)


def _row(text: Text, width: int | None = None) -> NDArray[np.float64]:
    row = text.numbers_until(";", "probabilities")
    if width is not None:
        _check_width(text, row, width)
    if (row < 0).any():
        text.fail(f"Expected probabilities of at least 0 (got {row[row < 0][0]:g})")
    return row


def _check_width(text: Text, row: NDArray[np.float64], width: int) -> None:
    if len(row) != width:
        text.fail(f"Expected {width} probabilities (got {len(row)})")


def _checked_noisy_max(text: Text, table: NDArray[np.float64], parents: list[int], states: int) -> NDArray[np.float64]:
    try:
        return noisy_max(table, parents, states)
    except ValueError as error:
        text.fail(str(error))
