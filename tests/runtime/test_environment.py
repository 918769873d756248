"""The environment that every result states."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fgnn
from fgnn.runtime import environment as module
from fgnn.runtime.environment import command, environment


def test_a_result_states_date_commit_hardware_versions_and_command() -> None:
    head = environment("cpu")
    assert json.loads(json.dumps(head)) == head
    assert head.keys() >= {"date", "commit", "torch", "numpy", "python", "cpu", "cores", "threads", "load", "command"}
    assert head["fgnn"] == fgnn.__version__
    assert head["device"] == "cpu"


def test_the_commit_can_come_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    module._commit.cache_clear()
    monkeypatch.setenv("FGNN_COMMIT", "abc123")
    assert environment()["commit"] == "abc123"
    module._commit.cache_clear()


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["/usr/bin/fgnn", "solve", "a b.uai"], "fgnn solve 'a b.uai'"),
        (["/x/src/fgnn/__main__.py", "info"], "fgnn info"),
        (["/x/src/fgnn/bench/layer.py", "--device", "cuda"], "python -m fgnn.bench.layer --device cuda"),
        (["mine.py"], "python mine.py"),
    ],
)
def test_the_command_is_the_one_typed(argv: list[str], typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert command() == typed


def test_a_command_names_no_place_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "/elsewhere/models",
        "--out",
        str(tmp_path / "out" / "a.json"),
        f"--data={tmp_path.parent / 'scans'}",
        "-o",
        "p=0.5",
    ]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "tools" / "term_counts.py"), *words])
    assert command() == "python -m tools.term_counts models --out out/a.json --data=scans -o p=0.5"
