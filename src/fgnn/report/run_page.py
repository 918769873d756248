"""The page of a training run: curves, final metrics, and how to reproduce it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fgnn.report.charts import lines
from fgnn.report.curves import HELD_OUT, Curves, curves_of, metric_label, task_metrics
from fgnn.report.html import Page, add_provenance
from fgnn.report.records import number
from fgnn.report.tables import Table

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
    for curves in curves_of(logged):
        _draw(page, logged, curves, log=curves.label == "loss")
    _draw(page, logged, Curves("learning rate", {"rate": "rate"}))
    _draw(page, logged, Curves("instances per second", {"throughput": "per_second"}))
    page.heading("Recipe")
    page.code(config)
    if folder is not None:
        rows = [(name, content) for name, content in _FILES.items() if (folder / name).is_file()]
        page.table(Table(("file", "content"), rows, "Files of this run"))
    add_provenance(page, command=str(environment.get("command", "")), seeds={"recipe": seed}, environment=environment)
    return page


def _final_metrics(logged: list[dict[str, Any]]) -> Table:
    """The last and the best value of each held-out metric."""
    validated = [line for line in logged if any(k.startswith(HELD_OUT) for k in line)] or logged[-1:]
    keys = [k for k in validated[-1] if k.startswith(HELD_OUT)] or ["loss", *task_metrics(logged[-1:])]
    rows = []
    for key in keys:
        values = [line[key] for line in validated if key in line]
        best = min(values) if key.endswith("loss") else max(values)
        rows.append([metric_label(key.removeprefix(HELD_OUT)), number(values[-1]), number(best)])
    held_out = keys[0].startswith(HELD_OUT)
    return Table(["", "final", "best"], rows, "Held-out instances" if held_out else "Training instances")


def _draw(page: Page, logged: list[dict[str, Any]], curves: Curves, *, log: bool = False) -> None:
    series = curves.points(logged)
    if series:
        label = "cross-entropy" if curves.label == "loss" else curves.label
        chart = lines(series, "step", label, log_y=log, markers=len(logged) < 30)
        page.picture(chart, curves.label[:1].upper() + curves.label[1:])
