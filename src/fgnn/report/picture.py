"""A picture of a factor graph, with an optional assignment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import need
from fgnn.files import atomic_write
from fgnn.pgm import Budget, GraphicalModel

# Larger drawings are unreadable, and their layout takes minutes.
MAX_NODES = 2000

_STATE_COLOURS = ("#f2f2f2", "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5", "#8c5a3c")
_TABLE_COLOUR, _BUDGET_COLOUR, _EDGE_COLOUR, _VIOLATED_COLOUR = "#666666", "#c2b200", "#bbbbbb", "#cc2222"


def draw_model(
    model: GraphicalModel,
    path: str | Path,
    assignment: Sequence[int] | NDArray[np.int64] | None = None,
    title: str = "",
) -> Path:
    """Write a PNG, SVG or PDF (by suffix): variables as circles, tables as grey squares, constraints as yellow ones.

    With an ``assignment``, circles are coloured by state, budgets show their count, and violated constraints are red.
    """
    nodes = model.num_variables + model.num_tables + model.num_budgets + model.num_structured
    if nodes > MAX_NODES:
        raise ValueError(f"Expected at most {MAX_NODES} variables and factors to draw (got {nodes})")
    need("matplotlib").use("Agg")
    pyplot = need("matplotlib.pyplot")
    states = None if assignment is None else np.asarray(assignment)
    tables, budgets, structured = list(model.tables()), list(model.budgets()), list(model.structured())
    scopes = [list(t.scope) for t in tables] + [list(b.scope) for b in budgets] + [list(f.scope) for f in structured]
    variables, factors = _layout(model.num_variables, scopes)

    spread = np.ptp(np.concatenate([variables, factors]), axis=0)
    width = float(np.clip(1.0 + 0.45 * spread[0], 4, 18))
    height = float(np.clip(1.4 + 0.45 * spread[1], 2.2, 12))
    figure, axes = pyplot.subplots(figsize=(width, height), dpi=130)
    for centre, scope in zip(factors, scopes, strict=True):
        for i in scope:
            axes.plot(*zip(centre, variables[i], strict=True), color=_EDGE_COLOUR, lw=0.7, zorder=1)
    for centre in factors[: len(tables)]:
        axes.scatter(*centre, s=45, marker="s", color=_TABLE_COLOUR, zorder=3)
    for centre, budget in zip(factors[len(tables) :], budgets, strict=False):
        _draw_budget(axes, centre, budget, states)
    for centre, factor in zip(factors[len(tables) + len(budgets) :], structured, strict=True):
        broken = states is not None and factor.score(states[list(factor.scope)]) == -np.inf
        _draw_constraint(axes, centre, factor.kind.name, _VIOLATED_COLOUR if broken else _BUDGET_COLOUR)
    for i, centre in enumerate(variables):
        _draw_variable(axes, centre, i, None if states is None else int(states[i]))
    if title:
        axes.set_title(title, fontsize=9)
    axes.set_axis_off()
    axes.margins(0.04, 0.12)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format=Path(path).suffix[1:] or "png", bbox_inches="tight")
    pyplot.close(figure)
    return Path(path)


def _draw_budget(axes: Any, centre: NDArray[np.float64], budget: Budget, states: NDArray[np.int64] | None) -> None:
    label = f"{budget.at_least}–{budget.at_most}" if budget.at_least else f"≤{budget.at_most}"
    colour = _BUDGET_COLOUR
    if states is not None:
        ones = int(states[list(budget.scope)].sum())
        label = f"{ones} of {label}" if budget.at_least else f"{ones}{label}"
        colour = _BUDGET_COLOUR if budget.at_least <= ones <= budget.at_most else _VIOLATED_COLOUR
    _draw_constraint(axes, centre, label, colour)


def _draw_constraint(axes: Any, centre: NDArray[np.float64], label: str, colour: str) -> None:
    axes.scatter(*centre, s=170, marker="s", color=colour, zorder=3)
    axes.text(*centre, label, ha="center", va="center", fontsize=5.5, zorder=4)


def _draw_variable(axes: Any, centre: NDArray[np.float64], i: int, state: int | None) -> None:
    colour = "white" if state is None else _STATE_COLOURS[state % len(_STATE_COLOURS)]
    axes.scatter(*centre, s=190, color=colour, edgecolors="#333333", linewidths=0.9, zorder=3)
    dark = state is not None and state % len(_STATE_COLOURS) != 0
    text = str(i) if state is None or state < len(_STATE_COLOURS) else f"{i}:{state}"
    axes.text(*centre, text, ha="center", va="center", fontsize=6, color="white" if dark else "#222222", zorder=4)


def _layout(count: int, scopes: list[list[int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates of variables (N, 2) and of factors (C, 2)."""
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
    coordinates = layout(graph, **options)
    points = np.array([coordinates[v] for v in range(len(graph))]) * side / 2
    return points[:count], points[count:]


def _line_layout(count: int, scopes: list[list[int]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variables and pairs of neighbours on a line, other factors above it in rows without overlap."""
    variables = np.stack([np.arange(count) * 1.2, np.zeros(count)], axis=1)
    factors = np.zeros((len(scopes), 2))
    rows: dict[int, list[float]] = {}
    for c, scope in enumerate(scopes):
        middle = float(np.mean(scope)) * 1.2
        if len(scope) == 2 and abs(scope[0] - scope[1]) == 1:
            factors[c] = (middle, 0.0)
            continue
        level = 0
        while any(abs(middle - other) < 1.5 for other in rows.get(level, [])):
            level += 1
        rows.setdefault(level, []).append(middle)
        factors[c] = (middle, 2.4 + 1.0 * level)
    return variables, factors
