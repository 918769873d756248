"""The paper's tables on the page of results come from stored runs, cards and records."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fgnn.reproduce.experiment import missing_epochs, records
from fgnn.reproduce.paper import TABLE1
from tests.docs.pages import DOCS, ROOT

PAGES = [DOCS / name for name in ("results.md", "results-chains.md", "results-points.md")]
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import paper_tables

    return paper_tables


def test_table1_shows_every_method_beside_the_papers_numbers(tables: Any) -> None:
    text = tables.table1_markdown()
    for name in ("every variable 0", "LP (HiGHS)", "PointNet*", "DGCNN*", "FGNN, paper", "FGNN, deep, sum aggregation"):
        assert f"\n| {name} |" in text, name
    for row in TABLE1.values():
        assert all(f"{cell[0]:.1f} ± {cell[1]:.1f}" in text for cell in row if cell is not None)
    stored = json.loads((ROOT / "benchmarks/results/table1.json").read_text(encoding="utf-8"))
    zeros = next(c for c in stored["cells"] if c["method"] == "every variable 0" and c["kind"] == 2)["quality"]
    assert f"{100 * zeros['agreement']:.1f} ± {100 * zeros['deviation']:.1f}" in text
    assert stored["environment"]["command"] in text


def test_recorded_rows_follow_the_records_and_not_the_stored_run(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.reproduce import experiment

    known = records()
    known["dgcnn-map-1"]["results"]["kind 1"]["raw"]["agreement"] = 0.123
    known["dgcnn-map-1"]["steps"] = 10
    monkeypatch.setattr(experiment, "records", lambda: known)
    row = next(line for line in tables.table1_markdown().splitlines() if line.startswith("| DGCNN"))
    assert row.startswith("| DGCNN, 0 of 50 epochs* | 12.3 ±")


def test_the_baselines_on_chains_are_trained_to_the_end() -> None:
    known = records()
    for name in ("pointnet", "dgcnn"):
        for kind in (1, 2, 3):
            assert missing_epochs(known[f"{name}-map-{kind}"]) == ""


def test_figures_of_table_1_in_prose_are_those_of_the_table() -> None:
    def raw(name: str) -> str:
        return f"{100 * known[name]['results'][f'kind {name[-1]}']['raw']['agreement']:.1f}"

    known, paper = records(), (DOCS / "paper.md").read_text(encoding="utf-8")
    assert f"**PointNet, {raw('pointnet-map-1')} against 42.6.**" in PAGE
    assert f"differs: {raw('pointnet-map-1')} here; the paper's figure is that of the constant answer 0" in paper
    assert f"differs: {raw('dgcnn-map-1')} here" in paper
    stored = json.loads((ROOT / "benchmarks/results/table1.json").read_text(encoding="utf-8"))["cells"]
    shown = {(c["method"], c["kind"]): f"{100 * c['quality']['agreement']:.1f}" for c in stored}
    ours = [shown["FGNN, paper", kind] for kind in (1, 2, 3)]
    assert f"differs: {ours[0]}, {ours[1]} and {ours[2]} here" in paper
    assert f"**FGNN on Dataset3, {ours[2]} against 87.7.**" in PAGE
    cycles = [float(shown[f"max-product, undamped, {n} iterations", 2]) for n in (98, 99, 100, 101)]
    assert f"On Dataset2 a plain run gives {min(cycles):.0f} to {max(cycles):.0f} %" in PAGE


def test_the_layers_are_compared_on_the_same_data(tables: Any) -> None:
    known = records()
    assert len({known[name]["instances_seen"] for name in tables.LAYERS}) == 1
    assert len(tables.layers_markdown().splitlines()) == 2 + len(tables.LAYERS)
    assert all(about in tables.layers_markdown() for about in tables.LAYERS.values())


def test_the_page_uses_every_table(tables: Any) -> None:
    used = set(re.findall(r"```\{(fgnn-[\w-]+)\}", PAGE))
    assert used >= {
        "fgnn-table1", "fgnn-table1-window9", "fgnn-ablation", "fgnn-layers", "fgnn-table3", "fgnn-table3-categories",
        "fgnn-shape-protocols",
    }  # fmt: skip
    for make in (tables.ablation_markdown, tables.table3_markdown, tables.shape_protocols_markdown):
        assert make().count("|") > 20


def test_a_copy_without_stored_runs_says_so(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", ROOT / "nowhere")
    assert "No run is stored" in tables.window9_markdown()
