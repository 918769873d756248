"""Models divided among threads: the same answers, unchanged settings of the caller, and an end when one fails."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fgnn
from fgnn.data import ChainMAP
from fgnn.infer import threads as workers
from fgnn.infer.threads import shares, side_by_side


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("method", "options"), [("max-product", {"keep_beliefs": True}), ("ad3", {})])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.usefixtures("two_threads")
def test_shares_give_the_answers_of_the_whole(
    method: str, options: dict[str, Any], inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_FEWEST", 1000)
    with torch.inference_mode(inference):
        batch = ChainMAP(2, length=12).sample(131, seed=0)
        shared = fgnn.solve(batch, method, iterations=60, **options)
        monkeypatch.setattr(workers, "_FEWEST", 10**9)
        whole = fgnn.solve(batch, method, iterations=60, **options)
    assert len(shared) == 131
    assert shared.assignment.tolist() == whole.assignment.tolist()
    assert shared.iterations.tolist() == whole.iterations.tolist()
    assert torch.allclose(shared.bound, whole.bound)
    for name, value in whole.info.items():
        assert torch.allclose(shared.info[name], value, atol=1e-5)


@pytest.mark.usefixtures("two_threads")
def test_every_model_is_in_one_share() -> None:
    assert shares(10, 242, torch.device("cpu")) == [slice(0, 10)]
    assert shares(201, 242, torch.device("cpu")) == [slice(0, 100), slice(100, 201)]
    assert shares(3, 50_000, torch.device("cpu")) == [slice(0, 1), slice(1, 3)]
    assert shares(10_000, 242, torch.device("meta")) == [slice(0, 10_000)]


@pytest.mark.usefixtures("two_threads")
def test_jobs_use_one_core_each_and_the_caller_keeps_its_settings() -> None:
    settings: list[tuple[int, bool, float]] = []

    def look() -> None:
        tiny = torch.tensor([1e-30]) * torch.tensor([1e-12])
        settings.append((torch.get_num_threads(), torch.is_grad_enabled(), float(tiny)))

    with torch.no_grad():
        side_by_side([look, look], lambda: None)
    assert [setting[:2] for setting in settings] == [(1, False)] * 2
    assert torch.get_num_threads() == 2
    assert float(torch.tensor([1e-30]) * torch.tensor([1e-12])) > 0  # no zero here


def test_one_that_fails_ends_the_others() -> None:
    stop = threading.Event()

    def fail() -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        side_by_side([fail, lambda: _wait_for(stop)], stop.set)


def _wait_for(stop: threading.Event) -> None:
    assert stop.wait(60)


@pytest.mark.usefixtures("two_threads")
def test_a_time_limit_reaches_every_share() -> None:
    batch = ChainMAP(3, length=60).sample(400, seed=0)
    for method in ("max-product", "ad3"):
        solutions = fgnn.solve(batch, method, iterations=10**7, tolerance=1e-30, time_limit=0.5)
        assert "time-limit" in solutions.status[:200]
        assert "time-limit" in solutions.status[200:]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_pool_forked_after_a_threaded_solve_does_not_hang() -> None:
    code = """
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        import torch, fgnn
        torch.set_num_threads(2)
        batch = fgnn.data.ChainMAP(2).sample(300, seed=0)

        def solve(method):
            return fgnn.solve(batch, method).score.sum().item()

        here = [solve(method) for method in ("exact", "max-product", "ad3")]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            there = pool.map(solve, ["exact", "max-product", "ad3"])
        assert here == there, (here, there)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["auto", "exact", "lp", "max-product", "ad3", "fgnn"])
def test_an_empty_batch_has_no_answers(method: str) -> None:
    solutions = fgnn.solve(ChainMAP(1).sample(2, seed=0).select(slice(0, 0)), method)
    assert len(solutions) == 0
    assert solutions.assignment.shape == (0, 30)
    assert solutions.gap.shape == (0,)
