"""Training steps as called: every form is timed, and the compiled network serves all batch sizes as one graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fgnn.bench import step

TINY = "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(N)"


def test_a_step_is_timed_and_stored(tmp_path: Path) -> None:
    step.run("cpu", (2,), compiled=False, out=str(tmp_path), notation=TINY, points=0, repeats=1, quiet=True)
    stored = json.loads((tmp_path / "step-cpu.json").read_text())
    row = stored["steps"]["MAP, 2 chains, eager"]
    assert min(row["called_ms"], row["loop_ms"], row["first_s"]) > 0
    assert row["device_ms"] is None


@pytest.mark.slow
def test_one_compiled_graph_serves_all_batch_sizes(tmp_path: Path) -> None:
    # None is also the size of another dimension: torch takes equal sizes for the same unless shown otherwise.
    result = step.run("cpu", (7, 5, 3), out=str(tmp_path), notation=TINY, points=0, repeats=1, quiet=True)
    assert result["compile"]["graphs"] == 1
    assert "MAP, 5 chains, compiled" in result["steps"]


@pytest.mark.gpu
def test_a_recorded_step_launches_little(tmp_path: Path) -> None:
    rows = step.run("cuda", (8,), compiled=False, out=str(tmp_path), notation=TINY, points=0, quiet=True)["steps"]
    eager, recorded = rows["MAP, 8 chains, eager"], rows["MAP, 8 chains, recorded"]
    assert recorded["launches"] < eager["launches"] / 4
    assert 0 < recorded["device_ms"] <= 2 * eager["device_ms"]
