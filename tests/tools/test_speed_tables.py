"""The speed tables equal the stored results, and each result has a chart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fgnn.bench.chart import write_chart
from tools.speed_tables import BEGIN, END, rewrite, speed_markdown, summary_markdown

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"device": "a GPU", "cpu": "a CPU", "threads": 2, "torch": "2.11", "date": "2026-11-15", "load": 0.1} | {
    "commit": "abc"
}


def _row(forward: float, both: float, replayed: bool = True) -> dict[str, Any]:
    times = {"forward_ms": forward, "forward_called_ms": 2 * forward, "both_ms": both, "both_called_ms": 2 * both}
    return {**times, "forward_replayed": replayed, "both_replayed": replayed, "both_bytes": 3 << 20}


LAYER = {
    "environment": ENVIRONMENT,
    "size": {"edges": 524288},
    "forms": {"ours": _row(0.2, 0.8), "NNConv": _row(4.0, 12.0, False)},
    "ratios": {"NNConv": {"forward": 20.0, "forward + backward": 15.0}},
}


@pytest.mark.parametrize(("page", "make"), [("docs/speed.md", speed_markdown), ("README.md", summary_markdown)])
def test_the_pages_hold_what_the_files_say(page: str, make: Callable[[Path], str]) -> None:
    tables = (ROOT / page).read_text(encoding="utf-8").split(BEGIN, 1)[1].split(END, 1)[0]
    assert tables == "\n" + make(ROOT / "benchmarks" / "results")


def test_only_the_text_between_the_markers_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "layer-cuda.json").write_text(json.dumps(LAYER))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert rewrite(page, speed_markdown(tmp_path))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n## One layer on a GPU\n\n524,288 edges")
    assert text.endswith(f"{END}\nafter\n")
    assert "| ours | 0.2 (0.4) |  | 0.8 (1.6) |  | 3 |" in text
    assert "| NNConv | – (8) | 20 | – (24) | 15 | 3 |" in text
    assert "old" not in text
    assert not rewrite(page, speed_markdown(tmp_path))


def test_the_summary_has_a_row_for_each_stored_result(tmp_path: Path) -> None:
    (tmp_path / "layer-cuda.json").write_text(json.dumps(LAYER))
    rows = summary_markdown(tmp_path).splitlines()[2:]
    assert len(rows) == 1
    assert rows[0].endswith("| 1.6 ms | PyG `NNConv`, 24 ms | 15 |")


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="Expected the markers"):
        rewrite(page, "")


def test_a_chart_stands_alone_and_names_every_form(tmp_path: Path) -> None:
    file = write_chart(LAYER, tmp_path / "layer.svg")
    assert file is not None
    text = file.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "NNConv" in text
    assert write_chart({"environment": ENVIRONMENT}, tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()
