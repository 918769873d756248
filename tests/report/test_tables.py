"""Tables, the parts of a page, and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fgnn.report.charts import bars, lines, standalone
from fgnn.report.html import Page
from fgnn.report.tables import Table, percent

TABLE = Table(["method", "a | b"], [["exact & quick", "1.0"], ["other", "–"]], "A caption", frozenset({0}))


def test_text_lines_up() -> None:
    assert TABLE.text().splitlines() == [
        "A caption",
        "method         a | b",
        "-------------  -----",
        "exact & quick    1.0",
        "other              –",
    ]


def test_markdown_and_html_escape() -> None:
    assert "| method | a \\| b |\n| --- | ---: |" in TABLE.markdown()
    text = TABLE.html()
    assert "exact &amp; quick" in text
    assert text.count("class='strong'") == 1


def test_rows_must_match_the_heading() -> None:
    with pytest.raises(ValueError, match="Expected rows of 2 cells"):
        Table(["a", "b"], [["1"]])


def test_percent() -> None:
    assert percent(0.925, 0.02) == "92.5 ± 2.0"
    assert percent(0.99346, digits=2) == "99.35"


def test_a_page_is_self_contained(tmp_path: Path) -> None:
    page = Page("Results <1>")
    page.heading("A & B")
    page.text("1 < 2")
    page.table(TABLE)
    page.code("fgnn reproduce table1")
    page.details("Environment", {"torch": "2", "path": tmp_path})
    picture = bars(["D1", "D2"], {"ours": [99.0, 98.0], "theirs": [92.5, None]}, "agreement")
    page.picture(picture, "bars")
    page.picture(b"\x89PNG", "a picture of dots")
    text = page.write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>Results &lt;1&gt;</title>" in text
    assert "1 &lt; 2" in text
    for outside in ("http:", "https:", "<link", "<script"):
        assert outside not in text


def test_lines_on_a_log_axis() -> None:
    drawn = lines({"4 blocks": [(1e5, 90.0), (1e6, 95.0)]}, "instances", "agreement", log_x=True)
    root = ElementTree.fromstring(standalone(drawn))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert [text for text in root.itertext() if text in ("1e5", "1e6", "100,000", "1,000,000")]
