"""The documentation in a real browser: wide and narrow, light and dark."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONGEST = 25_000  # pixels; the reference of layers, with every docstring


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the outputs of notebooks."""
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-D", "nb_execution_mode=off", str(DOCS), str(out)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=280)
    return out


def pages(site: Path) -> list[Path]:
    hidden = {"genindex.html", "search.html", "py-modindex.html"}
    return [page for page in sorted(site.rglob("*.html")) if page.name not in hidden and "_" not in page.parts[-2][:1]]


@pytest.fixture
def views(browser: Any) -> Iterator[Any]:
    """Opens a page of a width and colour scheme."""
    contexts = []

    def view(width: int, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        return context.new_page()

    yield view
    for context in contexts:
        context.close()


def test_no_page_is_wider_than_the_window_or_too_long(built: Path, views: Any) -> None:
    for width in (1400, 390):
        view = views(width)
        for page in pages(built):
            view.goto(page.as_uri())
            wide, high = view.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
            assert wide <= width, f"{page.name}: {wide} px at {width}"
            assert width < 1400 or high < LONGEST, f"{page.name}: {high} px"


def test_code_written_for_the_pages_fits_its_column(built: Path, views: Any) -> None:
    view = views(1400)
    for page in pages(built):
        if page.parent.name == "api":  # docstrings
            continue
        view.goto(page.as_uri())
        written = ".cell_input pre" if page.parent.name == "notebooks" else "article pre"
        cut = view.evaluate(
            f"[...document.querySelectorAll('{written}')].filter(e => e.scrollWidth > e.clientWidth + 1)"
            ".map(e => e.textContent.slice(0, 60))"
        )
        assert cut == [], f"{page.name}: {cut}"


def test_the_results_page_is_made_for_readers(built: Path, views: Any) -> None:
    view = views(1400)
    view.goto((built / "results.html").as_uri())
    assert view.evaluate("document.documentElement.scrollHeight") < 12_000
    links = view.eval_on_selector_all("a[href$='.json']", "links => links.map(a => new URL(a.href).pathname)")
    assert len(links) >= 20
    assert all(Path(link).is_file() for link in links)


def test_pictures_have_no_background_of_their_own(built: Path, views: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    checked = 0
    for scheme in ("light", "dark"):
        view = views(1400, scheme)
        for name in ("theorem", "layers", "problems/denoising", "problems/chains", "segmenting"):
            view.goto((built / f"{name}.html").as_uri())
            background = view.evaluate("getComputedStyle(document.body).backgroundColor")
            paper = tuple(int(part) for part in background[4:-1].split(","))
            for picture in view.locator("article img").all():
                pixels = image.open(io.BytesIO(picture.screenshot())).convert("RGB")
                corner = pixels.getpixel((1, 1))
                assert max(abs(a - b) for a, b in zip(corner, paper, strict=True)) < 12, f"{name}, {scheme}: {corner}"
                checked += 1
    assert checked >= 12


def test_accents_stand_over_their_letter_and_indices_beside_it(built: Path, views: Any) -> None:
    view = views(1400)
    view.goto((built / "theorem.html").as_uri())
    boxes = view.evaluate(
        """() => [...document.querySelectorAll('math msub')].filter(e => e.querySelector('mover')).map(e => {
            const [letter, index] = [e.querySelector('mover > :first-child'), e.lastElementChild];
            const accent = e.querySelector('mover > :last-child');
            return [letter, accent, index].map(x => x.getBoundingClientRect().toJSON());
        })"""
    )
    assert len(boxes) >= 5
    for letter, accent, index in boxes:
        assert accent["top"] < letter["top"] + letter["height"] / 2
        assert index["left"] >= letter["right"] - 2, "the index is below the letter"
        assert index["bottom"] > letter["bottom"], "the index does not sink"


def test_the_copy_button_takes_commands_without_prompts_and_output(built: Path, views: Any) -> None:
    view = views(1400)
    view.goto((built / "getting-started.html").as_uri())
    view.evaluate("navigator.clipboard.writeText = async text => { window.copied = text }")
    view.locator(".highlight-console", has_text="fgnn solve tiny.uai").first.locator("button.copy").click(force=True)
    assert view.evaluate("window.copied") == "fgnn solve tiny.uai\n"
    view.locator(".highlight-python button.copy").first.click(force=True)
    assert view.evaluate("window.copied").startswith("from pathlib import Path")
    assert view.locator(".highlight-text button.copy").count() == 0
