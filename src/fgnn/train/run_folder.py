"""A run's folder: settings, environment, metrics as JSON lines, curves, checkpoint and weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from fgnn.errors import InputError, MissingExtra, need
from fgnn.files import atomic_write
from fgnn.runtime.environment import environment
from fgnn.tasks.recipe import Recipe, read_recipe, recipe_yaml


class RunFolder:
    """The files of one run: ``config.yaml``, ``environment.json``, ``metrics.jsonl``, ``curves.png``,
    ``checkpoint.safetensors``, ``best.safetensors``, ``last.safetensors`` and ``report.html``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def check_new(self) -> None:
        """Refuse a folder that already holds a run."""
        if self.config.exists():
            raise InputError("this folder already holds a run; use --resume, or another --out", file=self.path)

    def begin(self, recipe: Recipe, device: torch.device) -> None:
        """Make the folder for a new run; one that already holds a run is not written over."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path / "environment.json") as file:
            json.dump(environment(device), file, indent=1)
        with atomic_write(self.config) as file:
            file.write(recipe_yaml(recipe))

    def recipe(self) -> Recipe:
        """The settings the run was begun with."""
        if not self.config.is_file():
            raise InputError(
                "no run to resume in this folder (config.yaml is missing); begin one without --resume", file=self.path
            )
        return read_recipe(self.config)

    def log(self, line: dict[str, Any]) -> None:
        """Append one line of metrics, and hand it to the system at once."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """The metrics so far; a last line cut short by a kill is left out."""
        if not self.metrics.is_file():
            return []
        kept = []
        for text in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                kept.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return kept

    def rewind(self, step: int) -> None:
        """Drop the metrics after ``step``, which a resumed run writes again, and files a kill left unfinished."""
        for part in self.path.glob(".*.part"):  # what a kill in the middle of a write left behind
            part.unlink()
        kept = [line for line in self.lines() if line["step"] <= step]
        with atomic_write(self.metrics) as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)

    def draw(self) -> Path | None:
        """Draw the curves as a PNG; None where matplotlib is absent or there is nothing to draw."""
        lines = self.lines()
        try:
            need("matplotlib")
        except MissingExtra:
            return None
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for axes, keys in ((left, ("loss", "validation_loss")), (right, ("agreement", "validation_agreement"))):
            for key in keys:
                points = [(line["step"], line[key]) for line in lines if key in line and math.isfinite(line[key])]
                if points:
                    axes.plot(*zip(*points, strict=True), label=key.replace("_", " "), marker="." if "_" in key else "")
            axes.set_xlabel("step")
            if axes.lines:
                axes.legend()
        left.set_ylabel("cross-entropy")
        if left.lines and min(min(line.get_ydata()) for line in left.lines) > 0:
            left.set_yscale("log")
        right.set_ylabel("agreement with MAP")
        target = self.path / "curves.png"
        with atomic_write(target, "wb") as file:
            figure.savefig(file, format="png", dpi=110)
        return target
