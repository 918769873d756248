"""The files of an experiment: JSON, Markdown and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fgnn.files import atomic_write
from fgnn.report.html import Page
from fgnn.report.provenance import add_provenance
from fgnn.report.tables import Table
from fgnn.reproduce.experiment import Setting
from fgnn.runtime.environment import environment


@dataclass(frozen=True, eq=False)
class Output:
    """The results of an experiment: its numbers, tables and page."""

    name: str
    setting: Setting
    cells: Sequence[Any]  # dataclasses
    tables: Sequence[Table]
    page: Page
    seconds: float

    def plain(self) -> dict[str, Any]:
        setting = asdict(self.setting) | {"runs": str(self.setting.runs)}
        return {
            "experiment": self.name,
            "setting": setting,
            "cells": [asdict(cell) for cell in self.cells],
            "seconds": self.seconds,
            "environment": environment(self.setting.device),
        }


def write_outputs(output: Output, out: str | Path) -> Output:
    """Write ``NAME.json``, ``NAME.md`` and ``NAME.html`` to a folder; return the output."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    values = output.plain()
    command = values["environment"]["command"]
    with atomic_write(folder / f"{output.name}.json") as file:
        json.dump(values, file, indent=1)
    with atomic_write(folder / f"{output.name}.md") as file:
        file.write(f"# {output.page.title}\n\n`{command}`, {output.seconds:.0f} s\n\n")
        file.write("\n".join(table.markdown() for table in output.tables))
    seeds, settings = {"test instances": output.setting.seed}, values["setting"] | {"seconds": output.seconds}
    add_provenance(output.page, command=command, seeds=seeds, environment=values["environment"], **settings)
    output.page.write(folder / f"{output.name}.html")
    return output
