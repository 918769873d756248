"""How a result came about: the command as it was typed, the seeds, the settings and the machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fgnn.report.html import Page


def command() -> str:
    """What this process was started with, quoted for a shell."""
    program = Path(sys.argv[0])
    if program.name in ("fgnn", "__main__.py"):
        words = ["fgnn"]
    elif "fgnn" in program.parts[:-1] and program.suffix == ".py":  # python -m fgnn.bench.layer
        inside = program.with_suffix("").parts
        words = ["python", "-m", ".".join(inside[len(inside) - 1 - inside[::-1].index("fgnn") :])]
    else:
        words = ["python", program.name]
    return shlex.join([*words, *sys.argv[1:]])


def add_provenance(
    page: Page, *, command: str, seeds: Mapping[str, Any], environment: Mapping[str, Any], **settings: Any
) -> None:
    """The last part of every page: what to type, the seeds, and where it ran."""
    page.heading("How to get this page")
    page.code(command)
    told = ", ".join(f"{name} {value}" for name, value in seeds.items())
    page.text(f"Seeds: {told}." if told else "Nothing here is random: there is no seed.")
    page.values("Environment", {k: v for k, v in environment.items() if k != "command"})
    if settings:
        page.details("Settings", settings)
