"""The page of a benchmark: all numbers as tables, and times, ratios and growth as charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from fgnn.errors import InputError
from fgnn.report.anytime_page import make_anytime_page
from fgnn.report.charts import bars, lines
from fgnn.report.html import Page, add_provenance
from fgnn.report.records import are_records, flatten, sections

# The unit of a column, by the suffix of its name; columns of one unit share a chart.
_MEMORY = "additional peak memory (MiB)"
_UNITS = (
    ("ms", "milliseconds"),
    ("ms_per_model", "milliseconds per model"),
    ("per_second", "per second"),
    ("bytes", _MEMORY),
)
_RATIOS = ("ratio", "expected", "x ours", "forward", "forward + backward", "memory")


def write_bench_page(result: Mapping[str, Any], path: str | Path) -> Path:
    """Write the page of a result of `fgnn bench`."""
    return make_bench_page(result).write(path)


def page_of_file(file: str | Path) -> Path:
    """Write the page of a JSON result next to it."""
    file = Path(file)
    try:
        result = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError("Expected a result of fgnn bench as JSON", file=file) from error
    if not isinstance(result, dict) or not isinstance(result.get("environment"), dict):
        raise InputError("Expected a result of fgnn bench, with its environment", file=file)
    try:
        page = make_bench_page(result)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise InputError("Expected a result of fgnn bench (got values of another kind)", file=file) from error
    return page.write(file.with_suffix(".html"))


def make_bench_page(result: Mapping[str, Any]) -> Page:
    """The page of a result: charts, then tables of all numbers."""
    if result.get("benchmark") == "anytime":
        return make_anytime_page(result)
    name = str(result.get("benchmark") or next((k for k in result if k not in ("environment", "file")), "result"))
    environment = dict(result.get("environment", {}))
    page = Page(f"Benchmark: {name}")
    page.text("Measured in one run on one machine: ratios are more reliable than absolute times.")
    numbers = {k: v for k, v in result.items() if k not in ("environment", "file", "benchmark")}
    for path, value in _records(numbers):
        _charts(page, ", ".join(path) or name, value)
    page.heading("All numbers")
    for path, table in sections(numbers):
        page.table(table.titled(", ".join(path)))
    seeds = {"inputs": result["seed"]} if "seed" in result else {}
    command = str(environment.get("command", f"fgnn bench {name}"))
    add_provenance(page, command=command, seeds=seeds, environment=environment)
    return page


def _records(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every list or mapping of records, with its path."""
    if are_records(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _records(inner, (*path, str(key).replace("_", " ")))


def _charts(page: Page, title: str, value: Any) -> None:
    named = isinstance(value, Mapping)
    rows = {str(name): flatten(row) for name, row in (value.items() if named else _by_name(value))}
    if not named and (growth := _growth(rows)) is not None:
        size, curves = growth
        page.picture(
            lines(curves, size, "seconds per model", log_x=True, log_y=True), f"{title}: growth with the {size}"
        )
        return
    for unit, columns in _by_unit(rows).items():
        scale = 2.0**-20 if unit == _MEMORY else 1.0
        series = {c.replace("_", " "): [_float(row.get(c), scale) for row in rows.values()] for c in columns}
        positive = [v for values in series.values() for v in values if v is not None and v > 0]
        if len(positive) < 2:
            continue
        wide = max(positive) > 20 * min(positive)
        page.picture(bars(list(rows), series, unit, log=wide), f"{title}: {unit}" + (", logarithmic" if wide else ""))


def _by_name(rows: list[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Records with a name: the first string in each, or else the index."""
    names = [next((str(v) for v in row.values() if isinstance(v, str)), str(n)) for n, row in enumerate(rows)]
    unique = len(set(names)) == len(names)
    return [(name if unique else f"{n}: {name}", row) for n, (name, row) in enumerate(zip(names, rows, strict=True))]


def _growth(rows: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, list[tuple[float, float]]]] | None:
    """An integer column that grows from row to row, and the times as functions of it; None if there is none."""
    entries = list(rows.values())
    integers = [k for k in entries[0] if all(type(row.get(k)) is int for row in entries)]
    sizes = [k for k in integers if all(a[k] < b[k] for a, b in pairwise(entries))]
    if len(entries) < 3 or not sizes:
        return None
    timed = [k for k in dict.fromkeys(k for row in entries for k in row) if isinstance(entries[0].get(k), float)]
    return sizes[0], {k: [(float(r[sizes[0]]), r[k]) for r in entries if isinstance(r.get(k), float)] for k in timed}


def _by_unit(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Columns that share an axis: those of one unit, and ratios."""
    columns = list(dict.fromkeys(k for row in rows.values() for k, v in row.items() if _float(v) is not None))
    units: dict[str, list[str]] = {}
    for column in columns:
        unit = next((unit for suffix, unit in _UNITS if column.endswith(suffix)), None)
        if unit is None and column.startswith("parts "):
            unit = "milliseconds"
        if unit is None and column in _RATIOS:
            unit = "times"
        if unit is not None and "called" not in column:
            units.setdefault(unit, []).append(column)
    return units


def _float(value: Any, scale: float = 1.0) -> float | None:
    return scale * float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
