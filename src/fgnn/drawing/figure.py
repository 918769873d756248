"""A scene as a matplotlib figure, for PNG and PDF."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from fgnn.drawing.scene import RADIUS, Circle, Scene
from fgnn.errors import need

_DPI, _MOST_INCHES = 130, 40.0
_INK, _EDGE = "#1c2024", "#9aa0a8"


def to_image(scene: Scene, kind: str) -> bytes:
    """The file's content in a format of matplotlib's; equal scenes give equal files."""
    figures, patches, collections = (need(f"matplotlib.{name}") for name in ("figure", "patches", "collections"))
    inches = min(1.0 / 96.0, _MOST_INCHES / max(scene.width, scene.height))  # per pixel
    point = 72.0 * inches
    figure = figures.Figure(figsize=(scene.width * inches, scene.height * inches), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.set_axis_off()
    style = {"ha": "center", "va": "center_baseline", "zorder": 4, "parse_math": False}
    ends = [((a, b), (c, d)) for a, b, c, d in scene.lines]
    axes.add_collection(collections.LineCollection(ends, colors=_EDGE, linewidths=point, zorder=1))
    for square in scene.squares:
        (w, h), x, y = square.half, square.x, square.y
        axes.add_patch(patches.Rectangle((x - w, y - h), 2 * w, 2 * h, color=square.colour, linewidth=0, zorder=2))
        axes.text(x, y, square.text, fontsize=10 * point, color=_INK, **style)
    for circle in scene.circles:
        _draw_circle(axes, patches, circle, point)
        axes.text(circle.x, circle.y, circle.text, fontsize=11 * point, color=circle.ink or _INK, **style)
    for entry in scene.legend:
        centre = (entry.x + 6, entry.y)
        if entry.round:
            mark = patches.Circle(centre, 5, facecolor=entry.colour, edgecolor=_INK, linewidth=point)
        else:
            mark = patches.Rectangle((entry.x + 1, entry.y - 5), 10, 10, facecolor=entry.colour)
        axes.add_patch(mark)
        axes.text(entry.x + 16, entry.y, entry.text, fontsize=11 * point, color=_INK, **style | {"ha": "left"})
    axes.text(scene.width / 2, 16, scene.title, fontsize=13 * point, color=_INK, **style)
    file = BytesIO()
    dates = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    figure.savefig(file, format=kind, metadata=dates.get(kind), facecolor="white")
    return file.getvalue()


def _draw_circle(axes: Any, patches: Any, circle: Circle, point: float) -> None:
    start = 0.0
    add, centre = axes.add_patch, (circle.x, circle.y)
    for share, colour in circle.wedges:
        # angles run from the right; the axis of y points down, so they turn clockwise
        first, last = 360.0 * start - 90.0, 360.0 * (start + share) - 90.0
        add(patches.Wedge(centre, RADIUS, first, last, facecolor=colour, linewidth=0, zorder=2))
        start += share
    rim = {"fill": not circle.wedges, "facecolor": "white", "edgecolor": _INK, "linewidth": point, "zorder": 3}
    add(patches.Circle(centre, RADIUS, **rim))
