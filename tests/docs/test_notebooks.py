"""The notebooks run from the first cell to the last and are stored without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[Any]:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return list(notebook.cells)


def test_there_is_one_for_each_use() -> None:
    assert [p.stem for p in NOTEBOOKS] == ["point_cloud", "solve", "theorem", "train"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_valid_and_stored_without_outputs(path: Path) -> None:
    code = [c for c in cells(path) if c.cell_type == "code"]
    assert len(code) >= 5
    assert all(c.outputs == [] and c.execution_count is None for c in code)
    assert path.stat().st_size < 20_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cells are plain Python, so no kernel is needed.
    pytest.importorskip("IPython")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    try:
        for k, cell in enumerate(c for c in cells(path) if c.cell_type == "code"):
            exec(compile(cell.source, f"{path.name}, cell {k}", "exec"), namespace)
    finally:
        matplotlib.pyplot.close("all")
