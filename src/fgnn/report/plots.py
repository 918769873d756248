"""Curves as PNG bytes, for pages and papers that take no SVG; None where matplotlib is absent."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from fgnn.errors import MissingExtra, need
from fgnn.report.charts import COLOURS


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = False,
    markers: bool = True,
) -> bytes | None:
    """Curves through (x, y) points."""
    made = _figure(width=7.0)
    if made is None:
        return None
    figure, axes = made
    for n, (name, points) in enumerate(series.items()):
        marker = "o" if markers else ""
        axes.plot(*zip(*points, strict=True), marker=marker, ms=3.5, label=name, color=COLOURS[n % len(COLOURS)])
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log_x:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _png(figure)


def _figure(width: float) -> tuple[Any, Any] | None:
    try:
        need("matplotlib")
    except MissingExtra:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(width, 14.0), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()
