"""Formulas as MathML, made while the site is built: no script, no font and no network is needed to read them."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def to_mathml(tex: str, *, block: bool = False) -> str:
    """A formula as a MathML element.

    Raises:
        MathError: It uses a command that is not known, or columns in a formula of one line.
    """
    tex = re.sub(r"\\label\{[^}]*\}", "", tex).strip().replace(r"\dots", r"\ldots")
    tex = re.sub(r"\\([bB]ig+)(?=[(\[]|\\\{)", r"\\\1l", tex)  # the converter wants to be told which side it is
    tex = re.sub(r"\\([bB]ig+)(?=[)\]]|\\\})", r"\\\1r", tex)
    # braces keep an index beside an accented letter; without them it goes below
    tex = re.sub(r"\\(hat|tilde|bar) ?(\w|\{\w\})(?=_)", r"{\\\1{\2}}", tex)
    if block and r"\\" in re.sub(r"\\begin\{(\w+)\}.*?\\end\{\1\}", "", tex, flags=re.DOTALL):
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"  # several lines
    try:
        return "".join(tex2mathml(tex, as_block=block))
    except AttributeError:  # what the converter falls over
        raise MathError("an & where there are no columns") from None


def _element(self: Any, node: nodes.Element, *, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block=block)
    except (MathError, SyntaxError) as error:
        _LOG.warning("a formula cannot be shown: %s", error, location=node, type="math")
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
