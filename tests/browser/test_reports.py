"""The pages that commands write, in a real browser: they render without errors and load nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.points.cloud import Cloud
from fgnn.report.bench_page import write_bench_page
from fgnn.report.run_page import make_run_page
from fgnn.report.segment_page import LabelledScan, write_segment_page
from fgnn.tasks.recipe import recipe_yaml
from tests.tasks.helpers import small_recipe

ENVIRONMENT = {"torch": "2", "device": "cpu", "command": "fgnn something"}


def of_a_run(path: Path) -> None:
    lines = [
        {"step": s, "loss": 1 / s, "agreement": 0.5, "rate": 0.1, "per_second": 9.0, "seconds": float(s)}
        for s in (1, 2, 3)
    ]
    make_run_page("a </style><b>", recipe_yaml(small_recipe(steps=3)), ENVIRONMENT, lines).write(path)


def of_a_benchmark(path: Path) -> None:
    methods = {"exact": {"ms_per_model": 0.04}, "toulbar2": {"ms_per_model": 16.0}}
    write_bench_page({"benchmark": "solvers", "environment": ENVIRONMENT, "seed": 0, "methods": methods}, path)


def of_a_scan(path: Path) -> None:
    fields = {"label": np.array([0, 0, 0, 1]), "confidence": np.array([0.9, 0.8, 0.7, 0.6])}
    scan = LabelledScan("a.laz", "b.laz", "m", ["a", "b"], {"a": 3, "b": 1}, Cloud(np.zeros((4, 3)), fields), 1.0)
    write_segment_page(path, scan, ENVIRONMENT)


@pytest.mark.parametrize("make", [of_a_run, of_a_benchmark, of_a_scan], ids=lambda f: f.__name__)
def test_a_page_renders_and_loads_nothing_else(make: Any, page: Any, tmp_path: Path) -> None:
    make(tmp_path / "page.html")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    for chart in page.locator("svg.chart").all():
        box = chart.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 150
    assert page.locator("svg.chart").count() >= 1
    assert "fgnn something" in page.inner_text("pre >> nth=-1")
    assert requests == [(tmp_path / "page.html").as_uri()]
