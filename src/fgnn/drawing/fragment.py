"""Small HTML fragments for notebooks. All text is escaped, and colours are those of the page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from fgnn.names import printable

_LEFT, _CELL = "text-align:left", "padding:1px 10px 1px 0;background:none"


def figure_and_facts(title: str, facts: Iterable[tuple[str, str]], picture: str = "", note: str = "") -> str:
    """A heading, names with their values, and a picture that is HTML already."""
    rows = [
        f"<tr style='background:none'><th style='{_LEFT};{_CELL};font-weight:normal;opacity:.7'>{text(name)}</th>"
        f"<td style='{_LEFT};{_CELL}'>{text(value)}</td></tr>"
        for name, value in facts
    ]
    table = f"<table style='border-collapse:collapse'>{''.join(rows)}</table>" if rows else ""
    below = f"<div style='opacity:.7'>{text(note)}</div>" if note else ""
    return f"<div><b>{text(title)}</b>{table}{picture}{below}</div>"


def grid(title: str, heading: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table with a heading row: the first column to the left, the others to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        styles = [_LEFT, *["text-align:right"] * (len(cells) - 1)]
        inner = (
            f"<{tag} style='{style};{_CELL};white-space:pre'>{text(cell)}</{tag}>"
            for style, cell in zip(styles, cells, strict=True)
        )
        return f"<tr style='background:none'>{''.join(inner)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    table = f"<table style='border-collapse:collapse'>{line(heading, 'th')}{body}</table>"
    below = f"<div style='opacity:.7'>{text(note)}</div>" if note else ""
    return f"<div style='overflow-x:auto'><b>{text(title)}</b>{table}{below}</div>"


def text(value: object) -> str:
    """Text that is safe in HTML, whoever chose it."""
    return html.escape(printable(value), quote=True)
