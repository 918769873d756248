"""Parse mappings into frozen dataclasses strictly: an unknown key or a wrong type is an error with its place."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fgnn.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_LONGEST_NAME = 100  # characters of a name that are compared for a suggestion


def parse(cls: type[T], values: Any, *, file: str | Path | None = None, place: str = "") -> T:
    """Build ``cls`` from the values of a YAML or JSON file.

    Every key must be a field and every value must have the field's type; only int converts, to float. ``place`` is the
    path of keys so far, such as ``data.chain``.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"Expected a mapping of settings (got {_show(values)})", file=file, place=place)
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            close = get_close_matches(str(key)[:_LONGEST_NAME], fields, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(fields)}"
            raise InputError(f"unknown key; {hint}", file=file, place=_join(place, str(key)))
        arguments[key] = _convert(hints[key], value, file, _join(place, str(key)))
    for name, field in fields.items():
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if name not in arguments and missing:
            raise InputError("this key is required", file=file, place=_join(place, name))
    try:
        return cls(**arguments)
    except InputError:
        raise
    except ValueError as error:  # from __post_init__: add the place
        raise InputError(str(error), file=file, place=place) from error


def plain(value: Any) -> Any:
    """Invert `parse`: dataclasses become nested dicts of plain values, without fields that are None or ``ignored``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        ignored = getattr(value, "ignored", ())
        items = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in ignored)
        return {name: plain(item) for name, item in items if item is not None}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _convert(hint: Any, value: Any, file: str | Path | None, place: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (a for a in arguments if a is not type(None))  # only "X | None" is used
        return _convert(hint, value, file, place)
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast(type[Any], hint), value, file=file, place=place)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            close = get_close_matches(_show(value)[:_LONGEST_NAME], [str(a) for a in arguments], n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            choices = ", ".join(str(a) for a in arguments)
            raise InputError(f"Expected one of {choices} (got {_show(value)}{hint})", file=file, place=place)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"Expected a list (got {_show(value)})", file=file, place=place)
        return tuple(_convert(arguments[0], item, file, f"{place}[{n}]") for n, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):
        # YAML 1.1 reads 3e-3 (no dot) as text
        with contextlib.suppress(ValueError):
            value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise InputError(f"Expected {names[hint]} (got {_show(value)})", file=file, place=place)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"Expected a finite number (got {value})", file=file, place=place)
    return value


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _show(value: Any) -> str:
    """Format a value for a message, shortened if it is large."""
    return "nothing" if value is None else reprlib.repr(value) if not isinstance(value, str) else repr(value[:100])
