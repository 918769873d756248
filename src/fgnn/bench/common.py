"""What every benchmark shares: where it ran, how time and memory are taken, and how results are shown and kept."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Timing:
    """Seconds over some repetitions, and the peak of memory on top of what was held before (None: not known)."""

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
    """The median of a few runs after some to warm up; one of more than ``long`` seconds is the last.

    On a GPU the first run does not count for that, as it compiles. Waits for the device before and after each run.
    """
    where = torch.device(device)

    def once() -> tuple[float, Any]:
        _wait(where)
        start = time.perf_counter()
        result = work()
        _wait(where)
        return time.perf_counter() - start, result

    gc.collect()
    held = _start_peak(where)
    result: Any = None
    seconds: list[float] = []
    for i in range(warmup + repeats):
        taken, result = once()
        seconds.append(taken)
        if taken > long and (i > 0 or where.type != "cuda"):
            break
    seconds = seconds[warmup:] or seconds
    peak = _peak(where)
    above = None if held is None or peak is None else max(0, peak - held)
    return Timing(median(seconds), min(seconds), above, result)


def describe(head: Mapping[str, Any]) -> str:
    """The environment in one line."""
    return (
        f"{head['device'] if head['device'] != 'cpu' else head['cpu']}, {head['cores']} cores, {head['threads']} "
        f"threads, load {head['load']}; torch {head['torch']}, fgnn {head['fgnn']} ({head['commit']}), {head['date']}"
    )


def write_result(name: str, payload: Mapping[str, Any], out: str | Path | None = None) -> Path:
    """Keep a result as JSON, a page and a chart beside it: in ``out``, a file or a folder, by default ``RESULTS``."""
    from fgnn.bench.chart import write_chart
    from fgnn.files import atomic_write
    from fgnn.report.bench_page import write_bench_page

    place = Path(out) if out is not None else RESULTS
    file = place if place.suffix == ".json" else place / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as handle:
        json.dump(payload, handle, indent=2)
        handle.write("\n")
    write_bench_page(payload, file.with_suffix(".html"))
    write_chart(payload, file.with_suffix(".svg"))
    return file


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: on a terminal with colours, elsewhere plain."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    # a pipe has no width of its own; a table must not be folded to the default of 80
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(Text(title, "bold"))  # not the table's own title, which is folded to the table's width
    console.print(table)


def number(value: float | None, digits: int = 3) -> str | None:
    """A number to so many significant digits, without an exponent where it can be helped."""
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


# ---- inner ----------------------------------------------------------------------------------------------------


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _start_peak(where: torch.device) -> int | None:
    """Forget the peak so far; what is held now."""
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
        return torch.cuda.memory_allocated(where)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the high-water mark of this process
    except OSError:
        return None
    return _status("VmRSS")


def _peak(where: torch.device) -> int | None:
    if where.type == "cuda":
        return torch.cuda.max_memory_allocated(where)
    return _status("VmHWM")


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)
