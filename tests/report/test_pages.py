"""The pages that commands write: self-contained, with the command, the environment and the seeds."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn.errors import InputError
from fgnn.points.cloud import Cloud
from fgnn.report.bench_page import make_bench_page, page_of_file
from fgnn.report.charts import bars, lines, short
from fgnn.report.records import sections
from fgnn.report.run_page import make_run_page
from fgnn.report.segment_page import LabelledScan, write_segment_page
from fgnn.tasks.recipe import recipe_yaml
from fgnn.train.run import run
from tests.fuzz.altered import attempt
from tests.tasks.helpers import small_recipe

# Anything that makes a browser load from another machine.
OUTSIDE = re.compile(r"""https?://|//[\w.-]+\.\w+/|<link|<script|@import|url\(|<iframe|srcset""")


def check(text: str, *, charts: int) -> None:
    """Check that a page is self-contained and has at least ``charts`` charts and its provenance."""
    assert not OUTSIDE.findall(text)
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) >= charts
    for picture in drawn:
        ElementTree.fromstring(picture)
        assert "nan" not in picture
        assert "no data" not in picture
    for part in ("<h2>How to", "<code>", "Seeds: ", "Environment", "torch"):
        assert part in text, part


# ---- charts -----------------------------------------------------------------------------------------------------

FLOATS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=32))


@given(st.lists(st.lists(FLOATS, min_size=2, max_size=2), min_size=1, max_size=4), st.booleans())
def test_bars_of_any_numbers_are_a_picture(values: list[list[float | None]], log: bool) -> None:
    chart = bars(["a <b>", "c"], {f"s{n} & co": v for n, v in enumerate(values)}, "y", log=log)
    root = ElementTree.fromstring(chart)
    for node in root.iter("rect"):
        assert float(node.attrib["height"]) >= 0
    assert "nan" not in chart


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=6), st.booleans(), st.booleans())
def test_lines_of_any_numbers_are_a_picture(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    ElementTree.fromstring(lines({"a": points}, "x", "y", log_x=log_x, log_y=log_y))


def test_bar_heights_are_proportional_to_their_values() -> None:
    root = ElementTree.fromstring(bars(["a", "b"], {"s": [10.0, 20.0]}, "y"))
    first, second = (float(node.attrib["height"]) for node in root.iter("rect"))
    assert second == pytest.approx(2 * first, rel=0.01)


def test_numbers_are_short() -> None:
    assert [short(v) for v in (0.0, 0.12345, 12.0, 1234.5, 2.5e9, 1e-6)] == ["0", "0.123", "12", "1,234", "2e9", "1e-6"]


# ---- train ------------------------------------------------------------------------------------------------------


def test_a_run_writes_a_page(tmp_path: Path) -> None:
    recipe = small_recipe(steps=10)
    run(recipe, tmp_path / "run", device="cpu", seed=5)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    check(text, charts=4)
    assert "Seeds: recipe 5." in text
    assert "10 steps" in text
    assert "architecture:" in text
    assert "best.safetensors" in text


def test_a_run_without_validation_has_a_page_too() -> None:
    logged = [
        {"step": s, "loss": 1 / s, "agreement": 0.5, "rate": 0.1, "per_second": 9.0, "seconds": s} for s in (1, 2)
    ]
    environment = {"device": "cpu", "command": "fgnn train x", "torch": "2"}
    check(make_run_page("x", recipe_yaml(small_recipe(steps=2)), environment, logged).render(), charts=4)


# ---- bench ------------------------------------------------------------------------------------------------------


def benchmarks(folder: Path) -> dict[str, dict[str, Any]]:
    """The smallest benchmarks."""
    import torch

    from fgnn.bench import knn, solvers
    from fgnn.bench.common import write_result
    from fgnn.runtime.environment import environment

    near = knn._compare(torch.rand(2, 64, 3), "cpu", matrix=True)
    neighbours = {"benchmark": "knn", "environment": environment(), "seed": 0, "2 x 64": near}
    return {
        "solvers": solvers.run(count=2, grow=False, out=str(folder), quiet=True),
        "knn": neighbours | {"file": str(write_result("knn-cpu", neighbours, folder))},
    }


def test_benchmarks_write_pages_with_charts(tmp_path: Path) -> None:
    for name, result in benchmarks(tmp_path).items():
        text = Path(result["file"]).with_suffix(".html").read_text(encoding="utf-8")
        check(text, charts=2)
        assert f"Benchmark: {name}" in text
        assert "Seeds: inputs 0." in text


def test_the_page_of_a_layer_and_of_training_has_charts() -> None:
    environment = {"torch": "2.11", "command": "fgnn bench layer"}
    row = {"forward_ms": 1.0, "both_ms": 3.0, "forward_bytes": 2**20, "both_bytes": 2**22, "forward_replayed": True}
    slow = row | {"forward_ms": 40.0}
    layer = {"benchmark": "layer", "environment": environment, "seed": 1, "size": {"edges": 9},
             "forms": {"ours": row, "NNConv": slow}, "ratios": {"NNConv": {"forward": 40.0, "forward + backward": 3.0}},
             "sweep": {"base": row, "points x4": slow}}  # fmt: skip
    text = make_bench_page(layer).render()
    check(text, charts=4)
    assert "forms: milliseconds, logarithmic" in text
    assert "ratios: times" in text
    times = {"recipe": "tiny", "device": "cpu", "parts": {"forward": 2.0, "backward": 4.0}, "step_ms": 6.5}
    training = {"benchmark": "training", "environment": environment, "recipes": [times]}
    check(make_bench_page(training).render().replace("no seed", "Seeds: "), charts=1)


def test_growth_is_drawn_as_curves() -> None:
    rows = [{"length": n, "window": 8, "exact": n / 1e3, "ad3": n / 1e2} for n in (30, 100, 300)]
    text = make_bench_page({"benchmark": "solvers", "environment": {}, "lengths": rows}).render()
    assert "lengths: growth with the length" in text
    assert text.count("<polyline") == 2


def test_a_stored_result_gets_its_page_and_other_files_are_refused(tmp_path: Path) -> None:
    stored = tmp_path / "knn.json"
    stored.write_text(
        json.dumps({"benchmark": "knn", "environment": {"torch": "2"}, "seed": 3, "a": {"ours": {"ms": 1.0}}})
    )
    assert page_of_file(stored) == tmp_path / "knn.html"
    for text in ("{", "[]", '{"a": 1}'):
        stored.write_text(text)
        with pytest.raises(InputError, match="Expected a result of fgnn bench"):
            page_of_file(stored)


def test_every_number_of_a_result_is_in_some_table() -> None:
    value = {
        "a": 1,
        "rows": {"x": {"ms": 2.5, "deep": {"n": 3}}, "y": {"ms": 4.5}},
        "other": {"list": [7, 8], "in": {"z": {"k": 9}}},
    }
    cells = {cell for _, table in sections(value) for row in table.rows for cell in row}
    assert {"1", "2.5", "3", "4.5", "7, 8", "9"} <= cells


# ---- segment ----------------------------------------------------------------------------------------------------


def test_a_labelled_scan_has_a_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = np.where(np.arange(500) < 5, 255, rng.integers(0, 2, 500)).astype(np.uint8)
    sample = Cloud(np.zeros((500, 3)), {"label": label, "confidence": rng.random(500)})
    counts = {"ground": 2000, "other": 3000, "unlabelled": 50}
    scan = LabelledScan("a <scan>.laz", "b.laz", "lidar-aerial", ["ground", "other"], counts, sample, seconds=2.0)
    environment = {"torch": "2", "command": "fgnn segment 'a <scan>.laz'"}
    text = write_segment_page(tmp_path / "s.report.html", scan, environment).read_text(encoding="utf-8")
    check(text, charts=2)
    assert "5,050 points in 2.0 s" in text
    assert "a &lt;scan&gt;.laz" in text
    assert "500 points" in text


def test_an_empty_scan_has_a_page(tmp_path: Path) -> None:
    sample = Cloud(np.zeros((0, 3)), {"label": np.zeros(0, np.uint8), "confidence": np.zeros(0)})
    scan = LabelledScan("e.ply", "o.ply", "m", ["a"], {"a": 0}, sample, seconds=0.1)
    page = write_segment_page(tmp_path / "e.html", scan, {"command": "fgnn segment e.ply"})
    assert "0 points" in page.read_text(encoding="utf-8")


# ---- reproduce --------------------------------------------------------------------------------------------------


def test_the_page_of_an_experiment_says_how_to_reproduce_it(tmp_path: Path) -> None:
    from fgnn.report.html import Page
    from fgnn.reproduce.experiment import Output, Setting, write_outputs

    page = Page("A table")
    page.picture(bars(["a"], {"ours": [1.0], "theirs": [2.0]}, "y"), "two bars")
    write_outputs(Output("table1", Setting(seed=7, device="cpu"), [], [], page, 1.5), tmp_path)
    text = (tmp_path / "table1.html").read_text(encoding="utf-8")
    check(text, charts=1)
    assert "Seeds: test instances 7." in text


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "\ufeff{}", "[" * 100_000, '{"environment": 3}', '{"environment": {}, "seed": {}}',
        '{"environment": {}, "a": [{"ms": "x"}, {"ms": 1}]}', '{"environment": {}, "a": [{"n": 1, "s": 1e400}]}',
        '{"environment": {}, "a": {"b": {"ms": 1e999}, "c": {"ms": 1}}}',
        '{"environment": {"command": 5}, "benchmark": [], "x": [1, [2]]}',
    ],
)  # fmt: skip
def test_a_page_of_any_json_is_written_or_refused(tmp_path: Path, text: str) -> None:
    from fgnn.report.bench_page import page_of_file

    file = tmp_path / "result.json"
    file.write_text(text, encoding="utf-8")
    attempt(text[:50], partial(page_of_file, file), str(file))
