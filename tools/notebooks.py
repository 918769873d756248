"""Run the notebooks and store their outputs: ``python -m tools.notebooks [NAME ...]``.

Times are masked and everything else that differs between runs is dropped, so that a second run changes nothing. The
digest of the source is stored with the outputs; a test compares it, so that no output is older than its source.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from fgnn.files import atomic_write

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_SECONDS = re.compile(rf"(?:(?<=seconds=){_NUMBER}|\b{_NUMBER}(?= s\b))")


def source_digest(notebook: Any) -> str:
    """A digest of what the cells say, without their outputs."""
    cells = [[cell.cell_type, cell.source] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def execute(path: Path) -> Any:
    """Run a notebook in an empty folder and return it with outputs that do not depend on the run."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=600, startup_timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = _settled(cell.outputs)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "fgnn": {"source": source_digest(notebook)},
    }
    return nbformat.from_dict(notebook)


def _settled(outputs: list[Any]) -> list[Any]:
    """Outputs without warnings and times; what was printed in pieces becomes one output."""
    settled: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if settled and settled[-1].output_type == "stream":
                settled[-1]["text"] += _masked(output.text)
                continue
            output["text"] = _masked(output.text)
        for kind, content in output.get("data", {}).items():
            if kind.startswith("text/"):
                output["data"][kind] = _masked(content)
        settled.append(output)
    return settled


def _masked(text: str) -> str:
    return _SECONDS.sub("…", text)


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = execute(path)
        with atomic_write(path) as file:
            nbformat.write(notebook, file)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
