"""Models as the page and its links hold them: plain JSON with a place on the drawing for every variable."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel

# What the page can draw and a browser tab can hold; larger models belong to `fgnn solve`.
MAX_VARIABLES = 400
MAX_STATES = 64
MAX_FACTORS = 2000
MAX_ENTRIES = 200_000


def model_from_json(value: Any) -> GraphicalModel:
    """Read a model; anything odd is an `InputError` that names the variable or factor."""
    data = _mapping(value, "the model")
    variables = _sequence(data.get("variables"), "variables", MAX_VARIABLES)
    cards = []
    for i, entry in enumerate(variables):
        states = _mapping(entry, f"variable {i}").get("states")
        if not isinstance(states, int) or isinstance(states, bool) or not 1 <= states <= MAX_STATES:
            raise InputError(f"Expected 1 to {MAX_STATES} states (got {states!r})", place=f"variable {i}")
        cards.append(states)
    model = GraphicalModel(np.array(cards, dtype=np.int64))
    for i, entry in enumerate(variables):
        if entry.get("unary") is not None:
            _add(lambda i=i, e=entry: model.add_unary(i, _numbers(e["unary"], f"variable {i}")), f"variable {i}")
    entries = 0
    for c, entry in enumerate(_sequence(data.get("factors", []), "factors", MAX_FACTORS)):
        place = f"factor {c}"
        factor = _mapping(entry, place)
        scope = _sequence(factor.get("scope"), f"the scope of {place}", MAX_VARIABLES)
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < len(cards) for i in scope):
            raise InputError(f"Expected variables below {len(cards)} in the scope", place=place)
        if factor.get("kind") == "budget":
            low, high = factor.get("at_least", 0), factor.get("at_most", len(scope))
            if not all(isinstance(b, int) and not isinstance(b, bool) for b in (low, high)):
                raise InputError("Expected whole numbers at_least and at_most", place=place)
            _add(lambda s=scope, h=high, w=low: model.add_budget(s, h, at_least=w), place)
        elif factor.get("kind") == "table":
            shape = [cards[i] for i in scope]
            entries += math.prod(shape)
            if entries > MAX_ENTRIES:
                raise InputError(f"Expected at most {MAX_ENTRIES} table entries in all", place=place)
            values = np.array(_numbers(factor.get("values"), place))
            if values.size != math.prod(shape):
                raise InputError(f"Expected {math.prod(shape)} values (got {values.size})", place=place)
            _add(lambda s=scope, v=values, k=shape: model.add_table(s, v.reshape(k)), place)
        else:
            raise InputError(f"Expected kind 'table' or 'budget' (got {factor.get('kind')!r})", place=place)
    return model


def model_to_json(model: GraphicalModel) -> dict[str, Any]:
    """The model as JSON, -inf as the string "-inf"; refused where the page could not hold it."""
    count = model.num_tables + model.num_budgets
    entries = sum(t.values.size for t in model.tables())
    for what, number, most in (
        ("variables", model.num_variables, MAX_VARIABLES),
        ("factors", count, MAX_FACTORS),
        ("table entries", entries, MAX_ENTRIES),
    ):
        if number > most:
            raise InputError(f"Expected at most {most} {what} to draw (got {number}); use 'fgnn solve'")
    tables = [
        {"kind": "table", "scope": list(t.scope), "values": [_plain(v) for v in t.values.reshape(-1).tolist()]}
        for t in model.tables()
    ]
    budgets = [
        {"kind": "budget", "scope": list(b.scope), "at_least": b.at_least, "at_most": b.at_most}
        for b in model.budgets()
    ]
    variables = [
        {"states": int(k), "unary": [_plain(v) for v in model.unary(i).tolist()]}
        for i, k in enumerate(model.cardinalities)
    ]
    return {"variables": variables, "factors": tables + budgets}


def parse_json(text: str | bytes) -> Any:
    """JSON that holds no NaN or Infinity and is not nested without end."""

    def refuse(name: str) -> float:
        raise InputError(f"Expected plain numbers (got {name})")

    try:
        return json.loads(text, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError, UnicodeDecodeError) as error:
        raise InputError("Expected JSON") from error


def _plain(value: float) -> float | str:
    return "-inf" if value == -math.inf else value


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"Expected an object for {what} (got {type(value).__name__})")
    return value


def _sequence(value: Any, what: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"Expected a list for {what} (got {type(value).__name__})")
    if len(value) > most:
        raise InputError(f"Expected at most {most} entries in {what} (got {len(value)})")
    return value


def _numbers(value: Any, place: str) -> list[float]:
    numbers = []
    for entry in _sequence(value, f"the values of {place}", MAX_ENTRIES):
        if entry == "-inf":
            numbers.append(-math.inf)
        elif isinstance(entry, int | float) and not isinstance(entry, bool) and abs(entry) <= 1e300:
            numbers.append(float(entry))
        else:
            raise InputError(f"Expected numbers or '-inf' (got {entry!r:.40})", place=place)
    return numbers


def _add(call: Any, place: str) -> None:
    try:
        call()
    except ValueError as error:
        raise InputError(str(error), place=place) from error
