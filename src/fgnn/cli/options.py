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


def complete_solver_option(ctx: Any, incomplete: str) -> list[str]:
    """Return the options of the method on the command line, and the values of one that has choices, for the shell."""
    from fgnn.infer.methods import choices, named, option_kinds
    from fgnn.solvers import SOLVERS

    method = ctx.params.get("method") or "auto"
    if method not in SOLVERS:
        return []
    kinds = option_kinds(named(method, SOLVERS)) or {}
    name, equals, _ = incomplete.partition("=")
    words = [f"{name}={text}" for text in choices(kinds.get(name))] if equals else [f"{name}=" for name in kinds]
    return [word for word in words if word.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the methods of ``fgnn solve`` that begin so."""
    from fgnn.solvers import SOLVERS

    return [name for name in SOLVERS if name.startswith(incomplete)]
