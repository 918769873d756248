"""Diagrams of the layer: its two modules, the path of a message, and the transformation into an MPNN."""

from __future__ import annotations

from math import cos, pi, sin
from pathlib import Path
from typing import Any, Literal

import torch

from fgnn.errors import need
from fgnn.graph import FactorGraph
from fgnn.theory.matching import super_edges
from fgnn.theory.picture import save_figure

_VARIABLE, _FACTOR, _FLOW, _FAINT = "#cfe3f3", "#fbe9b7", "#08519c", "#b9bec6"
_Place = tuple[float, float]


def draw_layer(graph: FactorGraph, path: str | Path | None = None) -> Any:
    """The two halves of a layer on a graph: VF, where factors collect from their variables, and FV, the way back.

    Args:
        graph: A small graph; its variables are drawn below its factors.
        path: Optional output file; its suffix gives the format (svg, png, pdf).

    Returns:
        The matplotlib figure.
    """
    figure = _figure(7.2, 2.6)
    variables, factors, edges = _places(graph)
    titles = (r"VF:  $\tilde g_c = \max_i\, \mathcal{Q}(t_{ci})\, \mathcal{M}([g_c, f_i])$",
              r"FV:  $\tilde f_i = \max_c\, \mathcal{Q}(t_{ci})\, \mathcal{M}([\tilde g_c, f_i])$")  # fmt: skip
    for axes, title, upward in zip(figure.subplots(1, 2), titles, (True, False), strict=True):
        _blank(axes, title, (-0.6, max(len(variables), len(factors)) - 0.4), (-0.45, 1.45))
        for c, i in edges:
            ends = (variables[i], factors[c]) if upward else (factors[c], variables[i])
            _arrow(axes, *ends)
        for i, place in enumerate(variables):
            _node(axes, place, f"$f_{{{i + 1}}}$", "o", _VARIABLE, strong=not upward)
        for c, place in enumerate(factors):
            _node(axes, place, f"$g_{{{c + 1}}}$", "s", _FACTOR, strong=upward)
    return _finished(figure, path)


def draw_module(
    towards: Literal["factor", "variable"] = "factor", edges: int = 3, path: str | Path | None = None
) -> Any:
    """The path of the messages to one node: M on the features, times Q of the edge, then the maximum.

    Args:
        towards: Whether the node is a factor (VF) or a variable (FV).
        edges: The number of its edges to draw.
        path: Optional output file; its suffix gives the format (svg, png, pdf).

    Returns:
        The matplotlib figure.
    """
    if towards not in ("factor", "variable"):
        raise ValueError(f"Expected towards factor or variable (got {towards!r})")
    if edges < 1:
        raise ValueError(f"Expected at least one edge (got {edges})")
    figure = _figure(7.2, 0.5 + 0.95 * edges)
    axes = figure.subplots()
    _blank(axes, "", (-0.7, 8.6), (-0.75, 1.5 * edges - 0.5))
    middle = 0.75 * (edges - 1) + 0.1
    module, result = ("VF", r"$\tilde g_c$") if towards == "factor" else ("FV", r"$\tilde f_i$")
    for e in range(edges):
        y = 1.5 * (edges - 1 - e)
        pair = rf"$[g_c, f_{{{e + 1}}}]$" if towards == "factor" else rf"$[g_{{{e + 1}}}, f_i]$"
        edge = rf"$t_{{c{e + 1}}}$" if towards == "factor" else rf"$t_{{{e + 1}i}}$"
        _box(axes, (0.2, y + 0.35), pair, _VARIABLE)
        _box(axes, (0.2, y - 0.35), edge, "white")
        _box(axes, (2.6, y + 0.35), rf"$\mathcal{{M}}(\cdot|\Theta_{{{module}}})$", "#e6e8eb")
        _box(axes, (2.6, y - 0.35), rf"$\mathcal{{Q}}(\cdot|\Phi_{{{module}}})$", "#e6e8eb")
        _box(axes, (4.9, y), r"$\mathcal{Q}\,\mathcal{M}$", "white")
        for start, end in (((0.75, y + 0.35), (1.75, y + 0.35)), ((0.75, y - 0.35), (1.75, y - 0.35)),
                           ((3.4, y + 0.35), (4.35, y + 0.06)), ((3.4, y - 0.35), (4.35, y - 0.06)),
                           ((5.4, y), (6.4, middle))):  # fmt: skip
            _arrow(axes, start, end, shrink=0)
        axes.text(3.95, y + 0.42, "n" if e == 0 else "", fontsize=7, ha="center", color="#555555")
        axes.text(3.95, y - 0.5, "m × n" if e == 0 else "", fontsize=7, ha="center", color="#555555")
    _box(axes, (6.75, middle), "max", "#e6e8eb")
    _box(axes, (8.1, middle), result, _FACTOR if towards == "factor" else _VARIABLE)
    _arrow(axes, (7.1, middle), (7.75, middle), shrink=0)
    return _finished(figure, path)


def draw_shrinking(graph: FactorGraph, path: str | Path | None = None) -> Any:
    """A graph with a perfect matching, and the super-nodes it shrinks to with their neighbours.

    Args:
        graph: One group of factors that match the variables; see :func:`fgnn.theory.to_mpnn`.
        path: Optional output file; its suffix gives the format (svg, png, pdf).

    Returns:
        The matplotlib figure.
    """
    (group,) = graph.groups
    matching = graph.perfect_matching(group)
    neighbours, _ = super_edges(graph.incidence(group), matching)
    figure = _figure(7.2, 2.8)
    left, right = figure.subplots(1, 2)
    variables, factors, edges = _places(graph)
    span = (-0.6, len(variables) - 0.4)
    _blank(left, "the factor graph; bold: $h$", span, (-0.45, 1.45))
    matched = matching.factor.tolist()
    for c, i in edges:
        _line(left, variables[i], factors[c], strong=matched[i] == c)
    for i, place in enumerate(variables):
        _node(left, place, f"$x_{{{i + 1}}}$", "o", _VARIABLE)
    for c, place in enumerate(factors):
        _node(left, place, f"${chr(ord('A') + c)}$", "s", _FACTOR)
    _blank(right, r"the super-nodes $[g_{h(i)}, f_i]$", (-1.9, 1.9), (-1.35, 1.35))
    angles = [pi / 2 - 2 * pi * i / len(variables) for i in range(len(variables))]
    places = [(cos(angle), sin(angle)) for angle in angles]
    assert neighbours.offsets is not None
    sizes = neighbours.offsets.diff().tolist()
    for i, row in enumerate(torch.split(neighbours.scopes, sizes)):
        for j in row.tolist():
            if i < j:
                _line(right, places[i], places[j])
    for i, place in enumerate(places):
        _node(right, place, f"${chr(ord('A') + matched[i])}\\,x_{{{i + 1}}}$", "o", "#e2e6c9", size=25)
    return _finished(figure, path)


def _places(graph: FactorGraph) -> tuple[list[_Place], list[_Place], list[tuple[int, int]]]:
    """Variables below, factors above, and the edges (c, i); the factors of all groups in turn."""
    edges: list[tuple[int, int]] = []
    before = 0
    for name in graph.groups:
        incidence = graph.incidence(name)
        pairs = zip(incidence.factor.tolist(), incidence.variable.tolist(), strict=True)
        edges += [(before + c, i) for c, i in pairs]
        before += incidence.num_factors
    count = graph.num_variables
    variables = [(float(i), 0.0) for i in range(count)]
    factors = [((c + 0.5) * count / before - 0.5, 1.0) for c in range(before)]
    return variables, factors, edges


def _figure(width: float, height: float) -> Any:
    return need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _finished(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _blank(axes: Any, title: str, across: _Place, up: _Place) -> None:
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    axes.set_xlim(*across)
    axes.set_ylim(*up)


def _node(axes: Any, at: _Place, label: str, shape: str, colour: str, strong: bool = False, size: float = 20) -> None:
    width = 2.0 if strong else 0.8
    axes.plot(
        [at[0]], [at[1]], shape, color=colour, markeredgecolor="black", markersize=size, markeredgewidth=width, zorder=3
    )
    axes.text(*at, label, ha="center", va="center", fontsize=9, zorder=4)


def _box(axes: Any, at: _Place, label: str, colour: str) -> None:
    box = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "black", "linewidth": 0.8}
    axes.text(*at, label, ha="center", va="center", fontsize=10, bbox=box, zorder=3)


def _arrow(axes: Any, start: _Place, end: _Place, shrink: float = 12) -> None:
    style = {"arrowstyle": "-|>", "color": _FLOW, "linewidth": 1.2, "shrinkA": shrink, "shrinkB": shrink}
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=2)


def _line(axes: Any, start: _Place, end: _Place, strong: bool = False) -> None:
    axes.plot(
        [start[0], end[0]],
        [start[1], end[1]],
        color=_FLOW if strong else _FAINT,
        linewidth=2.4 if strong else 1.2,
        zorder=1,
    )
