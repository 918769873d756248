"""`fgnn bench` as a person meets it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fgnn.bench import solvers
from fgnn.cli import build_app, main


def test_solvers_is_called_as_asked_and_says_where_its_result_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(solvers, "run", lambda **options: given.update(options) or {"file": "there.json"})
    words = ["bench", "solvers", "--count", "4", "--no-growth", "--kind", "2", "--out", "there.json"]
    done = CliRunner().invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    assert "written to there.json" in done.output
    expected = {"count": 4, "kind": 2, "grow": False, "device": "cpu", "toulbar2_limit": 0.0, "seed": 0}
    assert given == expected | {"out": Path("there.json")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["solvers", "--device", "cuda:99"], "Expected a device"),
        (["solvers", "--device", "abacus"], "Expected a device such as cpu or cuda"),
    ],
)
def test_wrong_use_ends_in_one_line_and_exit_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fgnn", "bench", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
