"""Shared by all benchmarks: timing, peak memory, tables and result files."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fgnn.runtime.devices import synchronised_time

RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Timing:
    """Seconds over the repetitions, and the additional peak memory (None: unknown)."""

    median: float
    best: float
    peak_bytes: int | None
    result: Any = None


def timed(
    work: Callable[[], Any],
    repeats: int = 3,
    warmup: int = 1,
    device: torch.device | str = "cpu",
    long: float = 10.0,
) -> Timing:
    """Time ``repeats`` runs after ``warmup`` runs; a run longer than ``long`` seconds is the last.

    On a GPU the first run may exceed ``long``, as it compiles. The device is synchronised before and after each run.
    """
    where = torch.device(device)
    gc.collect()
    before = _reset_peak(where)
    result: Any = None
    seconds: list[float] = []
    for i in range(warmup + repeats):
        start = synchronised_time(where)
        result = work()
        seconds.append(synchronised_time(where) - start)
        if seconds[-1] > long and (i > 0 or where.type != "cuda"):
            break
    seconds = seconds[warmup:] or seconds
    peak = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else _status("VmHWM")
    additional = None if before is None or peak is None else max(0, peak - before)
    return Timing(median(seconds), min(seconds), additional, result)


def describe(head: Mapping[str, Any]) -> str:
    """The environment in one line."""
    return (
        f"{head['device'] if head['device'] != 'cpu' else head['cpu']}, {head['cores']} cores, {head['threads']} "
        f"threads, load {head['load']}; torch {head['torch']}, fgnn {head['fgnn']} ({head['commit']}), {head['date']}"
    )


def write_result(name: str, payload: Mapping[str, Any], out: str | Path | None = None) -> Path:
    """Write a result as JSON, HTML page and SVG chart; ``out`` is a file or a folder, by default ``RESULTS``."""
    from fgnn.bench.chart import write_chart
    from fgnn.files import atomic_write
    from fgnn.report.bench_page import write_bench_page

    target = Path(out) if out is not None else RESULTS
    file = target if target.suffix == ".json" else target / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as handle:
        json.dump(payload, handle, indent=2)
        handle.write("\n")
    write_bench_page(payload, file.with_suffix(".html"))
    write_chart(payload, file.with_suffix(".svg"))
    return file


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, in colour on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    # a pipe has no width, and the default of 80 would wrap the table
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(Text(title, "bold"))  # the table's own title would wrap at the table's width
    console.print(table)


def number(value: float | None, digits: int = 3) -> str | None:
    """A number to ``digits`` significant digits, without an exponent if possible."""
    if value is None:
        return None
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e12 else f"{value:.{digits}g}"


def mib(size: int | None) -> str | None:
    """A number of bytes in MiB."""
    return None if size is None else number(size / 2**20)


def _reset_peak(where: torch.device) -> int | None:
    """Reset the peak memory and return the memory in use."""
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
        return torch.cuda.memory_allocated(where)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak of this process
    except OSError:
        return None
    return _status("VmRSS")


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)
