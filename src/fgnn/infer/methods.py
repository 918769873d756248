"""Methods by name: look one up, and check the options it is called with."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import UnionType
from typing import Annotated, Any, Literal, SupportsFloat, SupportsIndex, TypeVar, Union, cast, get_args, get_origin

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# One thread imports at a time: two that import modules of one package in different orders can deadlock.
_IMPORTING = RLock()


def named(method: str, methods: Mapping[str, Function | str]) -> Function:
    """Return the method of that name; one given as "module:function" is imported."""
    if method not in methods:
        close = get_close_matches(str(method), methods, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"Expected a method among {', '.join(methods)} (got {method!r}{hint})")
    function = methods[method]
    if not isinstance(function, str):
        return function
    module, name = function.split(":")
    with _IMPORTING:
        return cast("Function", getattr(import_module(module), name))


def option_kinds(function: Callable[..., Any], reserved: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the annotation of each option of a method; None for a method that takes any.

    ``reserved`` are further arguments that are not options.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError:  # an annotation that only type checkers can resolve
        parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    own = ("time_limit", "seed", "progress", *reserved)
    return {n: p.annotation for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and n not in own}


def check_options(
    method: str, function: Callable[..., Any], options: dict[str, Any], reserved: Collection[str] = ()
) -> None:
    """Refuse options that a method does not have, and values that do not fit its annotations."""
    kinds = option_kinds(function, reserved) if options else None
    if kinds is None:
        return
    for name, value in options.items():
        kind, rules = _rules(_kind_of(method, name, kinds))
        if not fits(value, kind):
            raise _misfit(method, name, kind, value)
        _keep(method, name, rules, value)


def parse_options(
    method: str, function: Callable[..., Any], texts: Mapping[str, str], reserved: Collection[str] = ()
) -> dict[str, Any]:
    """Turn the texts of a method's options into values of the types that it declares: the only place that does so."""
    kinds = option_kinds(function, reserved)
    options: dict[str, Any] = {}
    for name, text in texts.items():
        kind, rules = (Any, ()) if kinds is None else _rules(_kind_of(method, name, kinds))
        values = [value for value in _readings(text, kind) if fits(value, kind)]
        if not values:
            raise _misfit(method, name, kind, text)
        _keep(method, name, rules, values[0])
        options[name] = values[0]
    return options


def choices(kind: Any) -> list[str]:
    """Return the texts that an option of this type takes, if they can be listed, for shells that complete them."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) in (Union, UnionType):
        return [text for member in get_args(kind) for text in choices(member)]
    return {bool: ["true", "false"], type(None): ["none"]}.get(kind, [])


def _rules(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type of an option, and the rules that ``Annotated`` adds to it (see `fgnn.schema`)."""
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


def _keep(method: str, name: str, rules: tuple[Any, ...], value: Any) -> None:
    for rule in rules:
        try:
            rule(value)
        except ValueError as error:
            raise ValueError(f"option {name} of {method}: {error}") from error


def _kind_of(method: str, name: str, kinds: Mapping[str, Any]) -> Any:
    if name not in kinds:
        close = get_close_matches(name[:100], kinds, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"Expected an option of {method} ({', '.join(kinds) or 'none'}) (got {name!r}{hint})")
    return kinds[name]


def _misfit(method: str, name: str, kind: Any, value: Any) -> ValueError:
    named = " or ".join(choices(kind)) if get_origin(kind) is Literal else inspect.formatannotation(kind)
    return ValueError(f"Expected the option {name} of {method} to be {named} (got {value!r})")


def _readings(text: str, kind: Any) -> Iterator[Any]:
    """What a text may mean where a value of this type is expected, the likeliest first."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for member in members:
        origin = get_origin(member) or member
        if member is type(None) and text.lower() in ("none", "null"):
            yield None
        elif origin is bool and text.lower() in ("true", "false", "1", "0"):
            yield text.lower() in ("true", "1")
        elif origin in (int, float):
            with suppress(ValueError, OverflowError):
                number = float(text)
                yield int(number) if origin is int and number.is_integer() else number
        elif member is torch.dtype:
            yield getattr(torch, text.removeprefix("torch."), None)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            with suppress(ValueError, RecursionError):
                yield json.loads(text)
        elif origin in (str, Path, Literal) or not isinstance(origin, type):
            yield text


def fits(value: Any, kind: Any) -> bool:
    """Whether a value fits an annotation; numbers of any library do."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in get_args(kind))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if origin is int:
        whole = isinstance(value, SupportsIndex) or (isinstance(value, float) and value.is_integer())
        return whole and abs(int(value)) < 1 << 63
    if origin is bool:
        return isinstance(value, SupportsFloat) and value in (0, 1)
    if origin is float:
        return isinstance(value, SupportsFloat) and float(value) == float(value)
    return not isinstance(origin, type) or origin is inspect.Parameter.empty or isinstance(value, origin)
