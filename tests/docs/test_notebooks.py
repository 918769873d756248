"""The notebooks run from the first cell to the last, and the outputs stored in them are those of their source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS

nbformat = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# Which pictures the text of each announces: inline drawings, the view of a cloud, figures.
PICTURES = {"decode": 4, "point_cloud": 3, "solve": 5, "theorem": 2, "train": 2}


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def shown(cell: Any) -> list[tuple[str, str]]:
    """Kind and content of everything below a cell."""
    streams = [("stream", output.text) for output in cell.outputs if output.output_type == "stream"]
    return streams + [pair for output in cell.outputs for pair in sorted(output.get("data", {}).items())]


def test_there_is_one_for_each_use() -> None:
    assert [p.stem for p in NOTEBOOKS] == sorted(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_its_outputs_are_those_of_its_source(path: Path) -> None:
    notebooks = pytest.importorskip("tools.notebooks")
    notebook = read(path)
    assert notebook.metadata["fgnn"]["source"] == notebooks.source_digest(notebook), "stale: run `make notebooks`"
    assert [cell.execution_count for cell in code_cells(path)] == list(range(1, len(code_cells(path)) + 1))
    assert path.stat().st_size < 100_000
    everything = "".join(content for cell in code_cells(path) for _, content in shown(cell))
    assert not re.search(r"/(root|home|tmp|work)/|Traceback", everything)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_installs_draws_and_ends_with_exercises(path: Path) -> None:
    first, *rest = code_cells(path)
    assert "pip" in first.source
    assert not first.outputs
    pictures = [
        kind
        for cell in rest
        for kind, content in shown(cell)
        if kind.startswith("image/") or "<svg" in content or "<img" in content
    ]
    assert len(pictures) == PICTURES[path.stem]
    last = read(path).cells[-1]
    assert last.source.startswith("## Exercises")
    assert "<summary>Answers</summary>" in last.source


# Decoders are compiled on their first use.
SLOW = [pytest.param(p, marks=pytest.mark.slow if p.stem == "decode" else (), id=p.stem) for p in NOTEBOOKS]


@pytest.mark.parametrize("path", SLOW)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cells are plain Python, so no kernel is needed.
    pytest.importorskip("IPython")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    try:
        for k, cell in enumerate(code_cells(path)):
            exec(compile(cell.source, f"{path.name}, cell {k}", "exec"), namespace)
    finally:
        pyplot.close("all")


def pattern(cell: Any) -> list[tuple[str, str]]:
    """What a cell shows, without the numbers: they may differ in the last digits on other machines."""
    texts = ("stream", "text/plain")
    number = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")
    return [(kind, number.sub("#", content) if kind in texts else "") for kind, content in shown(cell)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_running_it_again_shows_the_same(path: Path) -> None:
    notebooks = pytest.importorskip("tools.notebooks")
    again = [cell for cell in notebooks.execute(path).cells if cell.cell_type == "code"]
    assert [pattern(cell) for cell in again] == [pattern(cell) for cell in code_cells(path)]
