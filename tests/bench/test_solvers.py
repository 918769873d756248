"""The benchmarks run on a few models, and what they compare does the same work."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

import fgnn
from fgnn.bench import solvers
from fgnn.bench.chain_table import Method, chain_table, print_table
from fgnn.bench.common import number, timed, write_result
from fgnn.bench.numpy_max_product import numpy_max_product
from fgnn.data import ChainMAP

FEW = {
    "exact": Method("exact"),
    "max-product": Method("max-product"),
    "some": Method("max-product", {"damping": 0.0}, 3),
}


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_numpy_loop_does_the_work_of_max_product(kind: int) -> None:
    batch = ChainMAP(kind).sample(10, seed=1, dtype=torch.float64)
    # few, because messages that never settle make other decisions of other roundings in the end
    ours = fgnn.solve(batch, "max-product", iterations=30, tolerance=1e-3)
    for b in range(10):
        assignment, iterations = numpy_max_product(batch.model(b), iterations=30, tolerance=1e-3)
        assert iterations == ours.iterations[b]
        assert assignment.tolist() == ours.assignment[b].tolist()


def test_the_chain_table_compares_with_the_optimum() -> None:
    rows = chain_table(kinds=(1, 3), count=6, methods=FEW, seed=2)
    assert [(r.name, r.kind, r.models) for r in rows] == [
        (name, kind, most) for kind in (1, 3) for name, most in (("exact", 6), ("max-product", 6), ("some", 3))
    ]
    data = ChainMAP(3)
    batch = data.sample(6, seed=2)
    found = fgnn.solve(batch, "max-product")
    agree = 100 * (found.assignment == data.labels(batch)).double().mean().item()
    assert rows[4].agree == pytest.approx(agree)
    assert rows[4].infeasible == pytest.approx(100 * (~found.feasible).double().mean().item())
    assert all(row.optimal == row.agree == 100 for row in rows if row.name == "exact")


def test_the_chain_table_fits_80_columns() -> None:
    text = io.StringIO()
    print_table(chain_table(count=4, methods=FEW), Console(file=text, width=80))
    assert "100/100/100" in text.getvalue()
    assert "some saw 3" in text.getvalue()
    assert "…" not in text.getvalue()


def test_the_solver_bench_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "_LP_MODELS": 4,
        "_TOULBAR2_MODELS": 2,
        "_LOOP_MODELS": 2,
        "_VARIABLES": 200,
        "_SWEEPS": 3,
    }.items():
        monkeypatch.setattr(solvers, name, value)
    monkeypatch.setattr(solvers, "timed", partial(timed, repeats=1, warmup=0))
    monkeypatch.setitem(solvers.OPTIONS, "ad3", {"iterations": 20})
    monkeypatch.setattr(solvers, "LENGTHS", (20, 40))
    monkeypatch.setattr(solvers, "WINDOWS", (8, 10))
    result = solvers.run(count=8, out=str(tmp_path))
    kept = json.loads((tmp_path / "solvers-cpu.json").read_text())
    assert kept["methods"]["exact"]["optimal"] == 100
    assert kept["methods"]["NumPy loop"]["agree"] > 50
    assert kept["ratios"].keys() == result["ratios"].keys()
    assert [entry["feasible_states"] for entry in kept["windows"]] == [120, 382]
    assert {"commit", "date", "cpu", "torch"} <= kept["environment"].keys()
    printed = capsys.readouterr().out
    assert "Growth with the length" in printed
    assert "max-product : NumPy loop" in printed


def test_feasible_states_are_those_of_the_last_variables() -> None:
    assert solvers.feasible_states(20, 5) == 16_664
    assert solvers.growth_exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)


def test_a_timing_is_a_median_with_its_result() -> None:
    taken = timed(lambda: torch.zeros(10), repeats=3)
    assert taken.best <= taken.median
    assert taken.result.shape == (10,)


def test_results_go_where_they_are_asked_to(tmp_path: Path) -> None:
    assert write_result("a", {}, tmp_path) == tmp_path / "a.json"
    assert write_result("a", {}, tmp_path / "b.json") == tmp_path / "b.json"


@pytest.mark.parametrize(("value", "text"), [(None, None), (0.01234, "0.0123"), (12.34, "12.3"), (12_345.6, "12,346")])
def test_numbers_are_short(value: float | None, text: str | None) -> None:
    assert number(value) == text
