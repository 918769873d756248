"""`import fgnn` brings what is used and nothing more, and little time beyond torch's."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import fgnn
from fgnn.errors import _EXTRAS
from fgnn.infer import api

# the command line's own packages too: a program that only imports the library does not pay for them
OPTIONAL = {*_EXTRAS, "triton", "typer", "rich", "yaml", "scipy.optimize", "scipy.spatial", "IPython", "PIL"}

PROGRAM = """
import json, sys, time
import torch
before = time.process_time()
import fgnn
fgnn.solve, fgnn.GraphicalModel, fgnn.ModelBatch, fgnn.FactorGraph, fgnn.read_model, fgnn.deterministic
spent = time.process_time() - before
print(json.dumps({"spent": spent, "modules": sorted(sys.modules)}))
"""


def test_no_optional_package_is_imported_and_hardly_any_time_is_spent() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    facts = json.loads(told.stdout)
    assert OPTIONAL.isdisjoint(facts["modules"])
    assert facts["spent"] < 0.5  # of the processor; torch's own import takes the rest of what a person waits for


ROOT = Path(__file__).resolve().parents[1]


def imports_of(file: Path) -> Iterator[str]:
    """The parts of the package that a file imports from, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"fgnn.{a.name}" for a in node.names] if node.module == "fgnn" else [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("fgnn."))


def test_imports_run_one_way() -> None:
    (line,) = re.findall(r"^(runtime .*→.*cli)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    place = {part: n for n, parts in enumerate(re.split(r"\s*→\s*", line)) for part in parts.split(" · ")}
    source = ROOT / "src" / "fgnn"
    assert {p.parent.name for p in source.glob("*/__init__.py")} == place.keys()
    for part, at in place.items():
        for file in (source / part).rglob("*.py"):
            later = {p for p in imports_of(file) if place.get(p, 0) > at}
            assert not later, f"{file.relative_to(ROOT)} imports from {later}"


# What a person waits for at every Tab, or asks before anything else.
LIGHT = {
    "complete a command": ("", {"COMP_WORDS": "fgnn so", "COMP_CWORD": "1"}),
    "complete an option": ("", {"COMP_WORDS": "fgnn train --dev", "COMP_CWORD": "2"}),
    "version": ("--version", {}),
    "help": ("--help", {}),
    "help of a command": ("bench layer --help", {}),
}


@pytest.mark.parametrize("words", LIGHT.values(), ids=list(LIGHT))
def test_the_command_line_tells_of_itself_without_torch(words: tuple[str, dict[str, str]]) -> None:
    arguments, environment = words
    if environment:
        environment = environment | {"_FGNN_COMPLETE": "complete_bash"}
    program = """
import sys
from fgnn.cli import main
try:
    main()
finally:
    print(sorted({"torch", "numpy", "scipy"} & set(sys.modules)), file=sys.stderr)
"""
    told = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()],
        capture_output=True, text=True, check=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip
    assert told.stdout.strip()
    assert told.stderr.strip() == "[]"


def test_every_public_name_is_found_and_no_other() -> None:
    assert set(fgnn.__all__) <= set(dir(fgnn))
    assert all(getattr(fgnn, name) is not None for name in fgnn.__all__)
    with pytest.raises(AttributeError, match="module 'fgnn' has no attribute 'solver'"):
        fgnn.solver  # noqa: B018


def test_solvers_are_imported_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[str] = []
    together: list[int] = []

    def slow(name: str) -> ModuleType:
        inside.append(name)
        time.sleep(0.02)
        together.append(len(inside))
        inside.remove(name)
        return import_module(name)

    monkeypatch.setattr(api, "import_module", slow)
    threads = [threading.Thread(target=api.solver_named, args=(method,)) for method in ("auto", "exact", "ad3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1, 1, 1]
