"""How a result came about: the command as it was typed, the seeds, the settings and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fgnn.report.html import Page


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
