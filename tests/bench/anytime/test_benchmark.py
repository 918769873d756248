"""The benchmark as a whole: runs, curves, slices that continue, and the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.bench.anytime import benchmark
from fgnn.bench.anytime.instances import Instance
from fgnn.bench.anytime.methods import Recorder
from fgnn.bench.anytime.summary import gap, gap_area, score_at, steps, summarise
from fgnn.bench.anytime.worker import Run, measure
from fgnn.errors import InputError
from fgnn.pgm import GraphicalModel


def record(method: str, limit: float, *curve: tuple[float, float | None]) -> dict[str, Any]:
    last = curve[-1][1] if curve else None
    return {
        "instance": "a/b", "method": method, "limit": limit, "score": last, "seconds": limit + 0.1,
        "curve": [[t, s, None] for t, s in curve],
    }  # fmt: skip


def test_a_score_at_a_time_is_of_its_own_run_or_of_the_curve_up_to_then() -> None:
    runs = [record("auto", 1.0, (0.5, 3.0), (1.02, 4.0)), record("auto", 5.0, (0.9, 2.0), (4.0, 9.0))]
    assert score_at(runs, 1.0) == 4.0  # the answer of the run with this limit counts, even if it ends a little late
    assert score_at(runs, 3.0) == 4.0  # no run has this limit
    assert score_at([*runs, record("auto", 3.0, (2.0, 1.0))], 3.0) == 1.0
    assert score_at(runs, 5.0) == 9.0
    assert score_at(runs, 0.6) == 3.0
    assert steps(runs) == [(0.5, 3.0), (1.02, 4.0), (4.0, 9.0)]


def test_the_gap_is_relative_and_one_without_an_answer() -> None:
    assert gap(90.0, 100.0) == pytest.approx(0.1)
    assert gap(-0.5, 0.0) == 0.5
    assert gap(None, 100.0) == 1.0
    assert gap(101.0, 100.0) == 0.0
    assert gap(-20.0, -2.0, scale=200.0) == pytest.approx(0.09)


def test_the_area_is_the_mean_gap_over_the_time() -> None:
    # no answer for 1 s, a gap of 10 % for 3 s, none for the last 6 s
    assert gap_area([(1.0, 90.0), (4.0, 100.0)], 100.0, 10.0) == pytest.approx((1 + 0.3) / 10)
    assert gap_area([], 100.0, 10.0) == 1.0
    assert gap_area([(12.0, 100.0)], 100.0, 10.0) == 1.0


def test_wins_are_counted_against_peers_and_parts() -> None:
    runs = {
        "1": record("auto", 1.0, (0.5, 99.0)),
        "2": record("search", 1.0, (0.5, 100.0)),
        "3": record("toulbar2", 1.0, (0.5, 99.0)),
        "4": record("tree moves alone", 1.0, (0.5, 99.5)),
    }
    wins = summarise(runs, {}, ["auto", "search"])["wins"]
    assert wins["search"]["best or equal, 1 s"] == "1 of 1"
    assert wins["search"]["behind a part by more than 0.1 %"] == 0
    assert wins["auto"]["best or equal, 1 s"] == "0 of 1"
    assert wins["auto"]["behind a part by more than 0.1 %"] == 1


def test_a_recorder_keeps_improvements_of_score_or_bound() -> None:
    recorder = Recorder(GraphicalModel([2]))
    for t, s, b in [(0.1, np.int64(1), 9.0), (0.2, 0.5, 9.5), (0.3, 2.0, float("inf")), (0.4, -float("inf"), 8.0)]:
        recorder.point(t, s, b)
    assert recorder.curve() == [(0.1, 1.0, 9.0), (0.3, 2.0, 9.0), (0.4, 2.0, 8.0)]
    json.dumps(recorder.curve())


def test_slices_fill_one_result_and_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def pretend(run: Run, instance: object) -> dict[str, Any]:
        measured.append(run.key)
        if run.method == "max-product":
            return {"error": "the process died"}
        return {"score": 1.0, "bound": None, "proved": False, "seconds": 1.0, "curve": [[0.5, 1.0, None]]}

    monkeypatch.setattr(benchmark, "measure", pretend)
    common: dict[str, Any] = {"out": tmp_path / "r.json", "threads": 1, "quiet": True, "data": tmp_path}
    benchmark.run(only=["sat/*-s0"], methods=["auto", "max-product"], seconds=[1, 2], **common)
    assert len(measured) == 3  # max-product runs once, with the longest limit
    benchmark.run(only=["sat/*-s[01]"], methods=["auto"], seconds=[1, 2], **common)
    assert len(measured) == 5
    benchmark.run(only=["sat/*-s0"], methods=["auto", "max-product"], seconds=[1, 2], **common)
    assert measured[5:] == ["sat/500v2125c-s0 | max-product | 2 s"]  # what failed is tried again
    result = benchmark.run(only=["sat/*-s0"], methods=["auto"], seconds=[2], again=["auto"], **common)
    assert measured[6:] == ["sat/500v2125c-s0 | auto | 2 s"]
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["runs"].keys() == result["runs"].keys()
    assert "score against time" in (tmp_path / "r.html").read_text()
    with pytest.raises(InputError, match=r"r\.json: .*--threads"):
        benchmark.run(only=["sat/*-s0"], **(common | {"threads": 2}))


def test_a_method_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"CP-SAT.*got chess"):
        benchmark.run(methods=["chess"], out=tmp_path)


def test_a_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    result = benchmark.run(
        only=["budgets/20x20-s0"],
        methods=["max-product"],
        seconds=[0.5],
        out=tmp_path / "r.json",
        threads=1,
        quiet=True,
    )
    (run,) = result["runs"].values()
    assert "error" not in run, run
    assert run["score"] is not None
    assert run["curve"][-1][1] == run["score"]


def test_a_method_runs_only_where_it_can_read_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    answer = {"score": 1.0, "bound": None, "proved": False, "seconds": 1.0, "curve": [[0.5, 1.0, None]]}
    monkeypatch.setattr(benchmark, "missing", lambda method: None)
    monkeypatch.setattr(benchmark, "measure", lambda run, instance: measured.append(run.instance) or dict(answer))
    only = ["sat/*-s0", "budgets/20x20-s0"]
    benchmark.run(only=only, methods=["guided*"], seconds=[1], out=tmp_path / "r.json", threads=1, quiet=True)
    assert measured == ["budgets/20x20-s0"]


def broken() -> GraphicalModel:
    raise ValueError("no such model\nat all")


def test_what_fails_in_the_process_is_one_line() -> None:
    record = measure(Run("a/b", "max-product", 1.0, 1, 0), Instance("a/b", broken))
    assert record == {"error": "no such model"}
