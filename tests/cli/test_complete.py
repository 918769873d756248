"""What the shell completes: methods, options with their values, packaged names, files; `-o` has one meaning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from fgnn.cli import build_app

CASES = {
    "solve a.uai --method max": "max-product",
    "solve a.uai -m max-product -o damp": "damping=",
    "solve a.uai -m max-product -o schedule=": "schedule=",
    "marginals a.uai -m sum": "sum-product",
    "marginals a.uai -m sum-product -o damp": "damping=",
    "decode a.alist --method rel": "relay",
    "decode a.alist -m relay -o leg": "legs=",
    "decode a.alist --channel er": "erasure",
    "segment a.laz --model lidar": "lidar-aerial",
    "segment a.laz --method s": "smrf",
    "segment a.laz --units us": "us-ft",
    "evaluate deep-map": "deep-map-joint",
    "train ti": "tiny",
    "train recipes/o": "recipes/own.yaml",
    "train recip": "recipes/",
    "train tiny --device c": "cuda",
    "reproduce table": "table1",
    "sample sc": "scan",
}
# These need no torch, and answer at once.
LIGHT = ("evaluate deep-map", "train ti", "reproduce table", "sample sc", "segment a.laz --model lidar")


def complete(line: str, folder: Path, program: str = "from fgnn.cli import main; main()") -> str:
    words = line.split(" ")
    environment = {"COMP_WORDS": f"fgnn {line}", "COMP_CWORD": str(len(words)), "_FGNN_COMPLETE": "complete_bash"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True, cwd=folder,
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    return run.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.yaml").touch()
    (tmp_path / "recipes" / "other.txt").touch()
    return tmp_path


@pytest.mark.parametrize("line", LIGHT)
def test_packaged_names_are_completed_without_torch(line: str, folder: Path) -> None:
    program = """
import sys
from fgnn.cli import main
try:
    main()
finally:
    assert not {"torch", "numpy"} & set(sys.modules)
"""
    assert CASES[line] in complete(line, folder, program).split()


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in CASES if line not in LIGHT])
def test_the_shell_completes_values(line: str, folder: Path) -> None:
    found = complete(line, folder).split()
    assert any(word.startswith(CASES[line]) for word in found), found
    assert "recipes/other.txt" not in found


def commands(group: Any, path: str = "fgnn") -> list[tuple[str, Any]]:
    if hasattr(group, "commands"):
        return [pair for name, inner in group.commands.items() for pair in commands(inner, f"{path} {name}")]
    return [(path, group)]


def test_a_short_option_means_the_same_in_every_command() -> None:
    meaning: dict[str, tuple[str, str]] = {}
    clashes = []
    for path, command in commands(typer.main.get_command(build_app())):
        for parameter in command.params:
            long = [o for o in parameter.opts if o.startswith("--")]
            for short in (o for o in parameter.opts if len(o) == 2 and o[0] == "-" and long):
                first = meaning.setdefault(short, (long[0], path))
                if first[0] != long[0] and (short, long[0]) != ("-m", "--model"):  # what labels, or what solves
                    clashes.append((short, first, (long[0], path)))
    assert meaning["-o"][0] == "--option"
    assert not clashes
