"""Tables of a JSON result: numbers as a list, records as rows, nested values under headings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fgnn.report.tables import Table

_SHORT = 12  # longer lists are data and are not shown


def sections(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Table]]:
    """The tables of a value, each with its path of headings."""
    if are_records(value):
        yield path, records(value)
    elif isinstance(value, Mapping):
        short = {k: v for k, v in value.items() if _is_short(v)}
        if short:
            yield path, Table(("", ""), [(_plain(k), number(v)) for k, v in short.items()])
        for key, inner in value.items():
            if key not in short:
                yield from sections(inner, (*path, _plain(key)))


def are_records(value: Any) -> bool:
    """Whether the entries of a list or mapping are all records, which become the rows of a table."""
    rows = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return bool(rows) and all(isinstance(v, Mapping) and any(_is_short(x) for x in v.values()) for v in rows)


def records(value: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> Table:
    """Records as a table; the keys of a mapping become the first column."""
    named = isinstance(value, Mapping)
    flat = {name: flatten(row) for name, row in (value.items() if isinstance(value, Mapping) else enumerate(value))}
    columns = list(dict.fromkeys(key for row in flat.values() for key in row))
    head = (["", *columns] if named else columns) or [""]
    rows = [[*([str(name)] if named else []), *(number(row.get(c, "")) for c in columns)] for name, row in flat.items()]
    return Table([_plain(h) for h in head], rows)


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A record with nested records merged into it, under prefixed keys."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key} ")
        elif _is_short(value):
            flat[f"{prefix}{key}"] = value
    return flat


def number(value: Any) -> str:
    """The text of a cell: floats to four digits, a dash for None."""
    if isinstance(value, list):
        return ", ".join(number(v) for v in value)
    if isinstance(value, bool) or not isinstance(value, float):
        return "–" if value is None else " ".join(str(value).split())
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_short(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _SHORT and all(not isinstance(v, Mapping | list) for v in value)
    return not isinstance(value, Mapping)


def _plain(key: Any) -> str:
    return str(key).replace("_", " ")
