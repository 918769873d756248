"""The tool that follows the README from nothing to a first result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import cold_start

README = (cold_start.ROOT / "README.md").read_text(encoding="utf-8")


def test_it_runs_the_lines_of_the_readme() -> None:
    install, users = cold_start.steps(README)
    assert install.startswith("pip install -c constraints/cpu.txt '.[")
    assert users["demo"] == [["sh", "-ec", "fgnn demo --quick"]]
    assert [command[-1] for command in users["model"]] == ["fgnn sample model", "fgnn solve grid.uai"]
    assert [command[-1].split()[:2] for command in users["scan"]] == [["fgnn", "sample"], ["fgnn", "segment"]]
    assert any("fgnn.nn.build(" in command[-1] for command in users["network"])


def test_it_times_every_user_in_a_folder_of_their_own(tmp_path: Path) -> None:
    users = {"model": [["sh", "-ec", "echo 1 > made"]], "scan": [["sh", "-ec", "test ! -e made"]]}
    seconds = cold_start.measure(tmp_path, "test -x .venv/bin/python", users)
    assert set(seconds) == {"install", "model", "scan"}
    assert all(value["wall"] > 0 and value["cpu"] >= 0 for value in seconds.values())
    with pytest.raises(SystemExit, match="exit 3"):
        cold_start.timed([["sh", "-ec", "exit 3"]], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_from_nothing_to_a_first_result(source: str) -> None:
    command = [sys.executable, "-m", "tools.cold_start", "--only", source]
    done = subprocess.run(command, cwd=cold_start.ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached from here")
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    assert all(f"{source}: first {user} after" in done.stdout for user in ("demo", "model", "scan", "network"))
