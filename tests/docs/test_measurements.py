"""Stored measurements on the pages: every file is listed, and the tables have its numbers."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.pages import DOCS, ROOT

RESULTS = ROOT / "benchmarks" / "results"
NAMES = (
    "solvers.md", "results.md", "results-chains.md", "results-points.md", "marginals.md", "decoding.md",
    "decoding-circuits.md",
)  # fmt: skip
PAGES = "".join((DOCS / name).read_text(encoding="utf-8") for name in NAMES)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import measurements

    return measurements


def payload(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_every_file_is_listed_once_with_its_numbers_a_click_away(measurements: Any) -> None:
    index = measurements.index_markdown()
    linked = re.findall(r"\[JSON\]\(\.\./benchmarks/results/([\w.-]+)\)", index)
    assert sorted(linked) == sorted(file.name for file in RESULTS.glob("*.json"))
    for line in index.splitlines():
        if "[JSON]" in line:
            shows = line.split(" | ")[0]
            assert re.match(r"\| \[?[A-Z]", shows), f"says nothing to a reader: {shows}"
            assert "_" not in shows.split("](")[0], shows


def test_the_index_names_files_and_places_that_exist(measurements: Any) -> None:
    for entries in measurements.ABOUT.values():
        for stem, (_, page) in entries.items():
            assert (RESULTS / f"{stem}.json").is_file(), stem
            assert (DOCS / page.split("#")[0]).is_file(), page
    assert all((RESULTS / f"{stem}.json").is_file() for stem in measurements.AGAIN)


def test_a_new_file_is_listed_by_what_it_says_of_itself(measurements: Any, tmp_path: Path) -> None:
    (tmp_path / "new_one.json").write_text(
        '{"what": "rates of a code; 5 seeds", "command": "fgnn bench new", "environment": {"device": "B"}}'
    )
    (tmp_path / "list.json").write_text("[1, 2]")
    index = measurements.index_markdown(tmp_path)
    assert "**Other**" in index
    assert "| Rates of a code | B | `fgnn bench new` | [JSON](../benchmarks/results/new_one.json) |" in index
    assert "| List |" in index
    assert "No results are stored" in measurements.index_markdown(tmp_path / "none")


def test_tables_have_the_numbers_of_the_files(measurements: Any) -> None:
    assert "| FGNN + decode + refine | 98.8 | 91.4 | 100.0 | 0.024 | 19.4 | 500 |" in measurements.grids(
        payload("map_grids")
    )
    transfer = payload("map_transfer")
    first = [row for row in transfer["rows"] if row["chains"] == transfer["rows"][0]["chains"]]
    cells = [f"{row[key]:.1f}" for key in ("raw, agreement %", "decoded, optimal %") for row in first]
    assert f"| {first[0]['chains']} | {' | '.join(cells)} |" in measurements.transfer(transfer)
    aerial = payload("lidar_aerial")
    assert f"| SMRF | {100 * aerial['summary']['smrf']['mean']:.2f} |" in measurements.aerial(aerial)
    scans = measurements.aerial_scans(aerial)
    assert all(f"| {scan} |" in scans for scan in aerial["results"])
    mar = payload("marginals-mar")
    errors = [mar["summary"]["MAR"][f"auto, {key} error"] for key in ("all: mean", "all: median", "not exact: mean")]
    assert "| `auto` | {:.2g} | {:.2g} | {:.2g} |".format(*errors) in measurements.marginals(mar)
    small = payload("map_small_scale")
    assert all(f"| {run['network']} |" in measurements.small_scale(small) for run in small["runs"])


def test_error_rates_have_intervals_with_the_same_exponent(measurements: Any) -> None:
    rate = importlib.import_module("decoding_tables").rate
    assert rate({"rate": 3.07e-3, "errors": 289, "interval": [2.73e-3, 3.44e-3]}) == "3.1e-3 (2.7–3.4)"
    assert rate({"rate": 0.047, "errors": 94, "interval": [0.0386, 0.0572]}) == "4.70 % (3.86–5.72)"
    assert rate({"rate": 0.0, "errors": 0, "interval": [0.0, 0.0148]}) == "0 (below 1e-02)"
    assert rate(None) == "–"
    stored = payload("decoding-cpu")
    row = stored["tables"]["surface code, d = 3, p = 0.005"]["PyMatching"]
    cells = f"| PyMatching | {row['shots']:,} | {rate(row)} | "
    assert cells in measurements.TABLES["fgnn-decoding-cpu-surface-3"][1](stored)


def test_charts_are_part_of_the_page(measurements: Any) -> None:
    for name, make in (("map_depth", measurements.depth), ("map_learning", measurements.learning)):
        chart = make(payload(name))
        assert "<svg" in chart
        assert "no data" not in chart


def test_every_table_is_on_a_page_and_a_missing_file_is_reported(
    measurements: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(re.findall(r"```\{(fgnn-[\w-]+)\}", PAGES)) >= {"fgnn-measurements", *measurements.TABLES}
    monkeypatch.setattr(measurements, "RESULTS", ROOT / "nowhere")
    for file, make in measurements.TABLES.values():
        assert "No run is stored" in measurements.stored(file, make)()


# ---- figures in prose -----------------------------------------------------------------------------------------


def test_the_tables_of_the_readme_and_of_molecules_agree_with_the_files() -> None:
    cells = {(cell["method"], cell["kind"]): cell["quality"]["agreement"] for cell in payload("table1")["cells"]}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for method, about in (
        ("FGNN, deep, sum aggregation", "deep FGNN with sum aggregation"),
        ("FGNN, paper", "the paper's architecture"),
        ("max-product, damped", "damped max-product"),
    ):
        assert " / ".join(f"{100 * cells[method, kind]:.1f}" for kind in (1, 2, 3)) + f" % ({about})" in readme
    page = (DOCS / "problems" / "molecules.md").read_text(encoding="utf-8")
    runs = payload("qm7")["runs"]
    for name in sorted({run["network"] for run in runs}):
        rows = [run for run in runs if run["network"] == name]
        errors = [[row[part] for row in rows] for part in ("validation", "test")]
        validation, test = (f"{np.mean(e):.2f} ± {np.std(e, ddof=1):.2f}" for e in errors)
        shown = f"{name} | {rows[0]['parameters']:,} | {validation} | {test} |"
        assert shown in page, shown
        assert f"{np.mean([row['seconds'] for row in rows]):.0f} s" in page


def test_figures_in_prose_agree_with_the_files() -> None:
    aerial = payload("lidar_aerial")["summary"]
    ours, smrf = aerial["lidar-aerial"], aerial["smrf"]
    assert f"The mean is {100 * (1 - ours['mean'] / smrf['mean']):.0f} % below SMRF's" in PAGES
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{100 * ours['mean']:.1f} / {100 * ours['median']:.1f} %" in readme
    assert f"{100 * smrf['mean']:.1f} / {100 * smrf['median']:.1f} % (SMRF)" in readme
    grids = {row["method"]: row for row in payload("map_grids")["8 x 8, against the proved optimum"]}
    found = [grids[f"{name} + decode + refine"]["optimal %"] for name in ("FGNN", "max-product", "AD3")]
    assert f"finds the proved optimum of {found[0]:.0f} %" in PAGES
    assert f"max-product finds {found[1]:.0f} % and AD3 {found[2]:.0f} %" in PAGES
    alone = [grids[name]["optimal %"] for name in ("LP (HiGHS)", "AD3", "max-product, damped")]
    assert "LP, AD3 and damped max-product find {:.0f}, {:.0f} and {:.0f} %".format(*alone) in PAGES
    assert f"{found[0]:.0f} % | {found[1]:.0f} % (max-product with local search), {found[2]:.0f} % (AD3" in readme


def test_figures_of_larger_grids_agree_with_the_file() -> None:
    stored, text = payload("map_grids"), " ".join(PAGES.split())
    middle, large = (
        {row["method"].removesuffix(" + decode + refine"): row["score lost to the best"] for row in stored[key]}
        for key in ("20 x 20, 5 s each, 5 grids", "50 x 50, 15 s each, 4 grids")
    )
    assert f"(losing {middle['FGNN']} of the score on average)" in text
    assert f"toulbar2 loses {float(middle['toulbar2']):.1f}" in text
    assert f"max-product ({float(large['max-product']):.1f} lost) and AD3 ({float(large['AD3']):.1f})" in text
    assert float(large["FGNN"]) == 0


def test_figures_of_airborne_scans_agree_with_the_file() -> None:
    stored, text = payload("lidar_aerial"), " ".join(PAGES.split())
    errors = {scan: {name: 100 * row[name]["total"] for name in row} for scan, row in stored["results"].items()}
    won = sum(min(row, key=lambda name: row[name]) == "lidar-aerial" for row in errors.values())
    assert f"best of the three on {won} of the {len(errors)} scans" in text
    for scan, peer, shown in (
        ("eucalypt_forest", "smrf", "({:.1f} against {:.1f}), where it misses"),
        ("samp41", "smrf", "samp41 {:.1f} against {:.1f}"),
        ("ign_bat", "pmf", "ign_bat {:.1f} against {:.1f}"),
        ("laspy_autzen_trim", "pmf", "autzen {:.1f} against {:.1f}"),
    ):
        assert shown.format(errors[scan]["lidar-aerial"], errors[scan][peer]) in text, scan
    towns = stored["iou"]["towns"]
    assert f"{towns['ground']:.2f} for ground, {towns['building']:.2f} for building" in text
    assert f"{towns['high vegetation']:.2f} for high vegetation, {towns['low vegetation']:.2f} for low" in text
    assert f"{towns['other']:.2f} for other" in text
    isprs = [100 * stored["summary"][name]["isprs_mean"] for name in ("lidar-aerial", "smrf")]
    assert "{:.1f} % on the mean, against {:.1f} % for SMRF".format(*isprs) in text


def test_the_limits_of_airborne_weights_agree_with_the_file() -> None:
    stored, text = payload("lidar_aerial"), " ".join((DOCS / "segmenting.md").read_text(encoding="utf-8").split())
    iou, mean = stored["iou"]["all"], stored["summary"]["lidar-aerial"]
    assert f"{iou['bridge']:.2f}" == f"{iou['water']:.2f}" == "0.00"
    assert "no bridges and no water** (IoU 0.00)" in text
    assert f"Low vegetation (IoU {iou['low vegetation']:.2f}) and other ({iou['other']:.2f})" in text
    errors = {scan: {name: row[name]["total"] for name in row} for scan, row in stored["results"].items()}
    lost = sum(row["smrf"] < row["lidar-aerial"] for scan, row in errors.items() if scan.startswith("samp"))
    high = sum(row["lidar-aerial"] > 0.1 for row in errors.values())
    assert (lost, high) == (5, 3)
    assert f"{100 * mean['mean']:.1f} % of the points on the mean of {len(errors)} scans" in text
    assert f"{100 * mean['isprs_mean']:.1f} % on the fifteen ISPRS samples, of which five are better" in text
    assert "more than 10 % on three scans" in text
