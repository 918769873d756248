"""Options of a method on the command line: ``-o name=value``, typed by the method's signature."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from fgnn.errors import InputError


def method_options(
    pairs: Collection[str], method: str, methods: Mapping[str, Callable[..., Any] | str], reserved: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of ``name=value`` pairs, of the types that the method declares."""
    from fgnn.infer.methods import named, parse_options

    texts: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"Expected --option name=value (got {pair!r})")
        texts[name.replace("-", "_")] = text
    return parse_options(method, named(method, methods), texts, reserved)
