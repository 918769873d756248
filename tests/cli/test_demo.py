"""What `make demo` shows."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fgnn.cli import build_app

DEEP = "FGNN, deep, sum aggregation + decode"


def test_the_demo_shows_the_table_and_draws_a_model(tmp_path: Path) -> None:
    run = CliRunner().invoke(build_app(), ["demo", "--count", "4", "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    for method in (
        "exact",
        "LP (HiGHS)",
        "AD3",
        "max-product, damped",
        "FGNN, paper",
        "FGNN, deep, sum aggregation + decode",
    ):
        assert method in run.output
    assert (tmp_path / "factor_graph.svg").read_text(encoding="utf-8").startswith("<svg")
    assert (tmp_path / "table1.html").is_file()
    cells = json.loads((tmp_path / "table1.json").read_text())["cells"]
    exact = [c for c in cells if c["method"] == "exact"]
    assert [c["quality"]["agreement"] for c in exact] == [1.0, 1.0, 1.0]
    decoded = [c for c in cells if c["method"] == DEEP]
    assert all(c["quality"]["feasible"] == 1.0 for c in decoded)


def test_the_quick_demo_leaves_out_what_is_slow(tmp_path: Path) -> None:
    run = CliRunner().invoke(build_app(), ["demo", "--quick", "--count", "4", "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert "Dataset3" in run.output
    assert "Dataset1" not in run.output
    assert "AD3" not in run.output
    assert run.output.splitlines()[-1].startswith("To go on:")
    assert (tmp_path / "factor_graph.svg").is_file()
