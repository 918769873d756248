"""What only a GPU can show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fgnn.bench.training import bench_training
from fgnn.data import ChainMAP
from fgnn.infer.decode import decode
from fgnn.models.config import NetworkConfig
from fgnn.train.distributed import World
from fgnn.train.run import run
from fgnn.train.sources import Endless
from tests.train.helpers import small_recipe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_labels_on_the_gpu_are_those_of_the_cpu(kind: int) -> None:
    data = ChainMAP(kind)
    batch = data.sample(500, seed=1, source="cpu")
    assert torch.equal(data.labels(batch.to("cuda")).cpu(), data.labels(batch))


def test_batches_cut_from_one_block_are_fresh_mixed_and_labelled() -> None:
    sets = [ChainMAP(k) for k in (1, 2, 3)]
    source = Endless(sets, 96, 5, World(), torch.device("cuda"))
    first, second = source.batch(0), source.batch(1)
    assert len(first) == 96
    assert not torch.equal(first.models.unary, second.models.unary)
    fixed = (first.models.budgets[0].at_most == 5).all(1)  # kinds 1 and 2
    assert 48 <= int(fixed.sum()) <= 80
    assert torch.equal(first.labels, sets[0].labels(first.models))


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
