"""`fgnn solve` as users see it: output, JSON, exit codes, several files, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, write_model
from tests.cli.command import fgnn as in_process


def fgnn(*words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fgnn", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    model = GraphicalModel([2, 3])
    model.add_unary(0, [0.0, 0.5])
    model.add_table((0, 1), [[0.0, 0.1, 0.2], [0.0, 2.0, 0.0]])
    write_model(model, tmp_path / "small.uai")
    return tmp_path / "small.uai"


def test_the_best_assignment_is_printed(small: Path) -> None:
    done = fgnn("solve", small)
    assert done.returncode == 0, done.stderr
    assert "status      optimal" in done.stdout
    assert "score       2.5" in done.stdout
    assert "assignment  1 1" in done.stdout
    assert done.stderr == ""


def test_json_has_the_documented_fields(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = in_process(capsys, "solve", small, "--json", "--method", "brute-force")
    result = json.loads(out)
    assert result["assignment"] == [1, 1]
    assert result["score"] == pytest.approx(2.5)
    assert result["status"] == "optimal"
    assert set(result) >= {"file", "bound", "feasible", "converged", "iterations", "seconds", "method"}


def test_a_whole_number_may_be_written_as_a_float(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-o", "iterations=1e3", "-o", "tolerance=1e-3")
    _, out, _ = in_process(capsys, "solve", small, "--method", "ad3", *options, "--json")
    assert json.loads(out)["score"] == pytest.approx(2.5)


def test_evidence_is_respected(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = small.with_suffix(".evid")
    evidence.write_text("1 0 0\n")
    _, out, _ = in_process(capsys, "solve", small, "--json", "--evidence", evidence)
    assert json.loads(out)["assignment"] == [0, 2]


def test_a_model_without_a_feasible_assignment_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = GraphicalModel([2, 2])
    model.add_budget((0, 1), at_least=2)
    model.add_table((0, 1), [[0, 0], [0, -np.inf]])
    write_model(model, tmp_path / "none.fgm")
    code, out, _ = in_process(capsys, "solve", tmp_path / "none.fgm", "--json")
    assert code == 1
    assert json.loads(out)["status"] == "infeasible"
    assert json.loads(out)["score"] is None


def test_several_files_in_several_processes_and_one_of_them_broken(small: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.uai").write_text("MARKOV\n2\n2 x\n")
    done = fgnn("solve", small, tmp_path / "broken.uai", small, "--jobs", 2, "--json")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 2
    assert len(done.stderr.splitlines()) == 1
    assert "broken.uai" in done.stderr


def test_a_missing_file_is_one_line_and_exit_2_in_a_subprocess(tmp_path: Path) -> None:
    done = fgnn("solve", tmp_path / "nosuch.uai")
    assert done.returncode == 2
    assert done.stderr.startswith(f"fgnn: {tmp_path / 'nosuch.uai'}: no such file")
    assert len(done.stderr.splitlines()) == 1


def hard_model(path: Path) -> None:
    """A grid no solver finishes in seconds."""
    rng = np.random.default_rng(0)
    side = 22
    model = GraphicalModel([4] * side * side)
    model.add_unaries(rng.normal(size=4 * side * side))
    for r in range(side):
        for c in range(side):
            for other in ([r * side + c + 1] if c + 1 < side else []) + ([(r + 1) * side + c] if r + 1 < side else []):
                model.add_table((r * side + c, other), rng.normal(size=(4, 4)) * 2)
    write_model(model, path)


def read_until(terminal: int, pattern: bytes, seconds: float) -> bytes:
    """What appears on a terminal until a pattern does."""
    shown, end = b"", time.monotonic() + seconds
    while time.monotonic() < end and not re.search(pattern, shown):
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096)
    return shown


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_terminal_shows_score_and_time_left_and_ctrl_c_prints_the_best_so_far(tmp_path: Path) -> None:
    hard_model(tmp_path / "hard.uai")
    command = [sys.executable, "-m", "fgnn", "solve", str(tmp_path / "hard.uai"), "--json", "--time-limit", "100"]
    ours, its = os.openpty()
    environ = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    # A shell that starts the tests in the background ignores SIGINT, and so would the process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True, env=environ)
    signal.signal(signal.SIGINT, before)
    try:
        shown = read_until(ours, rb"score \d.*bound .*1:\d\d left", 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(its)
        os.close(ours)
    assert re.search(rb"score \d", shown), shown[-500:]
    assert process.returncode == 0
    result = json.loads(out)
    assert result["interrupted"]
    assert result["feasible"]
    assert result["status"] == "time-limit"
    assert len(result["assignment"]) == 22 * 22


def test_a_time_limit_is_kept_with_the_best_so_far(tmp_path: Path) -> None:
    hard_model(tmp_path / "hard.uai")
    start = time.monotonic()
    result = json.loads(fgnn("solve", tmp_path / "hard.uai", "--json", "--time-limit", 5).stdout)
    assert time.monotonic() - start < 40  # start-up included; a machine under load is slow, a hang is not
    assert result["feasible"]
    assert result["status"] in ("time-limit", "feasible")
    assert result["bound"] is None or result["bound"] >= result["score"]


def test_the_curve_is_written_and_other_uses_are_refused_before_solving(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = in_process(capsys, "solve", small, "--plot", tmp_path / "curve.html", "--json")
    assert code == 0, err
    assert "score and bound of small.uai" in (tmp_path / "curve.html").read_text()
    assert json.loads(out)["status"] == "optimal"
    for words, message in (
        ((small, small, "--plot", tmp_path / "b.html"), "one model with --plot (got 2)"),
        ((small, "--plot", tmp_path / "b.pdf"), "b.pdf: Expected --plot with a suffix"),
    ):
        code, out, err = in_process(capsys, "solve", *words)
        assert (code, len(err.splitlines()), out) == (2, 1, "")
        assert message in err
