"""`fgnn sample`: files that the other commands take as they are."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fgnn.decoding import read_code
from tests.cli import command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fgnn(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(command.fgnn, capsys)


@pytest.mark.parametrize(
    ("kind", "more", "shows"),
    [
        ("model", (), "optimal"),
        ("scan", (), "20,000 points"),
        ("code", ("--shots", "500", "--device", "cpu"), "error rate"),
        ("recipe", ("--time-budget", "2", "--device", "cpu"), "--resume"),
    ],
)
def test_the_command_that_it_prints_works_as_pasted(fgnn: Run, kind: str, more: tuple[str, ...], shows: str) -> None:
    status, out, _ = fgnn("sample", kind)
    assert status == 0
    command = next(line.removeprefix("next: ") for line in out.splitlines() if line.startswith("next: "))
    if kind == "code":
        pytest.importorskip("numba")
    status, out, err = fgnn(*shlex.split(command)[1:], *more)
    assert status == 0, err
    assert shows in out + err


def test_a_file_is_not_replaced_unless_asked(fgnn: Run) -> None:
    assert fgnn("sample", "code", "--out", "a.alist")[0] == 0
    before = Path("a.alist").read_text()
    status, _, err = fgnn("sample", "code", "--out", "a.alist", "--seed", "1")
    assert (status, Path("a.alist").read_text()) == (2, before)
    assert "--force" in err
    assert fgnn("sample", "code", "--out", "a.alist", "--seed", "1", "--force")[0] == 0
    assert Path("a.alist").read_text() != before


def test_other_kinds_are_refused(fgnn: Run) -> None:
    status, _, err = fgnn("sample", "soup")
    assert (status, len(err.strip().splitlines())) == (2, 1)


def test_the_code_is_regular_and_has_no_double_edges(fgnn: Run) -> None:
    fgnn("sample", "code")
    h = read_code("code.alist").matrix()
    assert h.shape == (48, 96)
    assert set(h.sum(0)) == {3}
    assert set(h.sum(1)) == {6}
