"""toulbar2 finds the optimum, keeps the time limit, and recovers from crashes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.errors import MissingExtra
from fgnn.infer.toulbar2 import process
from tests.infer.counting import counting_models
from tests.infer.oracle import best_score, chain
from tests.strategies import models

pytest.importorskip("pytoulbar2")


@given(models() | counting_models())
def test_it_finds_the_optimum_by_score(model: GraphicalModel) -> None:
    best = best_score(model)
    solution = fgnn.solve(model, "toulbar2")
    assert solution.score == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert solution.status == ("optimal" if best > -np.inf else "infeasible")
    assert solution.bound == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert solution.gap <= 1e-9


@pytest.mark.parametrize("search", ["hbfs", "vns", "btd"])
def test_every_search_proves_the_optimum_of_a_chain(search: str) -> None:
    model = chain(3, length=14, window=5, at_most=2)
    solution = fgnn.solve(model, "toulbar2", search=search, time_limit=30)
    assert solution.score == pytest.approx(best_score(model), rel=1e-9)
    if search != "vns":  # a neighbourhood search may end without a proof
        assert solution.status == "optimal"


def test_a_batch_gives_the_answers_of_its_models_with_any_number_of_children() -> None:
    each = [chain(seed, length=12, window=4, at_most=2) for seed in range(6)]
    impossible = each[0].copy()
    impossible.add_unary(0, [-np.inf, 0.0])
    impossible.add_unary(1, [-np.inf, 0.0])
    impossible.add_unary(2, [-np.inf, 0.0])
    each.append(impossible)
    alone = [fgnn.solve(m, "toulbar2") for m in each]
    for jobs in (1, 3):
        together = fgnn.solve(ModelBatch.stack(each), "toulbar2", jobs=jobs)
        assert together.score.tolist() == [s.score for s in alone]
        assert together.status == ["optimal"] * 6 + ["infeasible"]


def test_models_of_a_batch_have_bounds_of_their_own_beside_those_they_share() -> None:
    each = []
    for most in (1, 3):
        model = GraphicalModel([3] * 3 + [2] * 3)
        model.add_unaries(np.arange(15.0))
        model.add_linear((0, 1, 2, 3), [[0, 1, 5], [2, 1, 0], [0, 2, 4], [3, 0, 9]], at_most=9)
        model.add_budget((3, 4, 5), most)
        model.add_all_different((0, 1, 2))
        each.append(model)
    together = fgnn.solve(ModelBatch.stack(each), "toulbar2")
    assert together.score.tolist() == pytest.approx([best_score(model) for model in each])


def test_many_small_models_share_one_child() -> None:
    batch = ModelBatch.stack([chain(seed, length=10, window=4, at_most=2) for seed in range(40)])
    fgnn.solve(batch.select(slice(0, 1)), "toulbar2")
    before = list(process._idle)
    assert before
    solutions = fgnn.solve(batch, "toulbar2")
    assert set(solutions.status) == {"optimal"}
    assert process._idle == before


def test_scores_far_apart_and_far_from_zero_keep_their_digits() -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([3] * 6)
    model.constant = 1e6
    for i in range(6):
        model.add_unary(i, 1e-4 * rng.normal(size=3))
        model.add_table((i, (i + 1) % 6), np.where(rng.random((3, 3)) < 0.3, -np.inf, 1e3 * rng.normal(size=(3, 3))))
    solution = fgnn.solve(model, "toulbar2")
    assert solution.status == "optimal"
    assert solution.score == pytest.approx(best_score(model), rel=1e-12)


def test_no_proof_is_claimed_when_rounding_could_hide_the_optimum() -> None:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [0.0, 1e-9])
    model.add_table((0, 1), [[0.0, -1e12], [0.0, -1e12]])
    solution = fgnn.solve(model, "toulbar2")
    assert solution.status == "feasible"
    assert solution.bound >= 1e-9


def test_degenerate_models() -> None:
    assert fgnn.solve(GraphicalModel([]), "toulbar2").status == "optimal"
    single = GraphicalModel([1, 2, 1])
    single.add_table((0, 1, 2), [[[1.0], [3.0]]])
    assert fgnn.solve(single, "toulbar2").assignment.tolist() == [0, 1, 0]
    nothing = GraphicalModel([2, 2])
    nothing.add_table((0, 1), np.full((2, 2), -np.inf))
    assert fgnn.solve(nothing, "toulbar2").bound == -np.inf
    flat = GraphicalModel([2, 3])
    assert (fgnn.solve(flat, "toulbar2").status, fgnn.solve(flat, "toulbar2").score) == ("optimal", 0.0)


def test_a_start_is_improved_upon_or_returned() -> None:
    models_ = [chain(seed, length=12, window=4, at_most=2) for seed in range(2)]
    batch = ModelBatch.stack(models_)
    best = fgnn.solve(batch, "toulbar2")
    again = fgnn.solve(batch, "toulbar2", start=best.assignment)
    assert torch.equal(again.assignment, best.assignment)
    assert again.status == ["optimal", "optimal"]
    from_zero = fgnn.solve(batch, "toulbar2", start=torch.zeros_like(best.assignment))
    assert torch.equal(from_zero.score, best.score)
    infeasible = fgnn.solve(batch, "toulbar2", start=torch.ones_like(best.assignment))
    assert torch.equal(infeasible.score, best.score)


def test_the_time_limit_returns_the_best_so_far_with_a_bound() -> None:
    rng = np.random.default_rng(0)
    hard = GraphicalModel([2] * 120)
    for i in range(120):
        for j in rng.choice(120, 6, replace=False):
            if i != j:
                hard.add_table((i, int(j)), rng.normal(size=(2, 2)) * 3)
    updates: list[fgnn.infer.Progress] = []
    begin = time.monotonic()
    solution = fgnn.solve(hard, "toulbar2", time_limit=1.5, progress=updates.append)
    assert time.monotonic() - begin < 4.0
    assert (solution.status, solution.feasible) == ("time-limit", True)
    assert solution.bound > solution.score
    assert updates
    assert updates[-1].bound >= solution.score


def _pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Replace the child by a script that reads its two messages, then does as it pleases."""
    script = tmp_path / "child.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, signal, sys, time
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        for _ in range(2):
            head = json.loads(sys.stdin.buffer.readline())
            sys.stdin.buffer.read(8 * (head["ints"] + head["floats"]))
        """)
        + textwrap.dedent(body)
    )
    monkeypatch.setattr(process, "_WORKER", script)
    monkeypatch.setattr(process, "_idle", [])


def test_a_child_that_hangs_is_killed_and_its_last_solution_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _pretend(
        monkeypatch,
        tmp_path,
        r"""
        sys.stderr.write(f"pid {os.getpid()}\nNew solution: 5 (0 backtracks)\n 0 1 1\nOptimality gap: [1, 5] 80 %\n")
        sys.stderr.flush()
        time.sleep(60)
        """,
    )
    model = GraphicalModel([2, 2, 2])
    for i in range(3):
        model.add_unary(i, [0.0, -1.0])
    begin = time.monotonic()
    solution = fgnn.solve(model, "toulbar2", time_limit=0.5, search="hbfs")
    assert time.monotonic() - begin < 3.0
    assert (solution.status, solution.assignment.tolist()) == ("time-limit", [0, 1, 1])
    assert solution.score == -2.0  # by our count, whatever the child printed
    assert not process._idle


def test_a_child_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pretend(monkeypatch, tmp_path, "os.abort()")
    model = GraphicalModel([2, 2])
    model.add_unary(0, [0.0, 1.0])
    with pytest.raises(RuntimeError, match=r"toulbar2 failed on model 0: .* died"):
        fgnn.solve(model, "toulbar2")
    start = torch.tensor([[0, 1]])
    solution = fgnn.solve(model, "toulbar2", start=start)  # with an answer at hand, that is the answer
    assert (solution.status, solution.assignment.tolist()) == ("feasible", [0, 1])


def test_a_child_does_not_outlive_its_parent() -> None:
    psutil = pytest.importorskip("psutil")
    code = """
        import os, threading, time, numpy as np, fgnn
        from fgnn.infer.toulbar2 import process
        rng = np.random.default_rng(0)
        hard = fgnn.GraphicalModel([2] * 100)
        for i in range(100):
            for j in range(i):
                hard.add_table((j, i), rng.normal(size=(2, 2)))
        def leave(update):
            import psutil
            print(psutil.Process().children()[0].pid, flush=True)
            os.kill(os.getpid(), 9)
        fgnn.solve(hard, "toulbar2", search="hbfs", progress=leave)
    """
    parent = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, timeout=60, check=False)
    child = int(parent.stdout)
    for _ in range(50):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    pytest.fail(f"the child {child} is still there")


def test_a_wrong_solution_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pretend(
        monkeypatch,
        tmp_path,
        """
        print(json.dumps({"id": 0, "x": [1, 1], "lower": 0, "nodes": 1, "limited": False}), flush=True)
        sys.stdin.buffer.read()
        """,
    )
    model = GraphicalModel([2, 2])
    model.add_budget((0, 1), at_most=1)
    with pytest.raises(RuntimeError, match="breaks a constraint"):
        fgnn.solve(model, "toulbar2", search="hbfs")


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GraphicalModel([2, 2])
    with pytest.raises(ValueError, match="Expected a search among auto, hbfs, vns, btd"):
        fgnn.solve(model, "toulbar2", search="dfs")
    with pytest.raises(ValueError, match="Expected a start of shape"):
        fgnn.solve(model, "toulbar2", start=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="no setting nonsense"):
        fgnn.solve(model, "toulbar2", settings={"nonsense": 1})
    monkeypatch.setitem(sys.modules, "pytoulbar2", None)
    with pytest.raises(MissingExtra, match=r"fgnn\[solvers\]"):
        fgnn.solve(model, "toulbar2")
