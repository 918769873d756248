"""What reaches the terminal: escape sequences in names are shown, not sent, and closed streams do no harm."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from fgnn.report import Table
from fgnn.runtime.progress import ProgressBar, log_line
from tests.cli.test_wrong_uses import command

EVIL = "\x1b[2Jevil\x07"


def test_a_file_with_an_escape_sequence_in_its_name_is_named_in_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FGNN_DEBUG", raising=False)
    for words in (
        f"solve {EVIL}.uai",
        f"train {EVIL}",
        f"evaluate {EVIL}",
        f"segment {EVIL}.ply",
        f"bench page {EVIL}",
    ):
        code, out, err = command(words)
        assert code == 2, words
        assert "\x1b" not in out + err, words
        assert "\\x1b[2Jevil\\x07" in err, words


def test_names_in_tables_bars_and_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    text = Table(("class", "IoU"), [(EVIL, "0.5")], caption=EVIL).text()
    stream = io.StringIO()
    bar = ProgressBar(EVIL, stream=stream, every=0.0)
    bar.update(EVIL)
    bar.log(EVIL)
    log_line(EVIL)
    for shown in (text, stream.getvalue(), capsys.readouterr().err):
        assert "evil" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_without_standard_error_a_bar_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    bar = ProgressBar("name")
    bar.update("text")
    bar.log("text")
    bar.close()
    log_line("text")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_neither_the_exit_code_nor_the_files(tmp_path: Path, closed: str) -> None:
    words = f"{sys.executable} -m fgnn data chain --count 3 --length 6 --window 3 --out {tmp_path / 'out'} {closed}"
    assert subprocess.run(["sh", "-c", words], check=False).returncode == 0
    wrong = f"{sys.executable} -m fgnn solve nothing.uai {closed}"
    assert subprocess.run(["sh", "-c", wrong], check=False, capture_output=">&-" not in closed).returncode == 2
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"dataset.json", "models.safetensors"}
