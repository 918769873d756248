"""The benchmark of `fgnn segment` runs the command in a subprocess."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fgnn.bench.segment import run
from fgnn.points.segment import STAGES


def test_rows_hold_speed_memory_and_the_time_of_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload = run((3000,), votes=(1,), out=tmp_path)
    row = json.loads((tmp_path / "segment.json").read_text())["rows"][0]
    assert payload["setting"]["batch"] == row["batch"] == 8
    assert tuple(row["stages"]) == STAGES
    assert 0 < sum(row["stages"].values()) < row["seconds"]
    assert row["points_per_second"] == pytest.approx(3000 / row["seconds"])
    assert 0 < row["peak_bytes"] < 2e9
    assert "network" in capsys.readouterr().out


def test_a_classical_filter_is_measured_as_well(tmp_path: Path) -> None:
    payload = run((2000,), votes=(1,), out=tmp_path, suffix=".npy", method="pmf")
    assert json.loads((tmp_path / "segment-pmf.json").read_text())["setting"]["method"] == "pmf"
    assert payload["rows"][0]["megabytes_out"] > payload["rows"][0]["megabytes_in"] > 0


def test_laspy_may_be_a_plain_folder_on_the_path(tmp_path: Path) -> None:
    """A copy without the records of an installed package, before any that is installed."""
    for name in ("laspy", "lazrs"):
        found = find_spec(name)
        if found is None or found.origin is None:
            pytest.skip(f"{name} is not installed")
        shutil.copytree(Path(found.origin).parent, tmp_path / "plain" / name)
    path = os.pathsep.join([str(tmp_path / "plain"), os.environ.get("PYTHONPATH", "")])
    code = (
        "import laspy; from fgnn.bench.segment import run; "
        f"assert laspy.__file__.startswith({str(tmp_path)!r}); run((500,), votes=(1,), out={str(tmp_path)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "segment.json").read_text())["setting"]["format"] == ".laz"
