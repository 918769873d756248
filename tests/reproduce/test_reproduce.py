"""The paper's tables: ours beside the paper's, as JSON, Markdown and a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fgnn
from fgnn.models.map.config import NetworkConfig
from fgnn.reproduce import ablation, experiment, table1
from fgnn.reproduce.experiment import (
    METHODS,
    Cell,
    Method,
    Setting,
    fresh_set,
    missing_epochs,
    quick_methods,
    solver_cells,
)
from fgnn.reproduce.transfer import reproduce_transfer
from fgnn.reproduce.trivial import best_threshold, trivial_cells
from fgnn.tasks.data_settings import ChainData, Data
from fgnn.tasks.metrics import Quality
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from tests.tasks.helpers import small_recipe

TINY = NetworkConfig("FGNN(4) - FGNN(N)", q="table")


@pytest.fixture(autouse=True)
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the networks of the tables for a few steps only."""
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)

    def recipe(kind: int, window: int, network: NetworkConfig | None = None, base: str = "") -> Any:
        chosen = TINY if network is None else replace(TINY, factor_size=network.factor_size)
        data = Data(chain=ChainData((kind,), window=window))
        return small_recipe(data=data, network=chosen, steps=5, validation=8, ema=None)

    for module in (table1, ablation):
        monkeypatch.setattr(module, "paper_recipe", recipe)
    monkeypatch.setattr(table1, "quick_methods", lambda quick: {"exact": METHODS["exact"]})


def test_table1_from_training_to_the_page(tmp_path: Path) -> None:
    logged: list[str] = []
    setting = Setting(window=9, instances=40, runs=tmp_path / "runs")
    output = table1.reproduce_table1(setting, tmp_path / "out", logged.append, kinds=(1, 3))
    cells = json.loads((tmp_path / "out" / "table1.json").read_text())["cells"]
    assert {(c["method"], c["kind"]) for c in cells} >= {("exact", 1), ("exact", 3), ("FGNN, paper + decode", 3)}
    exact = [c["quality"] for c in cells if c["method"] == "exact"]
    assert all(q["agreement"] == q["optimal"] == q["feasible"] == 1.0 for q in exact)
    assert all(c["quality"]["feasible"] == 1.0 for c in cells if c["method"].endswith("decode"))
    page = (tmp_path / "out" / "table1.html").read_text()
    assert "<svg" in page
    assert "windows" in page or "window of 9" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "| FGNN, paper |" in (tmp_path / "out" / "table1.md").read_text()
    assert "92.5 ± 2.0" in output.tables[0].text()
    assert "training paper-map-1-w9" in logged
    again: list[str] = []
    table1.reproduce_table1(setting, tmp_path / "out", again.append, kinds=(1,))
    assert not [line for line in again if line.startswith("training")]  # what is trained stays trained


def test_solvers_are_compared_with_the_optimum() -> None:
    setting = Setting(instances=6)
    examples = fresh_set(setting, 3)
    methods = {"exact": Method("exact"), "some": Method("max-product", {"damping": 0.0}, most=3)}
    exact, some = solver_cells(setting, 3, examples, methods, lambda text: None)
    assert (exact.quality.agreement, exact.quality.optimal, exact.quality.count) == (1.0, 1.0, 6)
    solved = fgnn.solve(examples.select(slice(0, 3)).models, "max-product", damping=0.0)
    assert some.quality.count == 3
    assert some.quality.agreement == pytest.approx((solved.assignment == examples.labels[:3]).double().mean().item())
    assert some.quality.feasible == pytest.approx(solved.feasible.double().mean().item())


def test_ablation_has_three_sizes_beside_the_paper(tmp_path: Path) -> None:
    output = ablation.reproduce_ablation(
        Setting(instances=40, runs=tmp_path / "runs"), tmp_path / "out", lambda text: None
    )
    rows = output.tables[0].rows
    assert [(row[0], row[2]) for row in rows] == [
        ("4 variables", "81.7"),
        ("6 variables", "89.9"),
        ("8 variables", "92.5"),
    ]
    assert (tmp_path / "out" / "ablation.html").is_file()


def test_quick_uses_records_if_no_weights_are_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quality = vars(Quality(0.6, 0.01, 0.1, 0.5, 0.2, 100))
    results = {"kind 1": {"raw": quality, "decoded": quality, "raw_ms": 1.0, "decoded_ms": 2.0}}
    monkeypatch.setattr(experiment, "records", lambda: {"dgcnn-map-1": {"results": results}})
    monkeypatch.setattr(experiment, "weight_names", list)
    logged: list[str] = []
    setting = Setting(instances=32, quick=True)
    output = table1.reproduce_table1(setting, tmp_path, logged.append, kinds=(1,))
    assert [c for c in output.cells if c.origin == "recorded"] == [
        Cell("DGCNN", 1, Quality(**quality), 1.0, "recorded")
    ]
    assert any("FGNN, paper left out: no weights and no record of paper-map-1" in line for line in logged)
    assert "DGCNN*" in output.tables[0].text()
    detail = output.tables[-1]
    (times,) = (dict(zip(detail.heading, row, strict=True)) for row in detail.rows if row[0] == "DGCNN*")
    assert times["ms each"] == "–"  # the record's time is another machine's


@pytest.mark.parametrize(
    ("steps", "note"), [(7175, "41 of 50 epochs"), (8750, ""), (8749, "50 of 50 epochs"), (0, "0 of 50 epochs")]
)
def test_a_record_that_was_cut_short_says_so(steps: int, note: str) -> None:
    record = {"recipe": {"epochs": 50, "batch": 512}, "data": {"instances": 90_000}, "steps": steps}
    assert missing_epochs(record) == note
    assert missing_epochs({"recipe": {"steps": 3}, "data": {}, "steps": 1}) == ""
    assert Cell("DGCNN", 1, Quality(0.6, None, 0, 0, None, 1), 1.0, "recorded", "41 of 50 epochs").label == (
        "DGCNN, 41 of 50 epochs*"
    )


def test_undamped_max_product_cycles_with_period_three() -> None:
    setting = Setting(instances=200)
    examples = fresh_set(setting, 2)
    stops = {name: m for name, m in METHODS.items() if name.startswith("max-product, undamped")}
    answers = [fgnn.solve(examples.models, m.method, **m.options).assignment for m in stops.values()]
    assert (answers[0] == answers[3]).double().mean() > 0.95
    assert all((answers[0] == other).double().mean() < 0.8 for other in answers[1:3])
    cells = solver_cells(setting, 2, examples, stops, lambda text: None)
    agreements = [c.quality.agreement for c in cells]
    row = table1.stops_table(cells, (2,)).rows[0]
    assert [float(text.split()[0]) for text in row[1:5]] == [round(100 * a, 1) for a in agreements]
    assert min(agreements) < 0.542 < max(agreements)  # the paper's number is one that a plain run can give
    main = table1.agreement_table(cells, (2,)).rows
    assert main == [
        [
            "max-product, undamped, 98 to 101 iterations",
            f"{100 * min(agreements):.1f} to {100 * max(agreements):.1f}",
            "54.2 ± 16.4",
        ]
    ]


def test_the_papers_pointnet_scores_as_much_as_the_constant_zero_on_windows_of_nine() -> None:
    setting = Setting(instances=2000, window=9)
    zeros, ones, unaries = trivial_cells(setting, 1, fresh_set(setting, 1))
    assert zeros.quality.agreement == pytest.approx(0.426, abs=0.003)
    assert zeros.quality.deviation == pytest.approx(0.007, abs=0.002)
    assert ones.quality.agreement == pytest.approx(1 - zeros.quality.agreement)
    assert unaries.quality.agreement > ones.quality.agreement


def test_no_other_threshold_on_the_unary_terms_agrees_better() -> None:
    setting = Setting(instances=100)
    threshold = best_threshold(setting, 3)
    fitted_on = fresh_set(replace(setting, instances=1000, seed=1), 3)
    difference = fitted_on.models.unary[..., 1] - fitted_on.models.unary[..., 0]

    def agreement(t: float) -> float:
        return ((difference > t) == fitted_on.labels.bool()).double().mean().item()

    assert agreement(threshold) >= max(agreement(t / 100) for t in range(-101, 102))


def test_a_quick_table_limits_the_slow_methods() -> None:
    quick, full = quick_methods(True), quick_methods(False)
    assert "AD3, branch & bound" in full
    assert "AD3, branch & bound" not in quick
    assert (quick["LP (HiGHS)"].most or 0) <= 500


def test_transfer_to_other_chains(tmp_path: Path) -> None:
    recipe = small_recipe(steps=10, data=Data(chain=ChainData((1, 2, 3), 8, 4, 2)), batch=12)
    _, folder = run(recipe, tmp_path / "run", device="cpu")
    setting = Setting(instances=30)
    shapes = ((8, 4, 2), (20, 4, 2), (8, 5, 3))
    output = reproduce_transfer(setting, tmp_path / "out", print, weights=str(folder.path), chains=shapes)
    assert [row[0] for row in output.tables[0].rows][::3] == [
        "length 8, windows of 4, kind 1",
        "length 20, windows of 4, kind 1",
        "length 8, windows of 5, kind 1",
    ]
    assert all(cell.quality.feasible == 1.0 for cell in output.cells if cell.method.endswith("decode"))
    assert (tmp_path / "out" / "transfer.html").is_file()
