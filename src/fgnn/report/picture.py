"""A picture of a factor graph, with its solution if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import need
from fgnn.files import atomic_write
from fgnn.pgm import GraphicalModel

# A drawing of more nodes than this is a blot, and its layout takes minutes.
MAX_NODES = 2000

_STATE_COLOURS = ("#f2f2f2", "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5", "#8c5a3c")
_TABLE_COLOUR, _BUDGET_COLOUR, _EDGE_COLOUR, _BROKEN_COLOUR = "#666666", "#c2b200", "#bbbbbb", "#cc2222"


def draw_model(
    model: GraphicalModel,
    path: str | Path,
    assignment: Sequence[int] | NDArray[np.int64] | None = None,
    title: str = "",
) -> Path:
    """Write a PNG, SVG or PDF (by suffix): variables as circles, tables as grey squares, budgets as yellow ones.

    With an ``assignment``, circles are coloured by state and budgets show their count; a broken one turns red.
    """
    nodes = model.num_variables + model.num_tables + model.num_budgets
    if nodes > MAX_NODES:
        raise ValueError(f"Expected at most {MAX_NODES} variables and factors to draw (got {nodes})")
    need("matplotlib").use("Agg")
    pyplot = need("matplotlib.pyplot")
    states = None if assignment is None else np.asarray(assignment)
    scopes = [list(t.scope) for t in model.tables()] + [list(b.scope) for b in model.budgets()]
    budgets = list(model.budgets())
    places, corners = _layout(model.num_variables, scopes)

    spread = np.ptp(np.concatenate([places, corners]), axis=0) if len(scopes) else np.ptp(places, axis=0)
    width = float(np.clip(1.0 + 0.45 * spread[0], 4, 18))
    height = float(np.clip(1.4 + 0.45 * spread[1], 2.2, 12))
    figure, axes = pyplot.subplots(figsize=(width, height), dpi=130)
    for corner, scope in zip(corners, scopes, strict=True):
        for i in scope:
            axes.plot([corner[0], places[i][0]], [corner[1], places[i][1]], color=_EDGE_COLOUR, lw=0.7, zorder=1)
    for c, corner in enumerate(corners):
        if c < model.num_tables:
            axes.scatter(*corner, s=45, marker="s", color=_TABLE_COLOUR, zorder=3)
            continue
        budget = budgets[c - model.num_tables]
        label, colour = f"≤{budget.at_most}", _BUDGET_COLOUR
        if budget.at_least:
            label = f"{budget.at_least}–{budget.at_most}"
        if states is not None:
            ones = int(states[list(budget.scope)].sum())
            label = f"{ones}{label}" if budget.at_least == 0 else f"{ones} of {label}"
            colour = _BUDGET_COLOUR if budget.at_least <= ones <= budget.at_most else _BROKEN_COLOUR
        axes.scatter(*corner, s=170, marker="s", color=colour, zorder=3)
        axes.text(*corner, label, ha="center", va="center", fontsize=5.5, zorder=4)
    for i, place in enumerate(places):
        state = None if states is None else int(states[i])
        colour = "white" if state is None else _STATE_COLOURS[state % len(_STATE_COLOURS)]
        axes.scatter(*place, s=190, color=colour, edgecolors="#333333", linewidths=0.9, zorder=3)
        dark = state is not None and state % len(_STATE_COLOURS) != 0
        text = str(i) if state is None or state < len(_STATE_COLOURS) else f"{i}:{state}"
        axes.text(*place, text, ha="center", va="center", fontsize=6, color="white" if dark else "#222222", zorder=4)
    if title:
        axes.set_title(title, fontsize=9)
    axes.set_axis_off()
    axes.margins(0.04, 0.12)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format=Path(path).suffix[1:] or "png", bbox_inches="tight")
    pyplot.close(figure)
    return Path(path)


def _layout(count: int, scopes: list[list[int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places of variables (N, 2) and of factors (C, 2)."""
    spans = [max(s) - min(s) for s in scopes]
    if not scopes or max(spans) <= max(12, count // 4):
        return _line_layout(count, scopes)
    networkx = need("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from(range(count + len(scopes)))
    graph.add_edges_from((i, count + c) for c, scope in enumerate(scopes) for i in scope)
    side = 1.6 * np.sqrt(len(graph))
    layout = networkx.spring_layout if len(graph) > 300 else networkx.kamada_kawai_layout
    options = {"seed": 0} if len(graph) > 300 else {}
    found = layout(graph, **options)
    places = np.array([found[v] for v in range(len(graph))]) * side / 2
    return places[:count], places[count:]


def _line_layout(count: int, scopes: list[list[int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variables on a line, wide factors above in as many rows as keep them apart, narrow ones on it."""
    places = np.stack([np.arange(count) * 1.2, np.zeros(count)], axis=1)
    corners = np.zeros((len(scopes), 2))
    rows: dict[int, list[float]] = {}
    for c, scope in enumerate(scopes):
        middle = float(np.mean(scope)) * 1.2
        if len(scope) == 2 and abs(scope[0] - scope[1]) == 1:
            corners[c] = (middle, 0.0)
            continue
        level = 0
        while any(abs(middle - taken) < 1.5 for taken in rows.get(level, [])):
            level += 1
        rows.setdefault(level, []).append(middle)
        corners[c] = (middle, 2.4 + 1.0 * level)
    return places, corners
