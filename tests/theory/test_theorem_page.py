"""The guide page: every Python block runs, and prints what the page says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "theorem.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: Path) -> list[tuple[str, str]]:
    """Execute the page's Python blocks in one namespace; what each printed beside what the page shows."""
    namespace: dict[str, object] = {"__name__": "page"}
    text = page.read_text(encoding="utf-8")
    pairs: list[tuple[str, str]] = []
    for block in BLOCK.finditer(text):
        kind, body = block.groups()
        if kind == "python":
            printed = io.StringIO()
            line = text[: block.start(2)].count("\n")
            code = compile("\n" * line + body, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            pairs.append((printed.getvalue(), ""))
        elif kind == "text":
            pairs[-1] = (pairs[-1][0], body)
    return pairs


def test_the_page_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "img").mkdir()
    monkeypatch.chdir(tmp_path)
    pairs = run_page(PAGE)
    assert len(pairs) > 15
    for printed, shown in pairs:
        assert printed == shown
    for picture in re.findall(r"\]\((img/[\w.-]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (tmp_path / picture).stat().st_size > 1000
        assert (PAGE.parent / picture).stat().st_size < 150_000
