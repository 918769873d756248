"""What only a GPU can show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fgnn.bench.training import bench_training
from fgnn.data import ChainMAP
from fgnn.infer.decode import decode
from fgnn.models.config import NetworkConfig
from fgnn.train.run import run
from fgnn.train.sources import quick_labels
from fgnn.train.window_labels import window_labels
from tests.train.helpers import small_recipe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_labels_on_the_gpu_are_those_of_the_cpu(kind: int) -> None:
    data = ChainMAP(kind)
    batch = data.sample(500, seed=1, source="cpu")
    assert torch.equal(window_labels(batch.to("cuda"), 8).cpu(), data.labels(batch))
    assert torch.equal(quick_labels(data, batch.to("cuda")).cpu(), data.labels(batch))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_in_bf16(tmp_path: Path, compiled: bool) -> None:
    recipe = small_recipe(precision="bf16", batch=64, steps=200, network=NetworkConfig("deep", width=32, blocks=3))
    state, folder = run(recipe, tmp_path / "run", device="cuda", compile=compiled)
    assert folder.lines()[-1]["loss"] < folder.lines()[0]["loss"]
    assert state.metrics is not None
    assert state.metrics["agreement"] > 0.7


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    run(small_recipe(), tmp_path / "run", device="cuda", time_budget=1e-9)
    state, _ = run(tmp_path / "run", device="cuda", resume=True)
    assert state.step == 40


def test_decoding_gives_the_cpus_scores() -> None:
    batch = ChainMAP(2).sample(300, seed=2, source="cpu")
    one, two = decode(batch, batch.unary), decode(batch.to("cuda"), batch.unary.to("cuda"))
    torch.testing.assert_close(batch.score(one), batch.score(two.cpu()))


def test_the_bench_runs() -> None:
    times = bench_training(small_recipe(), device="cuda", steps=3, warmup=1)
    assert times.per_second > 0
