"""The curve of one solve: score and bound against time, as a page, an SVG or a PNG file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

from fgnn.errors import InputError, need
from fgnn.files import atomic_write
from fgnn.infer.solution import Progress, Solution
from fgnn.report.charts import COLOURS, lines, standalone
from fgnn.report.html import Page, add_provenance
from fgnn.runtime.environment import environment


@dataclass(eq=False)
class SolveCurve:
    """The best score and the lowest bound so far, from the progress of a solve and its solution."""

    started: float = field(default_factory=time.perf_counter)
    score: float = -inf
    bound: float = inf
    points: list[tuple[float, float, float]] = field(default_factory=list)  # seconds, score, bound

    def progress(self, update: Progress) -> None:
        """Take an update."""
        self._point(time.perf_counter() - self.started, update.score, update.bound)

    def end(self, solution: Solution) -> None:
        """Take the solution."""
        self._point(solution.seconds, solution.score, solution.bound)

    @property
    def gap(self) -> float:
        """What an assignment can gain at most; infinite without a score or a bound."""
        return max(0.0, self.bound - self.score)

    def _point(self, seconds: float, score: float, bound: float) -> None:
        self.score, self.bound = max(self.score, score), min(self.bound, bound)
        self.points.append((seconds, self.score, self.bound))

    def steps(self) -> dict[str, list[tuple[float, float]]]:
        """Both curves as corners of steps: a value holds until the next improvement."""
        curves: dict[str, list[tuple[float, float]]] = {"score": [], "bound": []}
        for seconds, *values in self.points:
            for corners, value in zip(curves.values(), values, strict=True):
                if isfinite(value):
                    corners += [(seconds, corners[-1][1])] if corners else []
                    corners.append((seconds, value))
        return {name: corners for name, corners in curves.items() if corners}


def check_curve_file(path: Path) -> None:
    """Refuse a file that `write_curve` could not write, before the solve."""
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"Expected --plot with a suffix among {', '.join(_WRITERS)} (got {path.suffix!r})", file=path)
    if not path.parent.is_dir():
        raise InputError("Expected --plot in a folder that exists (got none)", file=path)
    if path.suffix.lower() == ".png":
        need("matplotlib")


def write_curve(curve: SolveCurve, solution: Solution, model: str, path: Path) -> None:
    """Write the curve of a solve; the suffix chooses the kind of file."""
    _WRITERS[path.suffix.lower()](curve, solution, model, path)


def _page(curve: SolveCurve, solution: Solution, model: str, path: Path) -> None:
    page = Page(f"Solve: {model}")
    page.picture(_chart(curve), f"score and bound of {model} against time")
    page.values("", _facts(solution))
    head = environment()
    add_provenance(page, command=str(head["command"]), seeds={}, environment=head)
    page.write(path)


def _facts(solution: Solution) -> Mapping[str, Any]:
    names = ("status", "score", "bound", "gap", "method", "seconds")
    return {name: getattr(solution, name) for name in names}


def _chart(curve: SolveCurve) -> str:
    return lines(curve.steps(), "seconds", "score", markers=False)


def _svg(curve: SolveCurve, solution: Solution, model: str, path: Path) -> None:
    with atomic_write(path) as file:
        file.write(standalone(_chart(curve)))


def _png(curve: SolveCurve, solution: Solution, model: str, path: Path) -> None:
    figure = need("matplotlib.figure").Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for colour, (name, corners) in zip(COLOURS, curve.steps().items(), strict=False):
        axes.plot([t for t, _ in corners], [v for _, v in corners], color=colour, label=name)
    axes.set(xlabel="seconds", ylabel="score", title=f"{model}: {solution.status}")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    with atomic_write(path, "wb") as file:
        figure.savefig(file, dpi=120, format="png")


_WRITERS: dict[str, Callable[[SolveCurve, Solution, str, Path], None]] = {
    ".png": _png,
    ".svg": _svg,
    ".html": _page,
}
