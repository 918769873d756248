"""`import fgnn` is light, imports run one way, and public names resolve."""

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
from fgnn.infer import api, methods

# Also the packages of the command line: programs that only import the library must not load them.
OPTIONAL = {*_EXTRAS, "numba", "triton", "typer", "rich", "yaml", "scipy.optimize", "scipy.spatial", "IPython", "PIL"}

PROGRAM = """
import json, sys, time
import torch
before = time.process_time()
import fgnn
fgnn.solve, fgnn.GraphicalModel, fgnn.ModelBatch, fgnn.FactorGraph, fgnn.read_model, fgnn.deterministic
spent = time.process_time() - before
print(json.dumps({"spent": spent, "modules": sorted(sys.modules)}))
"""


def test_import_loads_no_optional_package_and_takes_little_time() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    facts = json.loads(run.stdout)
    assert OPTIONAL.isdisjoint(facts["modules"])
    assert facts["spent"] < 0.5  # CPU seconds besides the import of torch


ROOT = Path(__file__).resolve().parents[1]


MODULE_NAME = re.compile(r"fgnn(\.\w+)+(:\w+)?")


def imports_of(file: Path) -> Iterator[str]:
    """The parts of the package that a file imports, inside functions too, or names in a string as a module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fgnn":
            names = [fgnn._FROM.get(alias.name, f"fgnn.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            names = [node.value]
        yield from (re.split("[.:]", name)[1] for name in names if name.startswith("fgnn."))


def test_imports_run_one_way() -> None:
    (line,) = re.findall(r"^(errors .*→.*cli)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    layer = {part: n for n, parts in enumerate(re.split(r"\s*→\s*", line)) for part in parts.split(" · ")}
    source = ROOT / "src" / "fgnn"
    files = {part: list((source / part).rglob("*.py")) or [source / f"{part}.py"] for part in layer}
    above_all = {source / "__init__.py", source / "__main__.py"}
    assert set(source.rglob("*.py")) == above_all.union(*files.values())
    for part, at in layer.items():
        for file in files[part]:
            upward = {other for other in imports_of(file) if layer.get(other, 0) > at}
            assert not upward, f"{file.relative_to(ROOT)} refers to {upward}"


def test_a_module_name_in_a_string_counts_as_an_import(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    text = 'import fgnn.graph\nfrom fgnn import solve\nA = ["fgnn.models.map:f", "fgnn.cli", "a fgnn.nn"]\n'
    file.write_text(text, encoding="utf-8")
    assert list(imports_of(file)) == ["graph", "solvers", "models", "cli"]


# Commands that must answer at once: completion at every Tab, version and help.
LIGHT = {
    "complete a command": ("", {"COMP_WORDS": "fgnn so", "COMP_CWORD": "1"}),
    "complete an option": ("", {"COMP_WORDS": "fgnn train --dev", "COMP_CWORD": "2"}),
    "version": ("--version", {}),
    "help": ("--help", {}),
    "help of a command": ("bench layer --help", {}),
}


@pytest.mark.parametrize("words", LIGHT.values(), ids=list(LIGHT))
def test_help_and_completion_do_not_import_torch(words: tuple[str, dict[str, str]]) -> None:
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
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()],
        capture_output=True, text=True, check=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip
    assert run.stdout.strip()
    assert run.stderr.strip() == "[]"


def test_public_names_resolve_and_others_do_not() -> None:
    assert set(fgnn.__all__) <= set(dir(fgnn))
    assert all(getattr(fgnn, name) is not None for name in fgnn.__all__)
    with pytest.raises(AttributeError, match="module 'fgnn' has no attribute 'solver'"):
        fgnn.solver  # noqa: B018


def test_solvers_are_imported_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    importing: list[str] = []
    concurrent: list[int] = []

    def slow(name: str) -> ModuleType:
        importing.append(name)
        time.sleep(0.02)
        concurrent.append(len(importing))
        importing.remove(name)
        return import_module(name)

    monkeypatch.setattr(methods, "import_module", slow)
    threads = [threading.Thread(target=api.solver_named, args=(method,)) for method in ("auto", "exact", "ad3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert concurrent == [1, 1, 1]
