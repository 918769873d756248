"""Pictures of max-product: the factor graph with messages and beliefs as bars, one panel per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from pathlib import Path
from typing import Any

from torch import Tensor

from fgnn.errors import need
from fgnn.files import atomic_write
from fgnn.theory.max_product import MaxProductNetwork

_BAR, _TALL = 0.08, 0.30  # width and full height of a bar; the graph's radius is 1
_MESSAGE, _BELIEF, _BEST = "#8a8f98", "#9ecae1", "#08519c"


def draw_messages(
    net: MaxProductNetwork,
    iterations: Sequence[int] | None = None,
    path: str | Path | None = None,
) -> Any:
    """One panel per iteration: variables as circles, factors as squares, and a message on each edge.

    Bars show the entries of a message or belief above its smallest finite one, on a common scale; a cross marks a
    forbidden entry. The best state of each belief is dark.

    Args:
        net: The network to run.
        iterations: The iterations to draw, counted from 1; all by default.
        path: Optional output file; its suffix gives the format (svg, png, pdf).

    Returns:
        The matplotlib figure.
    """
    figure_module = need("matplotlib.figure")
    shown = list(range(1, net.iterations + 1)) if iterations is None else list(iterations)
    if not shown or min(shown) < 1 or max(shown) > net.iterations:
        raise ValueError(f"Expected iterations between 1 and {net.iterations} (got {shown})")
    beliefs, messages = net.beliefs(), net.messages()
    count = net.model.num_variables
    places = [(cos(a), sin(a)) for a in (pi / 2 + 2 * pi * i / count for i in range(count))]
    centres = _factor_places(net.scopes, places)
    scale = max(_spread(m) for t in shown for m in (*messages[t - 1].values(), *beliefs[t - 1]))
    figure = figure_module.Figure(figsize=(3.4 * len(shown), 3.6), layout="constrained")
    for axes, t in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axes.set_title(f"iteration {t}", fontsize=10)
        axes.set_aspect("equal")
        axes.axis("off")
        axes.set_xlim(-1.65, 1.65)
        axes.set_ylim(-1.65, 1.65)
        for (c, i), message in messages[t - 1].items():
            (u, v), (x, y) = centres[c], places[i]
            axes.plot([u, x], [v, y], color="#9aa0a8", linewidth=1, zorder=1)
            _draw_bars(axes, (0.48 * u + 0.52 * x, 0.48 * v + 0.52 * y), message, scale)
        for c, (x, y) in enumerate(centres):
            axes.plot([x], [y], "s", color="white", markeredgecolor="black", markersize=13, zorder=3)
            axes.text(x, y, f"$f_{{{c + 1}}}$", ha="center", va="center", fontsize=8, zorder=4)
        for i, (x, y) in enumerate(places):
            axes.plot([x], [y], "o", color="white", markeredgecolor="black", markersize=17, zorder=3)
            axes.text(x, y, f"$x_{{{i + 1}}}$", ha="center", va="center", fontsize=9, zorder=4)
            _draw_bars(axes, (1.4 * x, 1.4 * y), beliefs[t - 1][i], scale, best=True)
    figure.supxlabel("grey: messages · blue: beliefs, the best state dark · ×: forbidden", fontsize=8)
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _factor_places(
    scopes: Sequence[tuple[int, ...]], places: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The centroid of each factor's variables, shifted away from earlier factors."""
    centres: list[tuple[float, float]] = []
    for scope in scopes:
        x = sum(places[i][0] for i in scope) / len(scope)
        y = sum(places[i][1] for i in scope) / len(scope)
        if len(scope) == 1:
            x, y = 0.45 * x, 0.45 * y
        while any(abs(x - u) + abs(y - v) < 0.25 for u, v in centres):
            x, y = x + 0.21, y - 0.16
        centres.append((x, y))
    return centres


def _draw_bars(axes: Any, at: tuple[float, float], entries: Tensor, scale: float, best: bool = False) -> None:
    finite = [v for v in entries.tolist() if v > -float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    left, bottom = at[0] - _BAR * len(entries) / 2, at[1] - _TALL / 2
    patches = need("matplotlib.patches")
    background = patches.Rectangle((left - 0.03, bottom - 0.03), _BAR * len(entries) + 0.06, _TALL + 0.06)
    background.set(color="white", alpha=0.6, linewidth=0, zorder=2)
    axes.add_patch(background)
    axes.plot([left - 0.02, left + _BAR * len(entries)], [bottom] * 2, color="#555555", linewidth=0.6, zorder=5)
    for x, value in enumerate(entries.tolist()):
        start = left + x * _BAR
        if value == -float("inf"):
            axes.plot([start + _BAR / 2], [bottom + 0.03], "x", color="#b2182b", markersize=4, zorder=5)
            continue
        colour = (_BEST if value == high else _BELIEF) if best else _MESSAGE
        height = 0.012 + _TALL * (value - low) / scale
        axes.add_patch(patches.Rectangle((start, bottom), 0.85 * _BAR, height, color=colour, linewidth=0, zorder=5))


def _spread(entries: Tensor) -> float:
    finite = entries[entries.isfinite()]
    return max(float(finite.max() - finite.min()), 1e-12) if len(finite) else 1e-12


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix; equal figures give equal files."""
    kind = path.suffix.lstrip(".").lower()
    # reproducible files: no date, stable ids; letters as paths, since a reader may lack the fonts of formulas
    with (
        need("matplotlib").rc_context({"svg.hashsalt": "fgnn", "svg.fonttype": "path"}),
        atomic_write(path, "wb") as file,
    ):
        figure.savefig(file, format=kind, transparent=True, metadata={"Date": None} if kind == "svg" else None)
