"""Every page runs from top to bottom in an empty folder and prints what it shows."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.docs.pages import DOCS, ROOT, Session, all_pages, blocks, commands

PAGES = all_pages()
COLUMNS = 88  # what the column of text has room for
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w./-]+)\)")


# Three users follow the getting-started page in `test_three_users`.
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem != "getting-started"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    if page.parent == ROOT:
        shutil.copytree(ROOT / "examples", tmp_path / "examples")  # the README is read in a clone
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.delenv("FGNN_DEBUG", raising=False)
    options = np.get_printoptions()
    try:
        Session(page).run()
    finally:
        torch.set_printoptions(profile="default")
        np.set_printoptions(**options)
    for picture in [*tmp_path.glob("*.png"), *tmp_path.glob("*.svg")]:
        if wanted := os.environ.get("FGNN_SCREENSHOTS"):  # draws the pictures of the documentation again
            shutil.copy(picture, ROOT / wanted)
        assert picture.stat().st_size > 1000, picture.name
        assert (DOCS / "img" / picture.name).is_file(), picture.name


def test_the_pages_contain_programs() -> None:
    counts = {page.stem: sum(b.kind in ("python", "console") for b in blocks(page)) for page in PAGES}
    for name in ("getting-started", "sudoku", "denoising", "bond-orders", "chains", "solvers", "layers", "theorem"):
        assert counts[name] >= 3, name
    assert sum(counts.values()) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_fit_the_column(page: Path) -> None:
    long = [
        f"line {block.line + k}, {len(line)} characters"
        for block in blocks(page)
        for k, line in enumerate(block.body.splitlines())
        if len(line) > COLUMNS
    ]
    assert not long, long


def test_a_page_that_shows_other_output_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md, line 2: shown"):
        Session(page).run()
    page.write_text("```console\n$ fgnn sovle a.uai\n```\n")
    with pytest.raises(AssertionError, match="no command 'sovle'"):
        Session(page).run()


def test_console_blocks_are_split_into_commands_and_outputs() -> None:
    pairs = commands("$ fgnn solve a.uai \\\n> --json\n{...}\n$ echo $?\n0\n")
    assert pairs == [("fgnn solve a.uai --json", "{...}\n"), ("echo $?", "0\n")]


def test_pictures_are_small() -> None:
    for page in PAGES:
        for name in PICTURE.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / name).stat().st_size < 300_000, name
    assert (DOCS / "img").is_dir()
