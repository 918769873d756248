"""The page of `fgnn bench anytime`: a chart of score against time for each instance, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fgnn.report.charts import lines
from fgnn.report.html import Page, add_provenance
from fgnn.report.records import number, records
from fgnn.report.tables import Table

_FIRST = 0.01  # seconds at the left end of the logarithmic axis
_SHOWN = 3.0  # lowest score shown, in ranges of final scores below the best


def make_anytime_page(result: Mapping[str, Any]) -> Page:
    """The page of a result."""
    environment, summary = dict(result["environment"]), result["summary"]
    page = Page("Benchmark: anytime")
    page.text(str(result["protocol"]))
    page.heading("Wins")
    page.table(records(summary["wins"]).titled("Our methods against the best peer"))
    page.heading("Mean gap")
    page.table(records(summary["gap_area"]).titled("Mean gap over the time of the longest run, %"))
    page.heading("Scores")
    methods = list(dict.fromkeys(m for row in summary["scores"].values() for m in row))
    page.table(Table(["", *methods], [_row(name, row, methods) for name, row in summary["scores"].items()], ""))
    page.heading("Curves")
    for instance, curves in _curves(result["runs"]).items():
        page.picture(
            lines(score_steps(curves), "seconds", "score", log_x=True, markers=False), f"{instance}: score against time"
        )
    page.heading("Time limits")
    page.table(records(summary["overruns"]).titled("Seconds over the limit"))
    errors = [(key, str(run["error"])) for key, run in result["runs"].items() if "error" in run]
    if errors:
        page.table(Table(("run", "no answer because"), errors, ""))
    command = str(environment.get("command", "fgnn bench anytime"))
    add_provenance(page, command=command, seeds={"methods": result["seed"]}, environment=environment)
    return page


def score_steps(curves: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Curves as steps, without the low scores of the first moments, which would flatten everything else."""
    final = [points[-1][1] for points in curves.values() if points]
    if not final:
        return {}
    best, low = max(final), min(final)
    least = best - _SHOWN * ((best - low) or max(1.0, 0.01 * abs(best)))
    end = max(points[-1][0] for points in curves.values() if points)
    steps: dict[str, list[tuple[float, float]]] = {}
    for name, points in curves.items():
        shown = [(max(_FIRST, t), s) for t, s in points if s >= least]
        if shown:
            corners = [p for (_, s), (t, s2) in pairwise(shown) for p in ((t, s), (t, s2))]
            steps[name] = [shown[0], *corners, (max(end, _FIRST), shown[-1][1])]
    return steps


def _curves(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By instance and method, the best score so far over time, from all runs."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in runs.values():
        for seconds, score, _ in run.get("curve", []):
            if score is not None:
                points.setdefault(run["instance"], {}).setdefault(run["method"], []).append((seconds, score))
    for curves in points.values():
        for method, found in curves.items():
            best: list[tuple[float, float]] = []
            for t, s in sorted(found):
                if not best or s > best[-1][1]:
                    best.append((t, s))
            curves[method] = best
    return points


def _row(name: str, row: Mapping[str, float | None], methods: Sequence[str]) -> list[str]:
    best = max((s for s in row.values() if s is not None), default=None)
    cells = []
    for m in methods:
        score = row.get(m)
        mark = " *" if score is not None and best is not None and best - score <= 1e-6 * max(1.0, abs(best)) else ""
        cells.append(("–" if score is None else f"{score:,.4f}" if abs(score) < 1e5 else number(score)) + mark)
    return [name, *cells]
