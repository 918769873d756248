"""The README's speed tables say what the kept results say, and each result has a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fgnn.bench.chart import write_chart
from tools.speed_tables import BEGIN, END, rewrite, speed_markdown

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


def test_the_readme_holds_what_the_files_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    held = text.split(BEGIN, 1)[1].split(END, 1)[0]
    assert held == "\n" + speed_markdown(ROOT / "benchmarks" / "results")


def test_tables_are_rewritten_between_the_marks_only(tmp_path: Path) -> None:
    (tmp_path / "layer-cuda.json").write_text(json.dumps(LAYER))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert rewrite(page, tmp_path)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n**One layer**, 524,288 edges")
    assert text.endswith(f"{END}\nafter\n")
    assert "| ours | 0.2 (0.4) |  | 0.8 (1.6) |  | 3 |" in text
    assert "| NNConv | 8 called | 20 | 24 called | 15 | 3 |" in text
    assert "old" not in text
    assert not rewrite(page, tmp_path)


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="Expected the marks"):
        rewrite(page, tmp_path)


def test_a_chart_stands_alone_and_names_every_form(tmp_path: Path) -> None:
    file = write_chart(LAYER, tmp_path / "layer.svg")
    assert file is not None
    text = file.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "NNConv" in text
    assert write_chart({"environment": ENVIRONMENT}, tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()
