"""A training run as one page: how it went, how it ended, and how to do it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fgnn.report.charts import lines
from fgnn.report.html import Page
from fgnn.report.provenance import add_provenance
from fgnn.report.records import number
from fgnn.report.tables import Table

# What curves are called, and which of them share a picture.
_PICTURES = (
    ("Loss", ("loss", "validation_loss"), "cross-entropy", True),
    ("Agreement with the labels", ("agreement", "validation_agreement"), "agreement", False),
    ("Learning rate", ("rate",), "rate", False),
    ("Pace", ("per_second",), "instances a second", False),
)
_FILES = {
    "config.yaml": "the recipe with every setting",
    "environment.json": "where and how the run was started",
    "metrics.jsonl": "every logged step",
    "curves.png": "the curves as a picture",
    "checkpoint.safetensors": "where the run stands; fgnn train FOLDER --resume goes on",
    "best.safetensors": "weights with the best held-out result",
    "last.safetensors": "weights after the last step",
}


def write_run_page(folder: str | Path) -> Path:
    """Write ``report.html`` into a run's folder from the files that lie in it."""
    place = Path(folder)
    config = (place / "config.yaml").read_text(encoding="utf-8")
    environment = json.loads((place / "environment.json").read_text(encoding="utf-8"))
    logged = [json.loads(line) for line in (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return make_run_page(place.name, config, environment, logged, place).write(place / "report.html")


def make_run_page(
    name: str, config: str, environment: dict[str, Any], logged: list[dict[str, Any]], folder: Path | None = None
) -> Page:
    """The page of a run: its recipe as YAML, its environment, and the lines of its metrics."""
    import yaml

    settings = yaml.safe_load(config)
    page = Page(f"Training run: {name}")
    if logged:
        last = logged[-1]
        page.text(
            f"{last['step']:,} steps in {last['seconds']:,.0f} s on {environment.get('device', 'an unknown device')}."
        )
        page.table(_ending(logged))
    shown: set[str] = {"step", "seconds"}
    for caption, keys, ylabel, log in _PICTURES:
        shown |= set(keys)
        _draw(page, logged, caption, keys, ylabel, log)
    others = tuple(dict.fromkeys(k for line in logged for k in line if k.startswith("validation_") and k not in shown))
    _draw(page, logged, "Held-out metrics", others, "value", False)
    page.heading("Recipe")
    page.code(config)
    if folder is not None:
        rows = [(n, told) for n, told in _FILES.items() if (folder / n).is_file()]
        page.table(Table(("file", "what it holds"), rows, "Beside this page"))
    seed = settings.get("seed", 0) if isinstance(settings, dict) else 0
    add_provenance(page, command=environment.get("command", ""), seeds={"recipe": seed}, environment=environment)
    return page


def _ending(logged: list[dict[str, Any]]) -> Table:
    """The last held-out metrics beside the best of each."""
    validated = [line for line in logged if any(k.startswith("validation_") for k in line)] or logged[-1:]
    keys = [k for k in validated[-1] if k.startswith("validation_")] or ["loss", "agreement"]
    rows = []
    for key in keys:
        values = [line[key] for line in validated if key in line]
        best = min(values) if key.endswith("loss") else max(values)
        rows.append([key.removeprefix("validation_"), number(values[-1]), number(best)])
    held_out = keys[0].startswith("validation_")
    return Table(["", "at the end", "best"], rows, "Held-out instances" if held_out else "Training instances")


def _draw(
    page: Page, logged: list[dict[str, Any]], caption: str, keys: tuple[str, ...], ylabel: str, log: bool
) -> None:
    series = {
        key.replace("_", " "): [(float(line["step"]), float(line[key])) for line in logged if line.get(key) is not None]
        for key in keys
    }
    kept = {name: points for name, points in series.items() if points}
    if kept:
        page.picture(lines(kept, "step", ylabel, log_y=log, markers=len(logged) < 30), caption)
