"""The solver benchmark on a few models; peers run the same algorithm."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

import fgnn
from fgnn.bench import growth, solvers
from fgnn.bench.common import number, timed, write_result
from fgnn.bench.numpy_messages import numpy_max_product
from fgnn.bench.pgmax_max_product import pgmax_max_product
from fgnn.data import ChainMAP


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_numpy_loop_equals_max_product(kind: int) -> None:
    batch = ChainMAP(kind).sample(10, seed=1, dtype=torch.float64)
    # few iterations, because rounding eventually separates messages that do not converge
    ours = fgnn.solve(batch, "max-product", iterations=30, tolerance=1e-3)
    for b in range(10):
        assignment, iterations = numpy_max_product(batch.model(b), iterations=30, tolerance=1e-3)
        assert iterations == ours.iterations[b]
        assert assignment.tolist() == ours.assignment[b].tolist()


def test_the_solver_bench_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"_LP_MODELS": 4, "_TOULBAR2_MODELS": 2, "_LOOP_MODELS": 2, "_PGMAX_MODELS": 2}.items():
        monkeypatch.setattr(solvers, name, value)
    monkeypatch.setattr(growth, "_VARIABLES", {"cpu": 200})
    monkeypatch.setattr(growth, "_SWEEPS", 3)
    for module in (growth, solvers):
        monkeypatch.setattr(module, "timed", partial(timed, repeats=1, warmup=0))
    monkeypatch.setitem(solvers.OPTIONS, "ad3", {"iterations": 20})
    few = partial(growth.growth, lengths=(20, 40), windows=(8, 10))
    monkeypatch.setattr(solvers, "growth", few)
    result = solvers.run(count=8, out=str(tmp_path))
    stored = json.loads((tmp_path / "solvers-cpu.json").read_text())
    assert stored["methods"]["exact"]["optimal"] == 100
    assert stored["methods"]["NumPy loop"]["agree"] > 50
    assert stored["ratios"].keys() == result["ratios"].keys()
    assert [entry["feasible_states"] for entry in stored["windows"]] == [120, 382]
    assert {"commit", "date", "cpu", "torch"} <= stored["environment"].keys()
    printed = capsys.readouterr().out
    assert "Growth with the length" in printed
    assert "max-product : NumPy loop" in printed
    assert (tmp_path / "solvers-cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "auto, one model" in (tmp_path / "solvers-cpu.svg").read_text()


def test_toulbar2_skips_chains_longer_than_it_can_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytoulbar2")
    monkeypatch.setattr(growth, "_VARIABLES", {"cpu": 1})
    monkeypatch.setattr(growth, "timed", partial(timed, repeats=1, warmup=0))
    rows = growth.table([ChainMAP(2, length=n) for n in (10, 200, 210)], "cpu", 0, 1.0)
    assert [row.get("toulbar2_status") for row in rows] == ["optimal", "time-limit", None]
    assert rows[0]["toulbar2_short_by"] == pytest.approx(0.0, abs=1e-6)
    assert rows[1]["toulbar2_short_by"] >= -1e-6


@pytest.mark.parametrize("kind", [1, 2])
def test_pgmax_agrees_with_max_product(kind: int) -> None:
    pytest.importorskip("pgmax")
    batch = ChainMAP(kind, length=12).sample(4, seed=1)
    assignment, _ = pgmax_max_product(batch, iterations=30)
    ours = fgnn.solve(batch, "max-product", iterations=30, tolerance=-1.0)
    assert float((assignment == ours.assignment).double().mean()) > 0.9


def test_feasible_states_and_growth_exponent() -> None:
    assert growth.feasible_states(20, 5) == 16_664
    assert growth.growth_exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)


def test_a_timing_is_a_median_with_its_result() -> None:
    timing = timed(lambda: torch.zeros(10), repeats=3)
    assert timing.best <= timing.median
    assert timing.result.shape == (10,)


def test_results_are_written_to_a_file_or_folder(tmp_path: Path) -> None:
    assert write_result("a", {}, tmp_path) == tmp_path / "a.json"
    assert write_result("a", {}, tmp_path / "b.json") == tmp_path / "b.json"


@pytest.mark.parametrize(("value", "text"), [(None, None), (0.01234, "0.0123"), (12.34, "12.3"), (12_345.6, "12,346")])
def test_numbers_are_short(value: float | None, text: str | None) -> None:
    assert number(value) == text
