"""The pages a new reader sees first: the README, the landing page, the gallery and the glossary."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.docs.pages import DOCS, ROOT, blocks

LANDING = DOCS / "index.md"


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import gallery

    return gallery


def test_the_landing_page_has_a_picture_an_install_line_and_four_tiles() -> None:
    text = LANDING.read_text(encoding="utf-8")
    tiles = re.findall(r"^:::\{container\} tile\n(.*?)^:::$", text, re.MULTILINE | re.DOTALL)
    assert len(tiles) == 4
    for tile in tiles:
        assert re.match(r"\*\*\[[^\]]+\]\([\w./#-]+\)\*\*\n", tile), tile
        assert "```" in tile
    assert text.index("{fgnn-picture}") < text.index("pip install") < text.index("{container} tiles")
    assert "(gallery.md)" in text
    assert "(glossary.md)" in text


@pytest.mark.parametrize("page", [ROOT / "README.md", LANDING], ids=lambda p: p.name)
def test_the_install_line_comes_before_any_other_command(page: Any) -> None:
    first = next(block.body for block in blocks(page) if block.kind in ("sh", "console"))
    lines = [line for line in first.splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith(("pip install", "make demo", "python"))


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/getting-started.md"])
def test_map_is_expanded_where_it_is_first_used(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    first = re.search(r"\bMAP\b", text)
    assert first is None or "maximum a posteriori" in text[: first.end() + 40].lower(), text[first.start() - 60 :][:120]


def test_every_page_of_the_guide_ends_with_a_next_step() -> None:
    guide = re.search(r":caption: User guide\n:hidden:\n\n(.*?)```", LANDING.read_text(encoding="utf-8"), re.DOTALL)
    assert guide
    pages = [DOCS / f"{name}.md" for name in guide[1].split() if name not in ("gallery", "glossary", "command-line")]
    for page in [*pages, *(DOCS / "problems").glob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert "](" in text.strip().split("\n\n")[-1], page.name


def test_getting_started_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "getting-started.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == set(project["optional-dependencies"]) - {"all", "dev", "docs", "fuzz", "peers"}


def test_the_glossary_is_in_order_and_explains_the_abbreviations() -> None:
    terms = re.findall(r"^(\S.*)\n: ", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    words = {word for term in terms for word in re.split(r"[ ,]+", term)}
    assert words >= {"CRF", "FGNN", "IoU", "LDPC", "LP", "MAP", "MPNN", "Z"}


def test_the_gallery_shows_every_picture(gallery: Any) -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\{fgnn-picture\} ([\w-]+)", text)) == set(gallery.PICTURES)
    assert text.count("{container} tile\n") >= 10


@pytest.mark.parametrize("name", ["noisy-grid", "sudoku", "chain", "decoding"])
def test_pictures_are_drawn_in_the_colours_of_the_page(gallery: Any, name: str) -> None:
    svg = gallery.cached(name)
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"]
    assert len(list(root.iter())) > 20
    # text and lines follow the page; only letters on a coloured node are white
    assert not re.search(r"(fill|stroke)='(#000|black|white)|stroke='#fff", svg)
    assert re.search(r"currentColor|var\(--color|class='frame'", svg)


def test_the_picture_of_the_readme_is_the_one_the_build_draws(gallery: Any) -> None:
    file = DOCS / "img" / "noisy-grid.svg"
    drawn = gallery.standalone("noisy-grid")
    if os.environ.get("FGNN_SCREENSHOTS"):
        file.write_text(drawn, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == drawn
    assert f"docs/img/{file.name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_sudoku_of_the_gallery_is_the_solution_on_its_page(gallery: Any) -> None:
    digits = "".join(ElementTree.fromstring(gallery.cached("sudoku")).itertext())
    shown = (DOCS / "problems" / "sudoku.md").read_text(encoding="utf-8")
    rows = re.search(r"\[\[5 3 4.*?\]\]", shown, re.DOTALL)
    assert rows
    assert digits == re.sub(r"\D", "", rows[0])
