"""Pictures of what the package does, computed and drawn while the site is built.

They are part of the page, in its colours, and therefore right in light and dark mode.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from numpy.typing import NDArray
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import fgnn
from fgnn.report import lines

DOCS = Path(__file__).resolve().parents[1]
_INK = "var(--color-foreground-primary)"
_ACCENT = "var(--color-brand-primary)"
_LABELS = ("none", "#2f6fb0", "#d9772b", "#4c9a4c")


# ---- what is computed -----------------------------------------------------------------------------------------


def sample(kind: str) -> str:
    """The file that ``fgnn sample KIND`` writes, in a temporary folder that lives as long as the build."""
    from fgnn.cli.sample import sample

    file = Path(_folder().name) / kind
    file = file.with_suffix({"model": ".uai", "code": ".alist"}[kind])
    if not file.exists():
        with contextlib.redirect_stdout(None):
            sample(kind, out=file, seed=0, force=False)
    return str(file)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def page_namespace(page: str) -> dict[str, Any]:
    """The names that the Python blocks of a page define, run from top to bottom."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with contextlib.chdir(_folder().name), contextlib.redirect_stdout(None):
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            exec(compile(block, page, "exec"), names)
    return names


# ---- pictures -------------------------------------------------------------------------------------------------


def noisy_grid() -> str:
    """The picture of ``fgnn sample model``: the best label of each pixel by itself, and the optimum."""
    model = fgnn.read_model(sample("model"))
    alone = np.array([model.unary(i).argmax() for i in range(model.num_variables)])
    best = fgnn.solve(model).assignment
    return _labels([("each pixel by itself", alone.reshape(10, 30)), ("the optimum", best.reshape(10, 30))], across=2)


def marginals() -> str:
    """How sure each pixel of the same picture is: the probability of its most probable label."""
    model = fgnn.read_model(sample("model"))
    sure = np.array([p.max() for p in fgnn.marginals(model).variables]).reshape(10, 30)
    cells = [_cell(r, c, _ACCENT, float(1.5 * (1 - sure[r, c]))) for r, c in np.ndindex(sure.shape)]
    return _svg(300, 100, cells, "Probability that a pixel's best label is wrong, darker where it is higher")


def denoising() -> str:
    """The last image of the page on denoising, as received and restored with two priors."""
    names = page_namespace("problems/denoising.md")
    images = [("original", names["truth"]), *names["answers"].items()]
    return _labels([(title, np.asarray(image)) for title, image in images], across=4)


def sudoku() -> str:
    """The page's puzzle: what was given, and what the budgets imply."""
    names = page_namespace("problems/sudoku.md")
    rows = names["puzzle"].split()
    solved = names["filled"](fgnn.solve(names["sudoku"](_digits(rows), box=3)).assignment, 3)
    parts = [
        f"<text x='{20 * c + 10}' y='{20 * r + 15}' text-anchor='middle' font-size='14' "
        f"fill='{_INK if rows[r][c] != '.' else _ACCENT}' font-weight='{700 if rows[r][c] != '.' else 400}'>{d}</text>"
        for (r, c), d in np.ndenumerate(solved)
    ]
    for k in range(10):
        width = 1.6 if k % 3 == 0 else 0.4
        parts.append(f"<path d='M{20 * k} 0V180M0 {20 * k}H180' stroke='{_INK}' stroke-width='{width}'/>")
    return _svg(180, 180, parts, "A solved Sudoku; the digits that were given are bold", margin=2)


def chain() -> str:
    """A short chain like those of the paper's third data set, with its best assignment."""
    model = fgnn.data.ChainMAP(kind=3, length=12, window=4, budget=2).sample(1, seed=3).model(0)
    html = fgnn.draw(model, fgnn.solve(model))._repr_html_()
    return html[html.index("<svg") : html.index("</svg>") + len("</svg>")]


def decoding() -> str:
    """Words with an error against the signal-to-noise ratio, for the code of ``fgnn sample code``."""
    from fgnn.decoding import AWGN, noise_of, read_code, simulate

    code = read_code(sample("code"))
    shots = {1.0: 500, 1.5: 500, 2.0: 1000, 2.5: 4000, 3.0: 4000}  # fewer where most words are wrong
    curves = {
        name: [(snr, simulate(code, n, AWGN(noise_of(snr, code.rate)), method).rate) for snr, n in shots.items()]
        for name, method in (("belief propagation", "min-sum"), ("with ordered statistics", "osd"))
    }
    return lines(curves, "signal to noise, dB", "share of words with an error", log_y=True)


PICTURES: dict[str, Callable[[], str]] = {
    "noisy-grid": noisy_grid,
    "marginals": marginals,
    "denoising": denoising,
    "sudoku": sudoku,
    "chain": chain,
    "decoding": decoding,
}


# ---- drawing --------------------------------------------------------------------------------------------------


def _labels(images: Sequence[tuple[str, NDArray[Any]]], across: int = 1) -> str:
    """Label images with a title below each, ``across`` of them side by side."""
    high, wide = images[0][1].shape
    parts = []
    for n, (title, image) in enumerate(images):
        left, top = (10 * wide + 12) * (n % across), (10 * high + 26) * (n // across)
        cells = [_cell(r, c, _LABELS[int(image[r, c])]) for r, c in np.ndindex(high, wide) if image[r, c]]
        frame = f"<rect width='{10 * wide}' height='{10 * high}' fill='none' stroke='{_INK}' stroke-opacity='.4'/>"
        middle = f"x='{5 * wide}' y='{10 * high + 15}' text-anchor='middle' font-size='12'"
        text = f"<text {middle} fill='{_INK}'>{title}</text>"
        parts.append(f"<g transform='translate({left} {top})'>{''.join(cells)}{frame}{text}</g>")
    rows = -(-len(images) // across)
    about = ", ".join(title for title, _ in images)
    return _svg((10 * wide + 12) * min(across, len(images)) - 12, (10 * high + 26) * rows, parts, about, margin=1)


def _cell(row: int, column: int, fill: str, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1.0 else f" fill-opacity='{min(opacity, 1.0):.2f}'"
    place = f"x='{10 * column}' y='{10 * row}' width='10' height='10'"
    return f"<rect {place} fill='{fill}'{shade} shape-rendering='crispEdges'/>"


def _svg(wide: float, high: float, parts: Sequence[str], about: str, margin: float = 0) -> str:
    box = f"{-margin} {-margin} {wide + 2 * margin} {high + 2 * margin}"
    return f"<svg viewBox='{box}' width='{wide:.0f}' role='img' aria-label='{about}'>{''.join(parts)}</svg>"


def _digits(rows: Sequence[str]) -> NDArray[np.int64]:
    return np.array([[0 if c == "." else int(c) for c in row] for row in rows])


class Picture(SphinxDirective):
    """``{fgnn-picture} NAME``: one of `PICTURES`, with the content of the directive as its caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        figure = nodes.container(classes=["picture"])
        if self.env.app.builder.format == "html":  # other builders, such as a check of references, draw nothing
            figure += nodes.raw("", cached(self.arguments[0]), format="html")
        if self.content:
            figure += self.parse_content_to_nodes()
        return [figure]


def standalone(name: str) -> str:
    """The text of an SVG file, in a grey that is legible on white and on black."""
    text = cached(name).replace("<svg ", "<svg xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' ", 1)
    return text.replace(_INK, "#808080").replace(_ACCENT, "#2f6fb0") + "\n"


@cache
def cached(name: str) -> str:
    """A picture, drawn once per build."""
    return PICTURES[name]()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register ``{fgnn-picture}``."""
    app.add_directive("fgnn-picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
