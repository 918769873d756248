"""How to reproduce a result: the command, the seeds, the settings and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fgnn.report.html import Page


def add_provenance(
    page: Page, *, command: str, seeds: Mapping[str, Any], environment: Mapping[str, Any], **settings: Any
) -> None:
    """Add the last section of a page: the command, the seeds and the environment."""
    page.heading("How to reproduce this page")
    page.code(command)
    listed = ", ".join(f"{name} {value}" for name, value in seeds.items())
    page.text(f"Seeds: {listed}." if listed else "The result is deterministic: there is no seed.")
    page.values("Environment", {k: v for k, v in environment.items() if k != "command"})
    if settings:
        page.details("Settings", settings)
