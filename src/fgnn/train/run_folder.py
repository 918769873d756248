"""The folder of a run: settings, environment, metrics as JSON lines, curves, checkpoint and weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from fgnn.errors import InputError, MissingExtra, need
from fgnn.files import atomic_write
from fgnn.report.curves import curves_of
from fgnn.runtime.environment import environment
from fgnn.schema import Between, Number, convert, parse
from fgnn.tasks import TrainingSettings
from fgnn.tasks.settings import MOST_STEPS, recipe_yaml
from fgnn.train.run_lock import locked


@dataclass(frozen=True)
class _Step:
    step: Annotated[int, Between(0, MOST_STEPS)]


class RunFolder:
    """The files of one run: ``config.yaml``, ``environment.json``, ``data.json``, ``metrics.jsonl``, ``curves.png``,
    ``checkpoint.safetensors``, ``best.safetensors``, ``last.safetensors`` and ``report.html``.

    A folder may come from anyone: what is read from it is checked, and errors name the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.data = self.path / "data.json"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self._held = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainings out of the folder; calls of one object may be nested."""
        if self._held:
            yield
            return
        with locked(self.path):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def check_new(self) -> None:
        """Refuse a folder that already holds a run."""
        if self.config.exists():
            raise InputError("this folder already holds a run; use --resume, or another --out", file=self.path)

    def begin(
        self, settings: TrainingSettings, device: torch.device | str = "cpu", data: Mapping[str, str] | None = None
    ) -> None:
        """Create the folder of a new run; refuse one that already holds a run. ``data`` are the digests of its data."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.environment) as file:
            json.dump(environment(device), file, indent=1)
        self.describe(settings, data or {})

    def describe(self, settings: TrainingSettings, data: Mapping[str, str]) -> None:
        """Write the settings and the digests of the data."""
        if data:
            with atomic_write(self.data) as file:
                json.dump(data, file, indent=1)
        with atomic_write(self.config) as file:
            file.write(recipe_yaml(settings))

    def discard(self) -> None:
        """Remove what `begin` wrote, after a start that failed before its first line of metrics."""
        for file in (self.config, self.environment, self.data):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)

    def data_digests(self) -> dict[str, str] | None:
        """Return the digests of the data that the run began with; None if it recorded none."""
        if not self.data.is_file():
            return None
        digests: dict[str, str] = convert(dict[str, str], _json(self.data), self.data, "")
        return digests

    def environment_values(self) -> dict[str, Any]:
        """Return the environment that the run began in."""
        if not self.environment.is_file():
            return {}
        values: dict[str, Any] = convert(dict[str, Any], _json(self.environment), self.environment, "")
        return values

    def log(self, line: dict[str, Any]) -> None:
        """Append one line of metrics."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Return the metrics so far, without a last line cut short by a kill."""
        if not self.metrics.is_file():
            return []
        texts = self.metrics.read_bytes().split(b"\n")
        lines = []
        for number, text in enumerate(texts, start=1):
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                if number >= len(texts) - 1:
                    break
                raise InputError("Expected metrics as JSON", file=self.metrics, place=f"line {number}") from error
            line: dict[str, Any] = convert(dict[str, Number], values, self.metrics, f"line {number}")
            parse(_Step, {"step": line.get("step")}, file=self.metrics, place=f"line {number}")
            lines.append(line)
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

        lines = self.lines()
        drawn = [curves for curves in curves_of(lines) if curves.small and curves.points(lines)]
        figure = Figure(figsize=(4.5 * max(1, len(drawn)), 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        for n, curves in enumerate(drawn, start=1):
            axes = figure.add_subplot(1, len(drawn), n)
            for name, points in curves.points(lines).items():
                axes.plot(*zip(*points, strict=True), label=name, marker="" if name == "training" else ".")
            axes.set_xlabel("step")
            axes.set_ylabel("cross-entropy" if curves.label == "loss" else curves.label)
            axes.legend()
            if curves.label == "loss" and min(y for points in curves.points(lines).values() for _, y in points) > 0:
                axes.set_yscale("log")
        target = self.path / "curves.png"
        with atomic_write(target, "wb") as file:
            figure.savefig(file, format="png", dpi=110)
        return target


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError("Expected JSON (got something else)", file=file) from error
