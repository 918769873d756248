"""The long description of the package: links that work away from the repository."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def setup() -> Any:
    spec = importlib.util.spec_from_file_location("fgnn_setup", ROOT / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


README = """# x
![a picture](docs/a.png)
[a page](docs/b.md#part), [a site](https://example.org/c), [below](#x)
| [one](a.md), [two](b.md) |
<!-- made by a tool -->
"""


def test_links_lead_into_the_repository(setup: Any) -> None:
    page = setup.long_description(README, "https://example.org/fgnn/", "1.2.0")
    assert "![a picture](https://example.org/fgnn/raw/v1.2.0/docs/a.png)" in page
    assert "[a page](https://example.org/fgnn/blob/v1.2.0/docs/b.md#part)" in page
    assert "[a site](https://example.org/c), [below](#x)" in page
    assert "made by" not in page


def test_without_a_repository_links_become_text(setup: Any) -> None:
    page = setup.long_description(README, None, "1.2.0")
    assert "picture" not in page
    assert "a page, [a site](https://example.org/c), [below](#x)" in page
    assert "| one, two |" in page


def test_the_readme_leaves_no_dead_link(setup: Any) -> None:
    page = setup.long_description((ROOT / "README.md").read_text(encoding="utf-8"), None, "1.2.0")
    assert not setup._LINK.search(page)
