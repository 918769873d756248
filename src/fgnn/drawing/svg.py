"""A scene as SVG. Lines and text take the colour of the page's text, so that light and dark pages both work."""

from __future__ import annotations

import html
from math import cos, pi, sin

from fgnn.drawing.scene import RADIUS, Circle, Entry, Scene, Square

_DARK_PAGE = "<style>svg{color:#1c2024}@media(prefers-color-scheme:dark){svg{color:#e4e7ea}}</style>"
_TEXT = "font-family='system-ui,sans-serif' text-anchor='middle' dominant-baseline='central'"


def to_svg(scene: Scene, *, alone: bool) -> str:
    """The SVG element; ``alone`` for a file of its own, which sets its colours by the viewer's preference."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {scene.width:g} {scene.height:g}'"
    head += f" width='{scene.width:g}' height='{scene.height:g}' role='img' aria-label='{_text(_summary(scene))}'"
    # a wide drawing shrinks to the page, but not below half its size
    head += "" if alone else f" style='max-width:100%;min-width:{scene.width / 2:.0f}px;height:auto'"
    parts = [head + ">", _DARK_PAGE if alone else ""]
    if scene.title:
        parts.append(f"<text x='{scene.width / 2:g}' y='16' font-size='13' fill='currentColor' {_TEXT}>")
        parts.append(f"{_text(scene.title)}</text>")
    lines = "".join(f"M{a:g} {b:g}L{c:g} {d:g}" for a, b, c, d in scene.lines)
    parts.append(f"<path d='{lines}' stroke='currentColor' stroke-opacity='.45' fill='none'/>")
    parts += [_square(square) for square in scene.squares]
    parts += [_circle(circle) for circle in scene.circles]
    parts += [_entry(entry) for entry in scene.legend]
    return "".join(parts) + "</svg>"


def _summary(scene: Scene) -> str:
    return scene.title or f"A factor graph of {len(scene.circles)} variables and {len(scene.squares)} factors"


def _square(square: Square) -> str:
    (w, h), x, y = square.half, square.x, square.y
    box = f"<rect x='{x - w:.1f}' y='{y - h:.1f}' width='{2 * w:.1f}' height='{2 * h:.1f}' rx='2'"
    label = f"<text x='{x:g}' y='{y:g}' font-size='10' fill='#1c2024' {_TEXT}>{_text(square.text)}</text>"
    return f"<g><title>{_text(square.detail)}</title>{box} fill='{square.colour}'/>{label if square.text else ''}</g>"


def _circle(circle: Circle) -> str:
    x, y = circle.x, circle.y
    parts = [f"<g><title>{_text(circle.detail)}</title>"]
    if len(circle.wedges) > 1:
        start = 0.0
        for share, colour in circle.wedges:
            parts.append(f"<path d='{_wedge(x, y, start, start + share)}' fill='{colour}'/>")
            start += share
    # an empty circle is filled all the same, so that hovering anywhere on it works
    fill = circle.wedges[0][1] if len(circle.wedges) == 1 else "transparent"
    parts.append(f"<circle cx='{x:g}' cy='{y:g}' r='{RADIUS:g}' fill='{fill}' stroke='currentColor'/>")
    halo = "paint-order='stroke' stroke='#fff' stroke-width='2.5' " if len(circle.wedges) > 1 else ""
    ink = circle.ink or "currentColor"
    parts.append(f"<text x='{x:g}' y='{y:g}' font-size='11' fill='{ink}' {halo}{_TEXT}>{_text(circle.text)}</text></g>")
    return "".join(parts)


def _wedge(x: float, y: float, start: float, end: float) -> str:
    """A sector between two shares of the turn, clockwise from the top."""
    a, b = 2 * pi * start, 2 * pi * min(end, start + 0.9999)
    begin = f"{x + RADIUS * sin(a):.2f} {y - RADIUS * cos(a):.2f}"
    stop = f"{x + RADIUS * sin(b):.2f} {y - RADIUS * cos(b):.2f}"
    return f"M{x:g} {y:g}L{begin}A{RADIUS:g} {RADIUS:g} 0 {int(end - start > 0.5)} 1 {stop}Z"


def _entry(entry: Entry) -> str:
    x, y = entry.x, entry.y
    mark = f"<circle cx='{x + 6:g}' cy='{y:g}' r='5' stroke='currentColor'" if entry.round else ""
    mark = mark or f"<rect x='{x + 1:g}' y='{y - 5:g}' width='10' height='10' rx='2'"
    text = _TEXT.replace("middle", "start")
    label = f"<text x='{x + 16:g}' y='{y:g}' font-size='11' fill='currentColor' {text}>{_text(entry.text)}</text>"
    return f"{mark} fill='{entry.colour}'/>{label}"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
