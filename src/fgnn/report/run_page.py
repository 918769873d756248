"""The page of a training run: curves, final metrics, and how to reproduce it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fgnn.report.charts import lines
from fgnn.report.html import Page, add_provenance
from fgnn.report.records import number
from fgnn.report.tables import Table

# What every run logs; other keys are metrics of its task, of held-out instances where they begin with "validation_".
_ALWAYS = ("step", "loss", "rate", "per_second", "seconds")
_HELD_OUT = "validation_"
_FILES = {
    "config.yaml": "the recipe with every setting",
    "environment.json": "the machine, the versions and the command",
    "metrics.jsonl": "every logged step",
    "curves.png": "the curves as an image",
    "checkpoint.safetensors": "the state of the run; fgnn train FOLDER --resume continues it",
    "best.safetensors": "weights with the best held-out result",
    "last.safetensors": "weights after the last step",
}


def make_run_page(
    name: str,
    config: str,
    environment: dict[str, Any],
    logged: list[dict[str, Any]],
    folder: Path | None = None,
    seed: int = 0,
) -> Page:
    """The page of a run, from its recipe as YAML, its environment and its logged metrics."""
    page = Page(f"Training run: {name}")
    if logged:
        last = logged[-1]
        page.text(
            f"{last['step']:,} steps in {last['seconds']:,.0f} s on {environment.get('device', 'an unknown device')}."
        )
        page.table(_final_metrics(logged))
    _draw(page, logged, "Loss", ("loss", f"{_HELD_OUT}loss"), "cross-entropy", True)
    shared = task_metrics(logged)
    for name in shared:
        _draw(page, logged, name.capitalize(), (name, f"{_HELD_OUT}{name}"), name, False)
    drawn = {f"{_HELD_OUT}{name}" for name in ("loss", *shared)}
    others = tuple(dict.fromkeys(k for line in logged for k in line if k.startswith(_HELD_OUT) and k not in drawn))
    _draw(page, logged, "Held-out metrics", others, "value", False)
    _draw(page, logged, "Learning rate", ("rate",), "rate", False)
    _draw(page, logged, "Throughput", ("per_second",), "instances per second", False)
    page.heading("Recipe")
    page.code(config)
    if folder is not None:
        rows = [(name, content) for name, content in _FILES.items() if (folder / name).is_file()]
        page.table(Table(("file", "content"), rows, "Files of this run"))
    add_provenance(page, command=str(environment.get("command", "")), seeds={"recipe": seed}, environment=environment)
    return page


def task_metrics(logged: list[dict[str, Any]]) -> list[str]:
    """Return the metrics that a task logs in training; held-out values of the same name share their axis."""
    keys = dict.fromkeys(key for line in logged for key in line)
    return [key for key in keys if key not in _ALWAYS and not key.startswith(_HELD_OUT)]


def _final_metrics(logged: list[dict[str, Any]]) -> Table:
    """The last and the best value of each held-out metric."""
    validated = [line for line in logged if any(k.startswith(_HELD_OUT) for k in line)] or logged[-1:]
    keys = [k for k in validated[-1] if k.startswith(_HELD_OUT)] or ["loss", *task_metrics(logged[-1:])]
    rows = []
    for key in keys:
        values = [line[key] for line in validated if key in line]
        best = min(values) if key.endswith("loss") else max(values)
        rows.append([key.removeprefix(_HELD_OUT), number(values[-1]), number(best)])
    held_out = keys[0].startswith(_HELD_OUT)
    return Table(["", "final", "best"], rows, "Held-out instances" if held_out else "Training instances")


def _draw(
    page: Page, logged: list[dict[str, Any]], caption: str, keys: tuple[str, ...], ylabel: str, log: bool
) -> None:
    series = {
        key.replace("_", " "): [(float(line["step"]), float(line[key])) for line in logged if line.get(key) is not None]
        for key in keys
    }
    series = {name: points for name, points in series.items() if points}
    if series:
        page.picture(lines(series, "step", ylabel, log_y=log, markers=len(logged) < 30), caption)
