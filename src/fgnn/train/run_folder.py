"""The folder of a run: settings, environment, metrics as JSON lines, curves, checkpoint and weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from fgnn.errors import InputError, MissingExtra, need
from fgnn.files import atomic_write
from fgnn.report.run_page import task_metrics
from fgnn.runtime.environment import environment
from fgnn.tasks import TrainingSettings
from fgnn.tasks.settings import recipe_yaml


class RunFolder:
    """The files of one run: ``config.yaml``, ``environment.json``, ``metrics.jsonl``, ``curves.png``,
    ``checkpoint.safetensors``, ``best.safetensors``, ``last.safetensors`` and ``report.html``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.metrics = self.path / "metrics.jsonl"

    def check_new(self) -> None:
        """Refuse a folder that already holds a run."""
        if self.config.exists():
            raise InputError("this folder already holds a run; use --resume, or another --out", file=self.path)

    def begin(self, settings: TrainingSettings, device: torch.device | str = "cpu") -> None:
        """Create the folder of a new run; refuse one that already holds a run."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path / "environment.json") as file:
            json.dump(environment(device), file, indent=1)
        with atomic_write(self.config) as file:
            file.write(recipe_yaml(settings))

    def log(self, line: dict[str, Any]) -> None:
        """Append one line of metrics."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Return the metrics so far, without a last line cut short by a kill."""
        if not self.metrics.is_file():
            return []
        lines = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines

    def rewind(self, step: int) -> None:
        """Drop the metrics after ``step``, which a resumed run writes again, and unfinished files of a killed run."""
        for part in self.path.glob(".*.part"):
            part.unlink()
        lines = [line for line in self.lines() if line["step"] <= step]
        with atomic_write(self.metrics) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def draw(self) -> Path | None:
        """Draw the curves as a PNG; None if matplotlib is not installed."""
        try:
            need("matplotlib")
        except MissingExtra:
            return None
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        lines = self.lines()
        metrics = task_metrics(lines)
        for axes, names in ((left, ["loss"]), (right, metrics)):
            for key in (key for name in names for key in (name, f"validation_{name}")):
                points = [(line["step"], line[key]) for line in lines if key in line and math.isfinite(line[key])]
                if points:
                    axes.plot(*zip(*points, strict=True), label=key.replace("_", " "), marker="." if "_" in key else "")
            axes.set_xlabel("step")
            if axes.lines:
                axes.legend()
        left.set_ylabel("cross-entropy")
        if left.lines and min(min(line.get_ydata()) for line in left.lines) > 0:
            left.set_yscale("log")
        right.set_ylabel(", ".join(metrics))
        target = self.path / "curves.png"
        with atomic_write(target, "wb") as file:
            figure.savefig(file, format="png", dpi=110)
        return target
