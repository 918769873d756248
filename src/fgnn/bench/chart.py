"""The chart of a benchmark as an SVG file: the times of all methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fgnn.files import atomic_write
from fgnn.report import bars
from fgnn.report.charts import standalone

# Columns of times with their legends, and the unit; the first set that a table has is drawn.
_TIMES = (
    ({"forward_ms": "forward", "both_ms": "forward + backward"}, "milliseconds"),
    ({"ms": "time"}, "milliseconds"),
    ({"ms_per_model": "time"}, "milliseconds per model"),
    ({"step_ms": "step"}, "milliseconds"),
)


def write_chart(result: Mapping[str, Any], path: str | Path) -> Path | None:
    """Draw the first table of times on a logarithmic axis; None if there is none."""
    for rows in _tables(result):
        for names, unit in _TIMES:
            if all(key in row for row in rows.values() for key in names):
                series = {name: [float(row[key]) for row in rows.values()] for key, name in names.items()}
                with atomic_write(path) as handle:
                    handle.write(standalone(bars(list(rows), series, unit, log=True)))
                return Path(path)
    return None


def _tables(value: Any) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """Every mapping whose entries are all mappings, outermost first."""
    if not isinstance(value, Mapping):
        return
    if value and all(isinstance(entry, Mapping) for entry in value.values()):
        yield value
    for entry in value.values():
        yield from _tables(entry)
