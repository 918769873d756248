"""The architecture page names packages, files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs.pages import DOCS, ROOT

SOURCE = ROOT / "src" / "fgnn"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")


def definitions(file: Path) -> set[str]:
    """Functions, classes and methods (``Class.method``) defined in a file."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_every_package_has_a_paragraph() -> None:
    described = set(re.findall(r"^\*\*(\w+)\*\* — ", PAGE, re.MULTILINE))
    assert described == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_every_file_exists() -> None:
    pages = PAGE + (DOCS / "extending.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([a-z][\w/]*/[\w/]*(?:\.py)?)`", pages))
    assert len(files) > 30
    for name in files:
        assert (SOURCE / name).exists() or (ROOT / name).exists(), name


def test_every_function_on_the_walks_exists() -> None:
    steps = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert len(steps) > 20
    for file, function in steps:
        assert function in definitions(SOURCE / file), f"{file}: {function}"
