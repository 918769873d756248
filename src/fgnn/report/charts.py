"""SVG charts, readable in light and dark mode, without a plotting package."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

COLOURS = (
    "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5",
    "#8c5a3c", "#777777", "#d36a8f", "#5a6fd0", "#8fbf6f", "#c04040",
)  # fmt: skip
_LEFT, _RIGHT, _TOP, _HEIGHT = 66.0, 18.0, 22.0, 260.0  # of the frame, in pixels
_LETTER = 6.3  # approximate width of a letter


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    ylabel: str,
    *,
    log: bool = False,
) -> str:
    """Grouped bars from zero: one group per name, one bar per series.

    Missing and non-finite values, and on a logarithmic axis those that are not positive, are omitted.
    """
    shown = {n: [v if v is not None and math.isfinite(v) and not (log and v <= 0) else None for v in vs]
             for n, vs in series.items()}  # fmt: skip
    finite = [v for values in shown.values() for v in values if v is not None]
    if not finite:
        return _empty(ylabel)
    low, high = (min(finite) / 2, max(finite)) if log else (min(0.0, *finite), max(0.0, *finite))
    axis = _Axis(low, high if high > low else low + 1, log=log)
    slot = max(60.0, 16.0 * len(shown), *(_LETTER * len(g) + 8 for g in groups))
    width = max(560.0, slot * len(groups))
    wide = 0.84 * width / len(groups) / len(shown)
    chart = _Chart(width, axis, ylabel)
    zero = chart.y(axis.low if log else 0.0)
    for n, (name, values) in enumerate(shown.items()):
        for g, value in enumerate(values):
            if value is None:
                continue
            x = _LEFT + width * (g + 0.08) / len(groups) + n * wide
            y = chart.y(value)
            tooltip = html.escape(f"{name}, {groups[g]}: {short(value)}")
            chart.add(
                f"<rect x='{x:.1f}' y='{min(y, zero):.1f}' width='{0.92 * wide:.1f}' height='{abs(zero - y):.1f}' "
                f"fill='{_colour(n)}'><title>{tooltip}</title></rect>"
            )
            chart.add(_value(x + 0.46 * wide, min(y, zero) - 3, short(value), upright=wide < 30))
    for g, group in enumerate(groups):
        chart.text(_LEFT + width * (g + 0.5) / len(groups), _TOP + _HEIGHT + 16, group)
    return chart.render(list(shown) if len(shown) > 1 else [])


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = True,
) -> str:
    """Curves through (x, y) points; points that are not finite, or not positive on a logarithmic axis, are omitted."""

    def fits(x: float, y: float) -> bool:
        return math.isfinite(x) and math.isfinite(y) and not (log_x and x <= 0) and not (log_y and y <= 0)

    shown = {name: [p for p in points if fits(*p)] for name, points in series.items()}
    xs, ys = ([p[axis] for points in shown.values() for p in points] for axis in (0, 1))
    if not xs:
        return _empty(ylabel)
    across, up = _Axis(min(xs), max(xs), log=log_x, tight=True), _Axis(min(ys), max(ys), log=log_y)
    width = 620.0
    chart = _Chart(width, up, ylabel)
    for tick in across.ticks():
        x = _LEFT + width * across.place(tick)
        chart.add(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP + _HEIGHT}' y2='{_TOP + _HEIGHT + 4}' class='frame'/>")
        chart.text(x, _TOP + _HEIGHT + 17, short(tick))
    chart.text(_LEFT + width / 2, _TOP + _HEIGHT + 34, xlabel)
    for n, (name, points) in enumerate(shown.items()):
        pixels = [(_LEFT + width * across.place(x), chart.y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        chart.add(f"<polyline points='{path}' fill='none' stroke='{_colour(n)}' stroke-width='1.8'>"
                  f"<title>{html.escape(name)}</title></polyline>")  # fmt: skip
        for (x, y), (a, b) in zip(pixels, points, strict=True) if markers or len(points) == 1 else ():
            chart.add(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{_colour(n)}'>"
                      f"<title>{html.escape(name)}: {short(a)}, {short(b)}</title></circle>")  # fmt: skip
    return chart.render(list(shown), below=40.0)


def standalone(chart: str) -> str:
    """The text of an SVG file, from a chart for a page."""
    root = "<svg xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' "
    return chart.replace("<svg ", root, 1)


def short(value: float) -> str:
    """A number to three significant digits."""
    size = abs(value)
    if size and (size >= 1e7 or size < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class _Axis:
    """Maps values to fractions of an axis's length, with ticks at round numbers."""

    def __init__(self, low: float, high: float, *, log: bool, tight: bool = False) -> None:
        self.log = log
        self._to: Callable[[float], float] = math.log10 if log else float
        if high <= low:
            low, high = (low / 2, high * 2) if log else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))
        self.low, self.high = low, high
        margin = 0.0 if tight else 0.04 * (self._to(high) - self._to(low))  # keeps shapes off the frame
        self._begin, self._end = self._to(low), self._to(high) + margin
        if not log and not tight and low != round(low):
            self._begin -= margin

    def place(self, value: float) -> float:
        return (self._to(value) - self._begin) / (self._end - self._begin)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(self._begin), math.ceil(self._end)
            steps = (1, 2, 5) if self._end - self._begin < 1.5 else (1,)
            ticks = [s * 10.0**k for k in range(first, last + 1) for s in steps]
            every = max(1, math.ceil(len(ticks) / 9))
            return [t for t in ticks[::every] if -1e-9 <= self.place(t) <= 1 + 1e-9]
        rough = (self._end - self._begin) / 6
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= rough)
        count = range(math.ceil(self._begin / step - 1e-9), math.floor(self._end / step + 1e-9) + 1)
        return [round(k * step, 12) for k in count]


class _Chart:
    """A frame with a vertical axis, to which shapes are added."""

    def __init__(self, width: float, axis: _Axis, ylabel: str) -> None:
        self.width, self.axis, self.label = width, axis, ylabel
        self.parts: list[str] = []
        for tick in axis.ticks():
            y = self.y(tick)
            self.add(f"<line x1='{_LEFT}' x2='{_LEFT + width}' y1='{y:.1f}' y2='{y:.1f}' class='grid'/>")
            self.text(_LEFT - 6, y + 4, short(tick), anchor="end")
        self.add(f"<path d='M{_LEFT} {_TOP}V{_TOP + _HEIGHT}H{_LEFT + width}' class='frame' fill='none'/>")
        middle = _TOP + _HEIGHT / 2
        self.add(f"<text transform='rotate(-90 13 {middle})' x='13' y='{middle}' text-anchor='middle'>"
                 f"{html.escape(ylabel)}</text>")  # fmt: skip

    def y(self, value: float) -> float:
        return _TOP + _HEIGHT * (1 - self.axis.place(value))

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, text: str, anchor: str = "middle") -> None:
        self.add(f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{html.escape(text)}</text>")

    def render(self, legend: Sequence[str], below: float = 24.0) -> str:
        """The SVG text, with the legend below the frame."""
        x, y = _LEFT, _TOP + _HEIGHT + below + 16
        for n, name in enumerate(legend):
            need = 24 + _LETTER * len(name)
            if x > _LEFT and x + need > _LEFT + self.width:
                x, y = _LEFT, y + 18
            self.add(f"<rect x='{x:.1f}' y='{y - 9:.1f}' width='11' height='11' fill='{_colour(n)}'/>")
            self.text(x + 15, y + 1, name, anchor="start")
            x += need + 8
        height = y + 10 if legend else _TOP + _HEIGHT + below + 4
        return _svg(_LEFT + self.width + _RIGHT, height, "".join(self.parts), self.label)


def _svg(width: float, height: float, inner: str, label: str) -> str:
    text = html.escape(label, quote=True)
    return (
        f"<svg viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' role='img' aria-label='{text}' "
        f"class='chart'>{inner}</svg>"
    )


def _empty(label: str) -> str:
    return _svg(420, 40, "<text x='10' y='24'>no data</text>", label)


def _value(x: float, y: float, text: str, *, upright: bool) -> str:
    if upright:  # bars too narrow for horizontal numbers
        return f"<text transform='rotate(-90 {x:.1f} {y:.1f})' x='{x:.1f}' y='{y + 3:.1f}' class='small'>{text}</text>"
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='middle' class='small'>{text}</text>"


def _colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]
