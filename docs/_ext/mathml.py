"""Render formulas as MathML while the site is built, so pages need no script, font or network."""

from __future__ import annotations

import html
import re
from itertools import cycle
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def to_mathml(tex: str, *, block: bool = False) -> str:
    """Convert a formula to a MathML element.

    Raises:
        MathError: For an unknown command, or for columns in a one-line formula.
    """
    tex = re.sub(r"\\label\{[^}]*\}", "", tex).strip().replace(r"\dots", r"\ldots")
    tex = re.sub(r"\\([bB]ig+)(?=[(\[]|\\\{)", r"\\\1l", tex)  # the converter needs the side of a delimiter
    tex = re.sub(r"\\([bB]ig+)(?=[)\]]|\\\})", r"\\\1r", tex)
    sides = cycle("lr")  # bars are the same on both
    tex = re.sub(r"\\([bB]ig+)(?=\\?\|)", lambda found: f"\\{found[1]}{next(sides)}", tex)
    # The converter sets the subscript of an accented letter below it. A group of two puts it beside.
    tex = re.sub(r"\\(hat|tilde|bar) ?([A-Za-z]|\\[A-Za-z]+|\{\\?[A-Za-z]+\})(?=_)", r"{\\\1{\2}{}}", tex)
    if block and r"\\" in re.sub(r"\\begin\{(\w+)\}.*?\\end\{\1\}", "", tex, flags=re.DOTALL):
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"  # several lines
    try:
        return "".join(tex2mathml(tex, as_block=block))
    except AttributeError:  # how the converter fails
        raise MathError("an & where there are no columns") from None


def _element(self: Any, node: nodes.Element, *, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block=block)
    except (MathError, SyntaxError) as error:
        _LOG.warning("cannot render a formula: %s", error, location=node, type="math")
        return f"<code>{html.escape(node.astext())}</code>"


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_element(self, node, block=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_element(self, node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))  # type: ignore[arg-type]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
