"""A sketch with coordinates and colours, which the SVG and the matplotlib renderers read alike."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fgnn.drawing.layout import lay_out
from fgnn.drawing.sketch import STATE_COLOURS, FactorMark, Sketch
from fgnn.names import printable

RADIUS = 14.0  # of a variable
_HALF = 7.0  # of the side of a factor without a label
_MARGIN, _LINE = 14.0, 22.0  # around the drawing; of the title and the legend
_DARK, _LIGHT = "#1c2024", "#ffffff"
_MOST_DETAIL = 160  # characters shown by hovering


@dataclass(frozen=True)
class Circle:
    """A variable: its wedges (share, colour) clockwise from the top, none for an empty circle."""

    x: float
    y: float
    wedges: tuple[tuple[float, str], ...]
    text: str
    ink: str  # of the text; empty: the page's own
    detail: str


@dataclass(frozen=True)
class Square:
    """A factor, ``half`` its half width and height."""

    x: float
    y: float
    half: tuple[float, float]
    colour: str
    text: str
    detail: str


@dataclass(frozen=True)
class Entry:
    """An entry of the legend, at its place."""

    x: float
    y: float
    round: bool
    colour: str
    text: str


@dataclass(frozen=True)
class Scene:
    """Everything drawn, in pixels."""

    width: float
    height: float
    title: str
    lines: list[tuple[float, float, float, float]] = field(default_factory=list)
    circles: list[Circle] = field(default_factory=list)
    squares: list[Square] = field(default_factory=list)
    legend: list[Entry] = field(default_factory=list)


def compose(sketch: Sketch, title: str = "") -> Scene:
    """Lay out a sketch."""
    variables, factors = lay_out(sketch.num_variables, sketch.scopes)
    everything = np.concatenate([variables, factors, np.zeros((0, 2))])
    squares = [_square(factor, 0.0, 0.0) for factor in sketch.factors]
    widest = max([RADIUS, *(square.half[0] for square in squares)])
    low = everything.min(0) if len(everything) else np.zeros(2)
    shift = -low + (_MARGIN + widest, _MARGIN + RADIUS + (_LINE if title else 0.0))
    variables, factors = variables + shift, factors + shift
    size = (np.ptp(everything, axis=0) if len(everything) else np.zeros(2)) + 2 * (_MARGIN + RADIUS)
    width = max(float(size[0]) + 2 * (widest - RADIUS), 240.0, 7.0 * len(title) + 2 * _MARGIN)
    base = float(size[1]) + (_LINE if title else 0.0)
    legend, height = _legend(sketch, width, base)
    scene = Scene(round(width, 1), round(height, 1), printable(title), legend=legend)
    for (x, y), factor in zip(factors.round(1).tolist(), sketch.factors, strict=True):
        square = _square(factor, x, y)
        scene.squares.append(square)
        scene.lines.extend(_line(square, *variables[i].tolist()) for i in factor.scope)
    for i, (x, y) in enumerate(variables.round(1).tolist()):
        scene.circles.append(_circle(sketch, i, x, y))
    return scene


def _square(factor: FactorMark, x: float, y: float) -> Square:
    label = printable(factor.label)
    half = (max(_HALF + 2.0, 5.0 + 3.1 * len(label)), 9.0) if label else (_HALF, _HALF)
    detail = factor.detail or f"{factor.kind} over {', '.join(map(str, factor.scope))}"
    return Square(x, y, half, factor.colour, label, _cut(detail))


def _circle(sketch: Sketch, i: int, x: float, y: float) -> Circle:
    states, text, ink = sketch.states, str(i), ""
    wedges: tuple[tuple[float, str], ...] = ()
    detail = sketch.details[i] if sketch.details else f"variable {i}"
    if states.assignment is not None:
        state = int(states.assignment[i])
        wedges = ((1.0, state_colour(state)),)
        ink = _DARK if state % len(STATE_COLOURS) == 0 else _LIGHT
        text = text if state < len(STATE_COLOURS) else f"{i}:{state}"
        detail = f"{detail}: state {state}"
    elif states.probabilities is not None:
        p = np.nan_to_num(states.probabilities[i])
        wedges = tuple((float(share), state_colour(k)) for k, share in enumerate(p) if share > 0.0)
        ink = _DARK
        detail = f"{detail}: " + ", ".join(f"p({k}) = {share:.3g}" for k, share in enumerate(p[:8]))
    return Circle(x, y, wedges, text, ink, _cut(detail))


def _line(square: Square, x: float, y: float) -> tuple[float, float, float, float]:
    """From the rim of a square to the rim of a circle: circles may be transparent."""
    dx, dy = x - square.x, y - square.y
    length = max(float(np.hypot(dx, dy)), 1e-9)
    reach = min(square.half[0] / max(abs(dx), 1e-9), square.half[1] / max(abs(dy), 1e-9), 1.0)
    end = max(0.0, 1.0 - RADIUS / length)
    points = square.x + reach * dx, square.y + reach * dy, square.x + end * dx, square.y + end * dy
    a, b, c, d = (round(v, 1) for v in points)
    return a, b, c, d


def _legend(sketch: Sketch, width: float, base: float) -> tuple[list[Entry], float]:
    """The entries, in as many lines as they need below ``base``, and the height of the picture with them."""
    names = [(False, factor.colour, factor.kind) for factor in sketch.factors]
    names += [(True, state_colour(k), f"state {k}") for k in _states_shown(sketch)]
    entries: list[Entry] = []
    x, y = _MARGIN, base
    for circle, colour, name in dict.fromkeys(names):
        text = _cut(name, 40)
        need = 26.0 + 6.4 * len(text)
        if x > _MARGIN and x + need > width:
            x, y = _MARGIN, y + _LINE
        entries.append(Entry(x, y, circle, colour, text))
        x += need
    return entries, y + (_LINE if entries else 0.0)


def _states_shown(sketch: Sketch) -> range:
    """The states in the legend: all up to the highest in use, if each has a colour of its own."""
    states = sketch.states
    if states.assignment is not None and len(states.assignment):
        return range(min(int(states.assignment.max()) + 1, len(STATE_COLOURS)))
    if states.probabilities:
        return range(min(max(map(len, states.probabilities)), len(STATE_COLOURS)))
    return range(0)


def state_colour(state: int) -> str:
    return STATE_COLOURS[state % len(STATE_COLOURS)]


def _cut(text: str, most: int = _MOST_DETAIL) -> str:
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"
