"""Run a command in this process."""

from __future__ import annotations

import sys

import pytest

from fgnn.cli import main


def fgnn(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fgnn", *map(str, words)])
        patch.setattr("fgnn.cli._stop_on_sigterm", lambda: None)
        with pytest.raises(SystemExit) as stop:
            main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err
