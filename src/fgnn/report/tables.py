"""Tables of results as text, Markdown and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fgnn.names import printable


@dataclass(frozen=True)
class Table:
    """A caption, a heading and rows of text; ``strong`` lists the rows to highlight."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heading):
                raise ValueError(f"Expected rows of {len(self.heading)} cells (got {len(row)}: {list(row)})")

    def titled(self, caption: str) -> Table:
        """The same table with another caption."""
        return replace(self, caption=caption)

    def text(self) -> str:
        """Aligned columns for a terminal: the first to the left, the others to the right."""
        heading, *rows = [[printable(cell) for cell in line] for line in (self.heading, *self.rows)]
        sizes = [max(len(line[c]) for line in (heading, *rows)) for c in range(len(heading))]

        def join(line: Sequence[str]) -> str:
            cells = [line[0].ljust(sizes[0]), *(cell.rjust(s) for cell, s in zip(line[1:], sizes[1:], strict=True))]
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * size for size in sizes)
        body = [join(heading), rule, *map(join, rows)]
        return "\n".join([printable(self.caption), *body] if self.caption else body)

    def markdown(self) -> str:
        """A Markdown table below its caption."""
        marks = ["---", *["---:"] * (len(self.heading) - 1)]
        lines = [self.heading, marks, *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"{self.caption}\n\n{body}\n" if self.caption else f"{body}\n"

    def html(self) -> str:
        """An HTML table."""
        head = "".join(f"<th scope='col'>{html.escape(cell)}</th>" for cell in self.heading)
        rows = []
        for n, row in enumerate(self.rows):
            cells = f"<th scope='row'>{html.escape(row[0])}</th>"
            cells += "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            rows.append(f"<tr class='strong'>{cells}</tr>" if n in self.strong else f"<tr>{cells}</tr>")
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def percent(value: float, deviation: float | None = None, digits: int = 1) -> str:
    """0.925, 0.02 as ``92.5 ± 2.0``."""
    text = f"{100 * value:.{digits}f}"
    return text if deviation is None else f"{text} ± {100 * deviation:.{digits}f}"
