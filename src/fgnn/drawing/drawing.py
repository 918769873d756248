"""`draw`: a model, a graph or a solution as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fgnn.drawing.figure import to_image
from fgnn.drawing.scene import compose
from fgnn.drawing.sketch import Drawable, Sketch, States, check_nodes
from fgnn.drawing.svg import to_svg
from fgnn.files import atomic_write

_PAGE = (
    "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Factor graph</title>"
    "<style>:root{{color-scheme:light dark}}body{{margin:1rem}}</style></head><body>{}</body></html>\n"
)


class Drawing:
    """A picture of a factor graph, which a notebook shows and `save` writes.

    Variables are circles, factors squares. Hovering over a node shows what it is.
    """

    def __init__(self, sketch: Sketch, title: str = "") -> None:
        check_nodes(sketch.num_variables + len(sketch.factors))
        sketch.states.check(None, sketch.num_variables)
        self.sketch = sketch
        self.scene = compose(sketch, title)

    @property
    def svg(self) -> str:
        """The text of an SVG file."""
        return to_svg(self.scene, alone=True)

    def save(self, path: str | Path) -> Path:
        """Write an SVG, a page (``.html``), or, with matplotlib, a PNG or PDF; the suffix decides."""
        file = Path(path)
        kind = file.suffix.lower().removeprefix(".")
        if kind not in ("svg", "html", "png", "pdf"):
            raise ValueError(f"Expected a file .svg, .html, .png or .pdf (got {file.name!r})")
        if kind in ("png", "pdf"):
            content = to_image(self.scene, kind)
        else:
            content = (self.svg if kind == "svg" else _PAGE.format(self._repr_html_())).encode()
        with atomic_write(file, "wb") as out:
            out.write(content)
        return file

    def _repr_html_(self) -> str:
        return f"<div style='overflow-x:auto'>{to_svg(self.scene, alone=False)}</div>"

    def __repr__(self) -> str:
        sketch = self.sketch
        return f"Drawing({sketch.num_variables} variables, {len(sketch.factors)} factors; .save('graph.svg') writes it)"


def draw(what: Drawable, states: Any = None, *, title: str = "") -> Drawing:
    """Draw a factor graph: variables as circles, tables as grey squares, constraints as yellow ones.

    Grids are drawn as grids, chains in a row, other graphs by distance. Up to 1,000 variables and factors are drawn.

    Args:
        what: A `GraphicalModel`, a `FactorGraph`, a `Solution` or a `Code`.
        states: Colours the variables: an assignment or a `Solution`, or `Marginals`, whose probabilities become wedges.
            With an assignment, budgets show how many of their variables are 1, and violated constraints are red.
        title: A line above the drawing.

    Returns:
        A `Drawing`: a notebook shows it, and ``.save("graph.svg")`` writes it.

    Example:
        >>> m = fgnn.GraphicalModel([2, 2])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> fgnn.draw(m, fgnn.solve(m)).save("model.svg").name
        'model.svg'
    """
    sketch = getattr(what, "_sketch_", None)
    if sketch is None:
        expected = "a GraphicalModel, a FactorGraph, a Solution or a Code"
        raise TypeError(f"Expected {expected} to draw (got {type(what).__name__})")
    return Drawing(sketch(States.of(states)), title)
