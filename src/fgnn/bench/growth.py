"""Growth of each solver's time with the length of a chain and the width of its windows."""

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
from fgnn.runtime.progress import Log

LENGTHS = (30, 100, 300, 1000, 3000)
WINDOWS = (8, 12, 16, 20)
# Every length has about the same total number of variables, and max-product a fixed number of iterations.
_VARIABLES = {"cpu": 30_000, "cuda": 1_000_000}
_SWEEPS = 50
# Joint states over all models that elimination may visit in one call, so wide windows use few models.
_STATES = {"cpu": 20_000_000, "cuda": 2_000_000_000}
_LONG = 3.0  # seconds; longer calls are not repeated
_METHODS = ("exact", "max-product", "ad3", "auto, one model", "toulbar2, one model")


def growth_stages(lengths: Sequence[int] = LENGTHS, windows: Sequence[int] = WINDOWS) -> int:
    """How many families `growth` measures."""
    return len({(n, 8) for n in lengths} | {(100, w) for w in windows})


def growth(
    device: str,
    seed: int,
    toulbar2_limit: float,
    lengths: Sequence[int] = LENGTHS,
    windows: Sequence[int] = WINDOWS,
    log: Log = lambda text: None,
) -> dict[str, list[dict[str, Any]]]:
    """Both tables; see `table`."""
    by_length = table([ChainMAP(2, length=n) for n in lengths], device, seed, toulbar2_limit, log)
    measured = {(row["length"], row["window"]): row for row in by_length}
    by_window = [
        measured.get((100, w)) or table([ChainMAP(2, length=100, window=w)], device, seed, toulbar2_limit, log)[0]
        for w in windows
    ]
    return {"lengths": by_length, "windows": by_window}


def table(
    families: Sequence[ChainMAP], device: str, seed: int, toulbar2_limit: float, log: Log = lambda text: None
) -> list[dict[str, Any]]:
    """Seconds per model of each family: in batches, and for `auto` and toulbar2 on a single model.

    toulbar2 gets ``toulbar2_limit`` seconds (0: it is skipped). Once it cannot prove a chain within the limit, it
    skips longer ones.
    """
    kind = torch.device(device).type
    rows: list[dict[str, Any]] = []
    gave_up = False
    for data in families:
        log(f"chains of {data.length:,}, windows of {data.window}")
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
            call = partial(solve, batch.select(slice(0, count)), name, **options)
            entry[name] = timed(call, device=device, long=_LONG).median / count
        one = batch.select(slice(0, 1)).to("cpu")
        timing = timed(partial(solve, one, "auto"), long=_LONG)
        entry["auto, one model"] = timing.median
        if toulbar2_limit > 0 and not gave_up:
            try:
                proof = solve(one, "toulbar2", time_limit=toulbar2_limit)
            except ImportError:
                toulbar2_limit = 0.0
            else:
                entry["toulbar2, one model"] = proof.seconds
                entry["toulbar2_status"] = proof.status[0]
                entry["toulbar2_short_by"] = float(timing.result.score[0] - proof.score[0])
                gave_up = proof.status[0] != "optimal" and len({x.length for x in families}) > 1
        rows.append(entry)
    return rows


def feasible_states(window: int, at_most: int) -> int:
    """The number of states of the last ``window - 1`` variables that an elimination step visits."""
    return sum(math.comb(window - 1, ones) for ones in range(min(at_most, window - 1) + 1))


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of time ~ size^p, by least squares in logarithms."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(seconds).double().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def print_growth(size: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print milliseconds per model, with the exponents below; ``size`` is length or window."""
    methods = [m for m in _METHODS if m in rows[0]]
    cells: list[list[object]] = []
    for entry in rows:
        line: list[object] = [entry[size], entry["feasible_states"]]
        for method in methods:
            time = number(1000 * entry[method]) if method in entry else None
            unproved = method.startswith("toulbar2") and entry.get("toulbar2_status") != "optimal"
            line.append(f"> {time}" if unproved and time is not None else time)
        cells.append(line)
    sizes = {"size": [float(entry[size]) for entry in rows]}
    if size == "window":
        sizes["states"] = [float(entry["feasible_states"]) for entry in rows]
    for name, values in sizes.items():
        powers: list[object] = [f"time ~ {name}^p, p =", ""]
        for method in methods:
            complete = all(method in entry for entry in rows) and not method.startswith("toulbar2")
            powers.append(f"{growth_exponent(values, [entry[method] for entry in rows]):.2f}" if complete else None)
        cells.append(powers)
    show(f"Growth with the {size} (ms per model)", (size, "feasible states", *methods), cells)


def draw_growth(tables: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> list[Path]:
    """Draw both tables as one PNG and SVG next to the JSON; nothing without matplotlib."""
    from fgnn.errors import MissingExtra, need
    from fgnn.report.charts import COLOURS

    try:
        figure = need("matplotlib.figure").Figure(figsize=(11.0, 4.2), layout="constrained")
    except MissingExtra:
        return []
    for axes, (name, size) in zip(figure.subplots(1, 2), (("lengths", "length"), ("windows", "window")), strict=True):
        for colour, method in zip(COLOURS, _METHODS, strict=False):
            points = [(entry[size], 1000 * entry[method], entry) for entry in tables[name] if method in entry]
            if not points:
                continue
            x, y = [p[0] for p in points], [p[1] for p in points]
            axes.plot(x, y, marker="o", ms=3.5, color=colour, label=method)
            if method.startswith("toulbar2"):
                unproved = [p[:2] for p in points if p[2].get("toulbar2_status") != "optimal"]
                axes.plot([p[0] for p in unproved], [p[1] for p in unproved], "^", ms=8, color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([entry[size] for entry in tables[name]], [str(entry[size]) for entry in tables[name]])
        axes.minorticks_off()
        axes.set_xlabel(size if size == "length" else "window (length 100)")
        axes.set_ylabel("ms per model (triangle: not proved)")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(_METHODS), fontsize=8)
    files = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    for picture in files:
        figure.savefig(picture, dpi=120)
    return files
