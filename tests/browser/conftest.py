"""A real browser, if installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    executable = next(
        (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)), None
    )
    if executable is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playground without a server, exported once."""
    from fgnn.play.site import export_site

    index, _ = export_site(tmp_path_factory.mktemp("site"))
    return index


def new_page(browser: Any) -> Any:
    """A page of its own context, which collects its errors and its requests to other machines in ``faults``."""
    opened = browser.new_context(viewport={"width": 1280, "height": 760}).new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))
            else faults.append(f"requested {request.url}")
        ),
    )
    opened.faults = faults
    return opened


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A new page; the test fails if the page logs an error or sends a request to another machine."""
    opened = new_page(browser)
    yield opened
    opened.context.close()
    # tests provoke replies of 400, which the browser logs as errors
    assert [f for f in opened.faults if "status of 400" not in f] == []
