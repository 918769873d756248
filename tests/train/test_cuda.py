"""Training on a GPU."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fgnn.bench.training import bench_training
from fgnn.data import ChainMAP, GridMAP
from fgnn.infer.exact.max_marginals import Band, gaps
from fgnn.infer.local_search.decode import decode
from fgnn.infer.local_search.refine import refine
from fgnn.models.map.config import NetworkConfig
from fgnn.nn.cuda_graph import recording
from fgnn.runtime.distributed import World
from fgnn.tasks.labelled_models import Endless
from fgnn.tasks.map import MAPTask
from fgnn.tasks.recipe import Soft
from fgnn.train.loop import autocast_loss, compile_network
from fgnn.train.run import run
from fgnn.train.step import Step
from tests.tasks.helpers import small_recipe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_gpu_labels_equal_cpu_labels(kind: int) -> None:
    data = ChainMAP(kind)
    batch = data.sample(500, seed=1, source="cpu")
    assert torch.equal(data.labels(batch.to("cuda")).cpu(), data.labels(batch))


def test_batches_of_one_block_are_fresh_mixed_and_labelled() -> None:
    sets = [ChainMAP(k) for k in (1, 2, 3)]
    source = Endless(sets, 96, 5, World(), torch.device("cuda"))
    first, second = source.batch(0), source.batch(1)
    assert len(first) == 96
    assert not torch.equal(first.models.unary, second.models.unary)
    fixed = (first.models.budgets[0].at_most == 5).all(1)  # kinds 1 and 2
    assert 48 <= int(fixed.sum()) <= 80
    assert torch.equal(first.labels, sets[0].labels(first.models))


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_gpu_gaps_equal_cpu_gaps_and_can_be_captured(kind: int) -> None:
    batch = ChainMAP(kind).sample(500, seed=1, source="cpu")
    there, expected = batch.to("cuda"), gaps(batch)
    band = Band.of(there)
    torch.testing.assert_close(gaps(there, band).cpu(), expected)
    with recording() as graph:
        on_gpu = gaps(there, band)
    graph.replay()
    torch.testing.assert_close(on_gpu.cpu(), expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
def test_soft_targets_are_captured_with_the_step(compiled: bool) -> None:
    recipe = small_recipe(
        precision="bf16", batch=64, network=NetworkConfig("deep", width=32, blocks=3), soft=Soft(0.5, 0.1)
    )
    task = MAPTask(recipe, device="cuda")
    network = task.network.cuda()
    if compiled:
        compile_network(network)
    logged: list[str] = []
    step = Step(network, autocast_loss(recipe, task, network, torch.device("cuda")), capture=True, log=logged.append)
    for n in range(6):
        batch = task.batch(n)
        loss = float(step(batch).loss)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            assert loss == pytest.approx(float(task.loss(network, batch).loss), rel=1e-3)
    assert step.captured, logged
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_in_bf16(tmp_path: Path, compiled: bool) -> None:
    recipe = small_recipe(precision="bf16", batch=64, steps=200, network=NetworkConfig("deep", width=32, blocks=3))
    state, folder = run(recipe, tmp_path / "run", device="cuda", compile=compiled)
    assert folder.lines()[-1]["loss"] < folder.lines()[0]["loss"]
    assert state.metrics is not None
    assert state.metrics["agreement"] > 0.7


def test_a_run_resumes(tmp_path: Path) -> None:
    run(small_recipe(), tmp_path / "run", device="cuda", time_budget=1e-9)
    state, _ = run(tmp_path / "run", device="cuda", resume=True)
    assert state.step == 40


def test_gpu_decoding_reaches_the_cpu_scores() -> None:
    batch = ChainMAP(2).sample(300, seed=2, source="cpu")
    one, two = decode(batch, batch.unary), decode(batch.to("cuda"), batch.unary.to("cuda"))
    torch.testing.assert_close(batch.score(one), batch.score(two.cpu()))


@pytest.mark.parametrize("data", [ChainMAP(2), ChainMAP(3), GridMAP(5, 5)], ids=str)
def test_decoding_with_samples_and_refining(data: ChainMAP | GridMAP) -> None:
    batch = data.sample(200, seed=3, device="cuda")
    best = batch.score(data.labels(batch))
    plain = decode(batch, batch.unary)
    drawn = decode(batch, batch.unary, samples=8, seed=1)
    assert torch.equal(drawn, decode(batch, batch.unary, samples=8, seed=1))
    refined = refine(batch, drawn, batch.unary, rounds=3, seed=1)
    scores = [batch.score(batch.unary.argmax(2)), *map(batch.score, (plain, drawn, refined)), best]
    for lower, upper in pairwise(scores):  # each starts from the one before, and none beats the optimum
        assert bool((upper >= lower - 1e-6).all())
    assert bool((scores[1] > -torch.inf).all())
    assert float((scores[3] >= best - 1e-6).double().mean()) > 0.8


def test_blocks_drawn_ahead_equal_blocks_drawn_on_demand() -> None:
    sets = [ChainMAP(k) for k in (1, 2)]
    ahead = Endless(sets, 1 << 14, 5, World(), torch.device("cuda"))
    for step in range(6):
        batch = ahead.batch(step)
    alone = Endless(sets, 1 << 14, 5, World(), torch.device("cuda")).batch(5)
    assert torch.equal(batch.models.unary, alone.models.unary)
    assert torch.equal(batch.labels, alone.labels)


def test_the_bench_runs() -> None:
    times = bench_training(small_recipe(), device="cuda", steps=3, warmup=4, profile=True)
    assert times.per_second > 0
    assert times.replayed
    assert times.kernels
