"""Altered copies of the values of a file: every entry missing, of another type or sign, huge or not finite."""

from __future__ import annotations

import copy
import math
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from fgnn.errors import InputError

Path = tuple[str | int, ...]

SECONDS, BYTES = 5.0, 300 << 20  # for one file

# What a field might hold instead. Valid values are among them: an altered file is used or refused, nothing else.
VALUES: tuple[Any, ...] = (
    None, True, "", "text", "../../x", "\x1b[2J\r\n", "x" * 100_000, -1, 0, 1, 10**6, 10**12, 10**300, 1.5, -1e300,
    1e-300, math.nan, math.inf, [], [[]], [None], [-1], [10**12], ["x"] * 300, {}, {"a": 1}, {"architecture": {}},
)  # fmt: skip


def alterations(values: Any) -> Iterator[tuple[str, Any]]:
    """Return altered copies of nested values, each with a description of what was changed."""
    for path in _paths(values):
        shown = ".".join(map(str, path)) or "all"
        for value in VALUES:
            yield f"{shown} = {repr(value)[:40]}", _set(values, path, value)
        if path:
            yield f"{shown} missing", _set(values, path, None, remove=True)
        if isinstance(_get(values, path), dict):
            yield f"{shown} with another key", _set(values, (*path, "another\x1b[2J"), 1)


def _paths(values: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    entries: Any = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, entry in entries:
        yield from _paths(entry, (*path, key))


def _get(values: Any, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values


def _set(values: Any, path: Path, value: Any, *, remove: bool = False) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(values)
    parent = _get(changed, path[:-1])
    if remove:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


def attempt(what: str, use: Callable[[], Any], place: str) -> bool:
    """Return whether an altered file was used; it may be refused in one line that names it, and nothing else.

    Also bounds the time and the memory of either.
    """
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    refusal = None
    try:
        use()
    except InputError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert time.process_time() - start < SECONDS, what
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10 < BYTES, what
    if refusal is not None:
        assert place in refusal, f"{what}: {refusal}"
        assert refusal.isprintable(), f"{what}: {refusal}"
        assert len(refusal) < 600 + len(place), f"{what}: {refusal}"
    return refusal is None
