"""The picture of a result, as an SVG file beside its JSON: how long each way took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fgnn.files import atomic_write
from fgnn.report.charts import bars

# Names of times in results, and how a chart calls them; the first that a table has are drawn.
_TIMES = (
    ({"forward_ms": "forward", "both_ms": "forward + backward"}, "milliseconds"),
    ({"ms": "time"}, "milliseconds"),
    ({"ms_per_model": "time"}, "milliseconds a model"),
    ({"step_ms": "a step"}, "milliseconds"),
)


def write_chart(result: Mapping[str, Any], path: str | Path) -> Path | None:
    """Draw a result's first table of times, on a logarithmic axis; None where it has none."""
    for rows in _tables(result):
        for names, unit in _TIMES:
            if all(key in row for row in rows.values() for key in names):
                series = {told: [float(row[key]) for row in rows.values()] for key, told in names.items()}
                drawn = bars(list(rows), series, unit, log=True)
                drawn = drawn.replace("<svg ", "<svg xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' ", 1)
                with atomic_write(path) as handle:
                    handle.write(drawn)
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
