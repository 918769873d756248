"""Models as JSON, the form in which the page and its links store them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np

from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel

# Limits of a browser tab; `fgnn solve` takes larger models.
MAX_VARIABLES = 400
MAX_STATES = 64
MAX_FACTORS = 2000
MAX_ENTRIES = 200_000


def model_from_json(value: Any) -> GraphicalModel:
    """Read a model; an `InputError` names the variable or factor that is wrong."""
    data = as_object(value, "the model")
    variables = [as_object(v, f"variable {i}") for i, v in enumerate(_sequence(data, "variables", MAX_VARIABLES))]
    for i, variable in enumerate(variables):
        states = variable.get("states")
        if not _is_integer(states) or not 1 <= states <= MAX_STATES:
            raise InputError(f"Expected 1 to {MAX_STATES} states (got {states!r})", place=f"variable {i}")
    cards = [variable["states"] for variable in variables]
    model = GraphicalModel(np.array(cards, dtype=np.int64))
    for i, variable in enumerate(variables):
        with _errors_at(f"variable {i}"):
            if variable.get("unary") is not None:
                model.add_unary(i, _numbers(variable, "unary"))
    entries = 0
    for c, value in enumerate(_sequence(data, "factors", MAX_FACTORS) if "factors" in data else []):
        with _errors_at(f"factor {c}"):
            entries += _add_factor(model, as_object(value, f"factor {c}"), MAX_ENTRIES - entries)
    return model


def _add_factor(model: GraphicalModel, factor: dict[str, Any], room: int) -> int:
    """Add a factor and return its number of table entries, at most ``room``."""
    cards = model.cardinalities.tolist()
    scope = _sequence(factor, "scope", MAX_VARIABLES)
    if not all(_is_integer(i) and 0 <= i < len(cards) for i in scope):
        raise InputError(f"Expected variables below {len(cards)} in the scope")
    if factor.get("kind") == "budget":
        low, high = factor.get("at_least", 0), factor.get("at_most", len(scope))
        if not _is_integer(low) or not _is_integer(high):
            raise InputError("Expected integers at_least and at_most")
        model.add_budget(scope, high, at_least=low)
        return 0
    if factor.get("kind") != "table":
        raise InputError(f"Expected kind 'table' or 'budget' (got {factor.get('kind')!r})")
    shape = [cards[i] for i in scope]
    size = int(math.prod(shape))
    if size > room:
        raise InputError(f"Expected at most {MAX_ENTRIES} table entries in total")
    values = np.array(_numbers(factor, "values"))
    if values.size != size:
        raise InputError(f"Expected {size} values (got {values.size})")
    model.add_table(scope, values.reshape(shape))
    return size


def model_to_json(model: GraphicalModel) -> dict[str, Any]:
    """The model as JSON, -inf as the string "-inf"; models too large for the page are rejected.

    Structured factors become tables.
    """
    count = model.num_tables + model.num_budgets + model.num_structured
    entries = sum(t.values.size for t in model.tables()) + sum(math.prod(f.shape) for f in model.structured())
    for what, number, most in (
        ("variables", model.num_variables, MAX_VARIABLES),
        ("factors", count, MAX_FACTORS),
        ("table entries", entries, MAX_ENTRIES),
    ):
        if number > most:
            raise InputError(f"Expected at most {most} {what} to draw (got {number}); use 'fgnn solve'")
    arrays = [*((t.scope, t.values) for t in model.tables()), *((f.scope, f.as_table()) for f in model.structured())]
    tables = [
        {"kind": "table", "scope": list(scope), "values": [_plain(v) for v in values.reshape(-1).tolist()]}
        for scope, values in arrays
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
    """Parse JSON without NaN, Infinity and excessive nesting."""

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


def as_object(value: Any, what: str) -> dict[str, Any]:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"Expected an object for {what} (got {type(value).__name__})")
    return value


def _sequence(fields: dict[str, Any], name: str, most: int) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise InputError(f"Expected a list for {name} (got {type(value).__name__})")
    if len(value) > most:
        raise InputError(f"Expected at most {most} entries in {name} (got {len(value)})")
    return value


def _numbers(fields: dict[str, Any], name: str) -> list[float]:
    numbers = []
    for entry in _sequence(fields, name, MAX_ENTRIES):
        if entry == "-inf":
            numbers.append(-math.inf)
        elif isinstance(entry, int | float) and not isinstance(entry, bool) and abs(entry) <= 1e300:
            numbers.append(float(entry))
        else:
            raise InputError(f"Expected numbers or '-inf' (got {entry!r:.40})")
    return numbers


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


@contextmanager
def _errors_at(place: str) -> Iterator[None]:
    """Add the place to errors."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error), place=place) from error
