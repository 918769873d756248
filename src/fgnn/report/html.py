"""Self-contained HTML pages of results."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fgnn.files import atomic_write
from fgnn.report.tables import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --line: #d5dae0; --soft: #f4f6f8; --mark: #2f6fb0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --paper: #16191d; --line: #3a4149; --soft: #1f242a; --mark: #7fb2e5; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; }
caption { text-align: left; padding-bottom: .4rem; opacity: .8; }
th, td { padding: .32rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, th:first-child + td:last-child { text-align: left; }
thead th { border-bottom-width: 2px; } tbody th { font-weight: 400; }
tr.strong th, tr.strong td { font-weight: 650; background: var(--soft); }
pre { background: var(--soft); padding: .7rem .9rem; overflow-x: auto; border-left: 3px solid var(--mark); }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); } figure { margin: 1.2rem 0; }
figcaption { opacity: .8; font-size: .92rem; } details { margin: 1rem 0; }
.chart { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; } .chart text { fill: var(--ink); }
.chart .small { font-size: 10px; } .chart .grid { stroke: var(--line); } .chart .frame { stroke: var(--ink); }
"""


class Page:
    """A page built from top to bottom.

    Example:
        >>> page = Page("Table 1")
        >>> page.text("Agreement with the exact MAP.")
        >>> page.write("table1.html").name
        'table1.html'
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, table: Table) -> None:
        self._parts.append(table.html())

    def code(self, text: str) -> None:
        """A block of code or output."""
        self._parts.append(f"<pre><code>{html.escape(text)}</code></pre>")

    def picture(self, picture: bytes | str, caption: str) -> None:
        """An inlined PNG or SVG; the caption is also its alternative text."""
        text = html.escape(caption, quote=True)
        if isinstance(picture, bytes):
            picture = f"<img alt='{text}' src='data:image/png;base64,{base64.b64encode(picture).decode()}'>"
        self._parts.append(f"<figure>{picture}<figcaption>{text}</figcaption></figure>")

    def values(self, caption: str, values: Mapping[str, Any]) -> None:
        """A table of names and values."""
        self.table(Table(("", ""), [(str(k), str(v)) for k, v in values.items()], caption))

    def details(self, summary: str, values: Mapping[str, Any]) -> None:
        """Values in a collapsed section."""
        text = html.escape(json.dumps(values, indent=1, ensure_ascii=False, default=str))
        self._parts.append(f"<details><summary>{html.escape(summary)}</summary><pre>{text}</pre></details>")

    def render(self) -> str:
        """The HTML text."""
        title = html.escape(self.title)
        return (
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{title}</title><style>{_STYLE}</style></head>\n"
            f"<body><main><h1>{title}</h1>\n" + "\n".join(self._parts) + "\n</main></body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page atomically."""
        with atomic_write(path) as file:
            file.write(self.render())
        return Path(path)


def add_provenance(
    page: Page, *, command: str, seeds: Mapping[str, Any], environment: Mapping[str, Any], **settings: Any
) -> None:
    """Add the last section of a page, how to reproduce it: the command, the seeds, the settings and the machine."""
    page.heading("How to reproduce this page")
    page.code(command)
    listed = ", ".join(f"{name} {value}" for name, value in seeds.items())
    page.text(f"Seeds: {listed}." if listed else "The result is deterministic: there is no seed.")
    page.values("Environment", {k: v for k, v in environment.items() if k != "command"})
    if settings:
        page.details("Settings", settings)
