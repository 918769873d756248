"""Methods by name: look one up, and check the options it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from importlib import import_module
from threading import RLock
from types import UnionType
from typing import Any, SupportsFloat, SupportsIndex, TypeVar, Union, cast, get_args, get_origin

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


def check_options(
    method: str, function: Callable[..., Any], options: dict[str, Any], reserved: Collection[str] = ()
) -> None:
    """Refuse options that a method does not have, and values that do not fit its annotations.

    ``reserved`` are further arguments that are not options.
    """
    if not options:
        return
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError:  # an annotation that only type checkers can resolve
        parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    accepted = {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    for name in ("time_limit", "seed", "progress", *reserved):
        accepted.pop(name, None)
    for name, value in options.items():
        if name not in accepted:
            raise ValueError(f"Expected an option of {method} ({', '.join(accepted) or 'none'}) (got {name!r})")
        kind = accepted[name].annotation
        if not _fits(value, kind):
            expected = inspect.formatannotation(kind)
            raise ValueError(f"Expected the option {name} of {method} to be {expected} (got {value!r})")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value fits an annotation; numbers of any library do, and only classes are checked."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if origin is int:
        return isinstance(value, SupportsIndex) or (isinstance(value, float) and value.is_integer())
    if origin in (float, bool):
        return isinstance(value, SupportsFloat)
    return not isinstance(origin, type) or origin is inspect.Parameter.empty or isinstance(value, origin)
