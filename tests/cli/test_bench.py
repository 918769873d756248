"""`fgnn bench` as a person meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fgnn.cli import build_app, main


def test_solvers_prints_tables_and_writes_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        build_app(), ["bench", "solvers", "--count", "4", "--no-growth", "--out", str(tmp_path / "a.json")]
    )
    assert done.exit_code == 0, done.output
    assert "Ratios of time per model" in done.output
    assert json.loads((tmp_path / "a.json").read_text())["count"] == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["solvers", "--device", "cuda:99"], "Expected a device"),
        (["solvers", "--device", "abacus"], "Expected a device such as cpu or cuda"),
        (["solvers", "--kind", "7"], "7"),
    ],
)
def test_wrong_use_ends_in_one_line_and_exit_2(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fgnn", "bench", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
