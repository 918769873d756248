"""Plots of results as PNG bytes; None where matplotlib is absent, since no result depends on a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from fgnn.errors import MissingExtra, need

_COLOURS = (
    "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5",
    "#8c5a3c", "#777777", "#d36a8f", "#1d2f6f", "#8fbf6f", "#3a3a3a",
)  # fmt: skip


def bars(
    groups: Sequence[str], series: Mapping[str, Sequence[float | None]], ylabel: str, bottom: float = 0.0
) -> bytes | None:
    """Grouped bars: one group per name, one bar per series; None in a series leaves its place empty."""
    made = _figure(width=max(7.0, 0.9 * len(groups) * len(series)))
    if made is None:
        return None
    figure, axes = made
    wide = 0.8 / max(1, len(series))
    for n, (name, values) in enumerate(series.items()):
        known = [(g + (n + 0.5) * wide - 0.4, v) for g, v in enumerate(values) if v is not None]
        if known:
            xs, heights = zip(*known, strict=True)
            drawn = axes.bar(xs, [h - bottom for h in heights], wide * 0.92, bottom=bottom, label=name,
                             color=_COLOURS[n % len(_COLOURS)])  # fmt: skip
            axes.bar_label(drawn, [f"{h:.1f}" for h in heights], fontsize=7)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8, ncols=min(4, max(1, len(series))), loc="upper center", bbox_to_anchor=(0.5, -0.08))
    return _png(figure)


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
        axes.plot(*zip(*points, strict=True), marker=marker, ms=3.5, label=name, color=_COLOURS[n % len(_COLOURS)])
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
