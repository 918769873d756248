"""`fgnn decode`: words, shots, sweeps, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.decoding import AWGN, Code
from tests.cli import command

pytest.importorskip("numba")

CODE = Code.of(np.array([[1, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0, 1]]))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fgnn(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command."""
    return partial(command.fgnn, capsys)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    np.save(tmp_path / "code.npy", CODE.matrix())
    return tmp_path / "code.npy"


def test_words_are_decoded_to_a_file(fgnn: Run, code: Path, tmp_path: Path) -> None:
    sent = CODE.encode(np.random.default_rng(0).integers(0, 2, (50, 4)))
    np.save(tmp_path / "llr.npy", AWGN(0.3).llr(sent, np.random.default_rng(1)))
    status, out, _ = fgnn("decode", code, tmp_path / "llr.npy", "--out", tmp_path / "out.npy", "--json")
    assert status == 0
    assert json.loads(out)["words"] == 50
    assert np.array_equal(np.load(tmp_path / "out.npy"), sent)
    np.save(tmp_path / "bits.npy", sent)
    _, out, _ = fgnn("decode", code, tmp_path / "bits.npy", "--p", "0.1")
    assert "50 words, 50 satisfy all checks" in out


def test_shots_give_a_rate_with_its_interval(fgnn: Run, code: Path) -> None:
    _, out, _ = fgnn("decode", code, "--channel", "bsc", "--p", "0.05", "--shots", "500", "--json")
    point = json.loads(out)
    low, high = point["interval"]
    assert point["shots"] == 500
    assert low <= point["rate"] <= high


def test_a_sweep_continues_and_is_drawn(fgnn: Run, code: Path, tmp_path: Path) -> None:
    arguments = ("decode", code, "--sweep", "0:4:2", "--shots", "200", "--out", tmp_path / "r.json")
    assert fgnn(*arguments)[0] == 0
    before = (tmp_path / "r.json").stat().st_mtime_ns
    assert fgnn(*arguments, "--plot", tmp_path / "r.svg")[0] == 0
    assert (tmp_path / "r.json").stat().st_mtime_ns == before  # nothing was measured again
    assert len(json.loads((tmp_path / "r.json").read_text())["points"]) == 3
    assert (tmp_path / "r.svg").read_text().startswith("<svg")


def test_a_sweep_goes_on_within_a_point(fgnn: Run, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted point, or one that gets more shots, ends with the counts of a sweep that never stopped."""
    counting: Any = sys.modules["fgnn.decoding.simulate"]  # the package has a function of this name
    monkeypatch.setattr(counting, "_BATCH", 64)
    monkeypatch.setattr("fgnn.cli.decode._KEEP_EVERY", 0.0)

    def sweep(name: str, shots: int) -> list[dict[str, Any]]:
        file = tmp_path / name
        assert fgnn("decode", code, "--sweep", "0:2:2", "--shots", str(shots), "--out", file)[0] == 0
        points = json.loads(file.read_text())["points"]
        return [{**p["counted"], "seconds": 0, "snr": p["snr"]} for p in points]

    whole = sweep("whole.json", 640)
    assert sweep("parts.json", 128) != whole
    asked, count = list[int](), counting._count

    def counted(problem: Code, shots: int, *rest: Any) -> Any:
        asked.append(shots)
        return count(problem, shots, *rest)

    monkeypatch.setattr(counting, "_count", counted)
    stored = json.loads((tmp_path / "parts.json").read_text())
    stored["points"] = stored["points"][:1]  # stopped in its first point
    (tmp_path / "parts.json").write_text(json.dumps(stored))
    assert sweep("parts.json", 640) == whole
    assert sum(asked) == 2 * 640 - 128


def test_a_circuit_is_decoded(fgnn: Run, tmp_path: Path) -> None:
    stim = pytest.importorskip("stim")
    circuit = stim.Circuit.generated(
        "repetition_code:memory", rounds=3, distance=5, before_round_data_depolarization=0.02
    )
    circuit.to_file(str(tmp_path / "c.stim"))
    _, out, _ = fgnn("decode", tmp_path / "c.stim", "--shots", "300", "--method", "relay", "-o", "legs=5", "--json")
    assert json.loads(out)["rate"] < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "magic"), "Expected"),
        (("-o", "iterations=abc"), "iterations"),
        (("--sweep", "1:2"), "FROM:TO:STEP"),
        (("--channel", "smoke"), "Expected a channel"),
        (("--channel", "bsc", "--p", "0.7"), "(0, 0.5)"),
        (("--out", "x.txt"), ".json"),
        (("--plot", "x.svg"), "--sweep"),
        (("--lifting", "8"), "lifting"),
        (("--shots", "0"), "at least one shot"),
        (("missing.npy",), "no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(fgnn: Run, code: Path, arguments: tuple[str, ...], message: str) -> None:
    status, _, err = fgnn("decode", code, *arguments)
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
