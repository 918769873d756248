"""Pages, notebooks and examples import from `fgnn` and its first-level packages only."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, all_pages, blocks


def programs(path: Path) -> Iterator[str]:
    """The Python code of a page, a notebook or a program."""
    if path.suffix == ".md":
        yield from (block.body for block in blocks(path) if block.kind == "python")
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        yield path.read_text(encoding="utf-8")


def imported(code: str) -> Iterator[tuple[str, str | None]]:
    """Each module of the package that the code imports, with the name taken from it."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.split(".")[0] == "fgnn")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fgnn":
            yield from ((str(node.module), a.name) for a in node.names)


SOURCES = [*all_pages(), *sorted((DOCS / "notebooks").glob("*.ipynb")), *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_are_of_public_names(path: Path) -> None:
    for code in programs(path):
        for module, name in imported(code):
            assert module.count(".") <= 1, module
            exported = getattr(import_module(module), "__all__", None)
            assert name is None or exported is None or name in exported, f"{module}.{name}"


def test_the_check_sees_imports() -> None:
    assert sum(1 for path in SOURCES for code in programs(path) for _ in imported(code)) > 30
    assert list(imported("from fgnn.train.loop import train")) == [("fgnn.train.loop", "train")]
