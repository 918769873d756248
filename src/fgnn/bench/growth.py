"""How the time of each solver grows with the length of a chain and the width of its windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fgnn.bench.common import number, show, timed
from fgnn.data import ChainMAP
from fgnn.infer import solve

LENGTHS = (30, 100, 300, 1000, 3000)
WINDOWS = (8, 12, 16, 20)
# Every length has about as many variables in all, and max-product a fixed number of iterations.
_VARIABLES = {"cpu": 30_000, "cuda": 1_000_000}
_SWEEPS = 50
# Joint states of all models together that elimination may go through in one call: wide windows then have few models.
_STATES = {"cpu": 20_000_000, "cuda": 2_000_000_000}
_LONG = 3.0  # seconds: a longer call is not repeated
_METHODS = ("exact", "max-product", "ad3", "auto, one model", "toulbar2, one model")


def growth(
    device: str, seed: int, toulbar2_limit: float, lengths: Sequence[int] = LENGTHS, windows: Sequence[int] = WINDOWS
) -> dict[str, list[dict[str, Any]]]:
    """Both tables; see `table`."""
    by_length = table([ChainMAP(2, length=n) for n in lengths], device, seed, toulbar2_limit)
    known = {(row["length"], row["window"]): row for row in by_length}
    by_window = [
        known.get((100, w)) or table([ChainMAP(2, length=100, window=w)], device, seed, toulbar2_limit)[0]
        for w in windows
    ]
    return {"lengths": by_length, "windows": by_window}


def table(families: Sequence[ChainMAP], device: str, seed: int, toulbar2_limit: float) -> list[dict[str, Any]]:
    """Seconds per model of each family: in batches, and of `auto` and toulbar2 for one model alone.

    toulbar2 gets ``toulbar2_limit`` seconds (0: it is left out). Where it cannot prove a chain within them it is not
    asked about longer ones.
    """
    kind = torch.device(device).type
    rows: list[dict[str, Any]] = []
    gave_up = False
    for data in families:
        states = feasible_states(data.window, data.budget)
        entry: dict[str, Any] = {"length": data.length, "window": data.window, "feasible_states": states}
        models = max(1, _VARIABLES.get(kind, _VARIABLES["cpu"]) // data.length)
        batch = data.sample(models, seed=seed, device=device, source="cpu")
        few = max(1, min(models, _STATES.get(kind, _STATES["cpu"]) // (states * data.length)))
        tasks: dict[str, tuple[int, dict[str, Any]]] = {
            "exact": (few, {}),
            "max-product": (models, {"iterations": _SWEEPS, "tolerance": -1.0}),
            "ad3": (models, {}),
        }
        for name, (count, options) in tasks.items():
            some = batch.select(slice(0, count))
            call = partial(solve, some, name, **options)
            taken = timed(call, device=device, long=_LONG)
            entry[name] = taken.median / count
        one = batch.select(slice(0, 1)).to("cpu")
        taken = timed(partial(solve, one, "auto"), long=_LONG)
        entry["auto, one model"] = taken.median
        if toulbar2_limit > 0 and not gave_up:
            try:
                found = solve(one, "toulbar2", time_limit=toulbar2_limit)
            except ImportError:
                toulbar2_limit = 0.0
            else:
                entry["toulbar2, one model"] = found.seconds
                entry["toulbar2_status"] = found.status[0]
                entry["toulbar2_short_by"] = float(taken.result.score[0] - found.score[0])
                gave_up = found.status[0] != "optimal" and len({x.length for x in families}) > 1
        rows.append(entry)
    return rows


def feasible_states(window: int, at_most: int) -> int:
    """How many states of the last ``window - 1`` variables an elimination step goes through."""
    return sum(math.comb(window - 1, ones) for ones in range(min(at_most, window - 1) + 1))


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The p of time ~ size^p, by least squares in logarithms."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(seconds).double().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def print_growth(size: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of milliseconds a model, and the exponents under it; ``size`` is length or window."""
    methods = [m for m in _METHODS if m in rows[0]]
    cells: list[list[object]] = []
    for entry in rows:
        line: list[object] = [entry[size], entry["feasible_states"]]
        for method in methods:
            told = number(1000 * entry[method]) if method in entry else None
            unproved = method.startswith("toulbar2") and entry.get("toulbar2_status") != "optimal"
            line.append(f"> {told}" if unproved and told is not None else told)
        cells.append(line)
    sizes = {"size": [float(entry[size]) for entry in rows]}
    if size == "window":
        sizes["states"] = [float(entry["feasible_states"]) for entry in rows]
    for name, values in sizes.items():
        powers: list[object] = [f"time ~ {name}^p, p =", ""]
        for method in methods:
            whole = all(method in entry for entry in rows) and not method.startswith("toulbar2")
            powers.append(f"{growth_exponent(values, [entry[method] for entry in rows]):.2f}" if whole else None)
        cells.append(powers)
    show(f"Growth with the {size} (ms a model)", (size, "feasible states", *methods), cells)


def draw_growth(tables: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> list[Path]:
    """The two tables as one picture, beside the JSON as PNG and SVG; nothing where matplotlib is absent."""
    from fgnn.errors import MissingExtra, need
    from fgnn.report.charts import COLOURS

    try:
        need("matplotlib")
    except MissingExtra:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, size) in zip(figure.subplots(1, 2), (("lengths", "length"), ("windows", "window")), strict=True):
        for colour, method in zip(COLOURS, _METHODS, strict=False):
            points = [(entry[size], 1000 * entry[method], entry) for entry in tables[name] if method in entry]
            if not points:
                continue
            x, y = [p[0] for p in points], [p[1] for p in points]
            axes.plot(x, y, marker="o", ms=3.5, color=colour, label=method)
            if method.startswith("toulbar2"):
                late = [p[:2] for p in points if p[2].get("toulbar2_status") != "optimal"]
                axes.plot([p[0] for p in late], [p[1] for p in late], "^", ms=8, color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([entry[size] for entry in tables[name]], [str(entry[size]) for entry in tables[name]])
        axes.minorticks_off()
        axes.set_xlabel(size if size == "length" else "window (length 100)")
        axes.set_ylabel("ms a model (triangle: not proved)")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(_METHODS), fontsize=8)
    files = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    for one in files:
        figure.savefig(one, dpi=120)
    return files
