"""The schema of everything that describes a network or a run: frozen dataclasses, read strictly from mappings.

Cards, recipes, run folders and plans come from files that anyone may have written. The type of a field says what it may
hold: ``Annotated[int, Between(1, 4096)]`` bounds a size, and any function that raises a ValueError is a rule. `parse`
checks every key, type and rule and names the file and the field; `check_fields`, called by ``__post_init__``, holds
objects made in Python to the same rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fgnn.errors import InputError
from fgnn.names import LONGEST, check_file_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
File = str | Path | None


@dataclass(frozen=True)
class Between:
    """A rule: a number from ``low`` to ``high``; ``above`` and ``below`` exclude the ends."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __call__(self, value: float) -> None:
        if value < self.low or value > self.high or (self.above and value == self.low) or value == self._below():
            raise ValueError(f"Expected {self} (got {show(value)})")

    def _below(self) -> float:
        return self.high if self.below else math.nan

    def __str__(self) -> str:
        low = f"{'more than' if self.above else 'at least'} {_number(self.low)}"
        high = f"{'less than' if self.below else 'at most'} {_number(self.high)}"
        return " and ".join(text for text, end in ((low, self.low), (high, self.high)) if math.isfinite(end))


@dataclass(frozen=True)
class Length:
    """A rule: the number of characters of a text, or of items of a list."""

    most: int
    least: int = 0

    def __call__(self, value: Sequence[Any]) -> None:
        if not self.least <= len(value) <= self.most:
            what = "characters" if isinstance(value, str) else "items"
            raise ValueError(f"Expected {self.least} to {self.most:,} {what} (got {len(value):,})")


def check_number(value: Any) -> None:
    """A rule: a number, finite or not."""
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or (isinstance(value, int) and abs(value) > 10**300)
    ):
        raise ValueError(f"Expected a number (got {show(value)})")


def check_extended(value: Any) -> None:
    """A rule: a number, finite or not, but not NaN."""
    check_number(value)
    if value != value:
        raise ValueError("Expected a number (got nan)")


def check_path(value: str) -> None:
    """A rule: text that the system takes as a path."""
    Length(4096, 1)(value)
    if "\0" in value:
        raise ValueError(f"Expected a path (got {show(value)})")


FileName = Annotated[str, check_file_name]  # becomes a file or folder of ours
PathText = Annotated[str, check_path]  # names a file or folder of the user's
Label = Annotated[str, Length(LONGEST)]  # the name of a class, a field or a part, only ever shown
Number = Annotated[Any, check_number]  # a measured value, which may be NaN or infinite
Extended = Annotated[Any, check_extended]  # a log-potential: a number or an infinity
Share = Annotated[float, Between(0, 1)]
Extent = Annotated[float, Between(1e-6, 1e6)]  # a length in the units of a scan
Positive = Annotated[float, Between(0, above=True)]


def parse(cls: type[T], values: Any, *, file: File = None, place: str = "") -> T:
    """Build ``cls`` from the values of a YAML or JSON file.

    Every key must be a field and every value must have the field's type and keep its rules; only whole numbers convert,
    to float. ``place`` is the path of keys so far, such as ``data.chain``.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"Expected a mapping of settings (got {show(values)})", file=file, place=place)
    hints = _hints(cls)
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            close = get_close_matches(str(key)[:LONGEST], hints, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(hints)}"
            raise InputError(f"unknown key; {hint}", file=file, place=_join(place, str(key)))
        arguments[key] = convert(hints[key], value, file, _join(place, str(key)))
    for field in dataclasses.fields(cls):
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in arguments and missing:
            raise InputError("this key is required", file=file, place=_join(place, field.name))
    try:
        return cls(**arguments)
    except ValueError as error:  # from __post_init__: add the place
        raise InputError(str(error), file=file, place=place) from error


def check_fields(value: DataclassInstance) -> None:
    """Hold a dataclass made in Python to the types and rules of its fields."""
    for name, hint in _hints(type(value)).items():
        object.__setattr__(value, name, convert(hint, getattr(value, name), None, name))


def plain(value: Any) -> Any:
    """Invert `parse`: dataclasses become nested dicts of plain values, without fields that are None or ``ignored``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        ignored = getattr(value, "ignored", ())
        items = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in ignored)
        return {name: plain(item) for name, item in items if item is not None}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def convert(hint: Any, value: Any, file: File, place: str) -> Any:
    """Return the value as the annotation asks, or raise an `InputError` with the place."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        converted = convert(arguments[0], value, file, place)
        for rule in arguments[1:]:
            try:
                rule(converted)
            except ValueError as error:
                raise InputError(str(error), file=file, place=place) from error
        return converted
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (a for a in arguments if a is not type(None))  # only "X | None" is used
        return convert(hint, value, file, place)
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type[Any], hint)
        return value if isinstance(value, kind) else parse(kind, value, file=file, place=place)
    if origin is Literal:
        return _choice(arguments, value, file, place)
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise InputError(f"Expected a list (got {show(value)})", file=file, place=place)
        return tuple(convert(arguments[0], item, file, f"{place}[{n}]") for n, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InputError(f"Expected a mapping of names (got {show(value)})", file=file, place=place)
        return {key: convert(arguments[1], item, file, _join(place, key)) for key, item in value.items()}
    return value if hint is Any else _scalar(hint, value, file, place)


def _choice(choices: tuple[Any, ...], value: Any, file: File, place: str) -> Any:
    if isinstance(value, str) and value in choices:
        return value
    close = get_close_matches(show(value)[:LONGEST], [str(a) for a in choices], n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    names = ", ".join(str(a) for a in choices)
    raise InputError(f"Expected one of {names} (got {show(value)}{hint})", file=file, place=place)


_KINDS: dict[Any, tuple[str, Any]] = {
    int: ("a whole number", numbers.Integral),
    float: ("a number", numbers.Real),
    str: ("text", str),
    bool: ("true or false", bool),
}


def _scalar(hint: Any, value: Any, file: File, place: str) -> Any:
    what, kind = _KINDS[hint]
    if hint is float and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML 1.1 reads 3e-3 (no dot) as text
    if not isinstance(value, kind) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"Expected {what} (got {show(value)})", file=file, place=place)
    try:
        value = hint(value)
    except OverflowError:
        value = math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"Expected a finite number (got {value})", file=file, place=place)
    return value


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The annotation of each field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def show(value: Any) -> str:
    """Format a value for a message, shortened if it is large."""
    if value is None:
        return "nothing"
    try:
        return repr(value[:100]) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a very long number"
