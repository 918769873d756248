"""Bad input at the command: exit 2 and exactly one line on standard error that names the file and the place.

All broken model files go through the command in this process; a few also through a subprocess, whose time and memory
are counted without start-up and imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fgnn.bounds import BROKEN as MOST_BYTES
from tests.cli.test_wrong_uses import command
from tests.fuzz.watch import PEAK
from tests.pgm.io.broken import BROKEN, EVIDENCE
from tests.pgm.io.samples import UAI


def run(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, in this process."""
    return command(" ".join(map(str, words)))


def refused(file: Path, place: str, *words: object) -> None:
    """Run `fgnn solve` on bad input and check its output, time and memory."""
    size, start = PEAK.start(), time.process_time()
    code, out, err = run("solve", *words)
    seconds, grown = time.process_time() - start, PEAK.now() - size
    assert (code, out) == (2, ""), err
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert err.startswith(f"fgnn: {file}"), err
    assert place in err
    assert "Traceback" not in err
    assert seconds < 1
    assert grown < MOST_BYTES


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first command imports what all of them use."""
    path = tmp_path_factory.mktemp("warm") / "a.uai"
    path.write_bytes(UAI)
    assert run("solve", path, "--method", "brute-force")[0] == 0


def test_there_are_at_least_forty() -> None:
    assert len(BROKEN) + len(EVIDENCE) >= 40


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_one_line_and_exit_2(tmp_path: Path, name: str) -> None:
    file, data, place, _ = BROKEN[name]
    (tmp_path / file).write_bytes(data)
    refused(tmp_path / file, place, tmp_path / file)


@pytest.mark.parametrize("name", EVIDENCE)
def test_wrong_evidence_is_one_line_and_exit_2(tmp_path: Path, name: str) -> None:
    data, place, _ = EVIDENCE[name]
    (tmp_path / "a.uai").write_bytes(UAI)
    (tmp_path / "a.evid").write_bytes(data)
    refused(tmp_path / "a.evid", place, tmp_path / "a.uai", "--evidence", tmp_path / "a.evid")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("scan.laz", b"LASF" + bytes(400), ("segment",)),
        ("scan.ply", b"ply\nformat ascii 1.0\n", ("segment",)),
        ("recipe.yaml", b"data: *a\n", ("train",)),
        ("weights.safetensors", b"\xff" * 99, ("evaluate",)),
    ],
)
def test_other_commands_refuse_in_one_line_as_well(
    tmp_path: Path, name: str, data: bytes, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    code, _, err = run(*words, tmp_path / name)
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert name in err


# A subprocess that measures the seconds and bytes of a command without its imports.
_MEASURED = """
import contextlib, io, json, sys, time
import fgnn.cli, fgnn.infer, fgnn.pgm.io
sys.path.insert(0, sys.argv.pop(1))
from tests.fuzz.watch import Peak
fgnn.cli.build_app()
peak, err = Peak(), io.StringIO()
size, start = peak.start(), time.process_time()
try:
    with contextlib.redirect_stderr(err):
        fgnn.cli.main()
except SystemExit as end:
    code = end.code
seconds, grown = time.process_time() - start, peak.now() - size
print(json.dumps({"code": code, "err": err.getvalue(), "seconds": seconds, "grown": grown}))
"""


@pytest.mark.parametrize("name", ["uai huge variables", "bif open comment", "fgm truncated", "cfn deep"])
def test_in_a_subprocess(tmp_path: Path, name: str) -> None:
    file, data, place, _ = BROKEN[name]
    (tmp_path / file).write_bytes(data)
    arguments = [
        sys.executable,
        "-c",
        _MEASURED,
        str(Path(__file__).resolve().parents[2]),
        "solve",
        str(tmp_path / file),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["code"] == 2
    assert len(result["err"].splitlines()) == 1
    assert place in result["err"]
    assert result["seconds"] < 1
    assert result["grown"] < MOST_BYTES
    assert done.stderr == ""


def test_the_installed_command(tmp_path: Path) -> None:
    path = tmp_path / "a.uai"
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    done = subprocess.run(
        [sys.executable, "-m", "fgnn", "solve", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"fgnn: {path}, line 1: ")
