"""The fused iterations of ad3 and max-product, by Triton's interpreter or on a GPU, against the plain operations."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.data import ChainMAP
from fgnn.infer.ad3 import average, fused, relax
from fgnn.infer.ad3.average import Average, advance
from fgnn.infer.ad3.fused import Fused
from fgnn.infer.ad3.layout import build_layout
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.steps import State, Terms, initial_state
from fgnn.infer.max_product import solver as max_product
from fgnn.infer.max_product.fused_flooding import FusedFlooding
from fgnn.infer.max_product.wiring import Wiring

CUDA = torch.cuda.is_available()
interpreted = pytest.mark.skipif(
    find_spec("triton") is None
    or os.environ.get("TRITON_INTERPRET") != "1"
    or tuple(map(int, version("triton").split(".")[:2])) < (3, 9),
    reason="needs triton with an interpreter that works, and no GPU",
)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=gpu)]


def mixed(count: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> ModelBatch:
    """Pairs of either sign, counts of three sizes, with bounds on both sides that differ by model, a lone variable."""
    rng = np.random.default_rng(seed)
    models = []
    for _ in range(count):
        model = GraphicalModel([2] * 7)
        model.add_unaries(rng.normal(size=14))
        for i in range(5):
            model.add_table((i, i + 1), rng.normal(size=(2, 2)))
        for i in range(2):
            model.add_budget((i, i + 1, i + 3), at_most=2, at_least=int(rng.integers(2)))
        model.add_budget(range(5), at_most=int(rng.integers(2, 5)), at_least=1)
        model.add_linear((0, 2, 4, 5), [3, 3, 3, 3], at_least=2, at_most=8)  # one or two of them
        models.append(model)
    return ModelBatch.stack(models, dtype=dtype)


# ---- ad3 ------------------------------------------------------------------------------------------------------


def both(batch: ModelBatch, steps: int, blocks: int, start: int = 0) -> tuple[State, Average, State, Average]:
    """The same iterations from the same random point, plain and fused."""
    layout = build_layout(batch)
    terms = Terms.of(layout, build_numbers(batch, layout), torch.float64)
    kernel = Fused.of(layout, batch.device)
    assert kernel is not None
    results: list[Any] = []

    def plain(terms: Terms, state: State, average: Average, done: int, steps: int, blocks: int) -> None:
        for block in range(blocks):
            advance(layout, terms, state, average, done + block * steps, steps, lambda seconds: False)

    for go in (plain, kernel.advance):
        state = initial_state(layout, terms)
        draw = torch.Generator().manual_seed(7)
        state.z = (2 * torch.rand(state.z.shape, generator=draw, dtype=torch.float64) - 0.5).to(batch.device)
        average = Average.of(state)
        go(terms, state, average, start, steps, blocks)
        results += [state, average]
    return results[0], results[1], results[2], results[3]


def agreeing(mine: torch.Tensor, other: torch.Tensor) -> float:
    """The share of models that agree to rounding."""
    return float(((mine - other).abs() <= 1e-9).flatten(0, -2).all(0).double().mean())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("forbid", [False, True])
def test_a_fused_block_of_ad3_is_the_plain_one(device: str, forbid: bool) -> None:
    batch = mixed(40)
    if forbid:
        batch.unary[:, 2, 0], batch.unary[::2, 4, 1] = -torch.inf, -torch.inf
    plain, mean, quick, quick_mean = both(batch.to(device), 1, 1)
    # If a threshold is exactly where a marginal leaves 0, the next step depends on rounding.
    assert agreeing(plain.z, quick.z) >= 0.95
    assert agreeing(plain.p, quick.p) >= 0.95
    assert agreeing(mean.z, quick_mean.z) >= 0.95
    assert agreeing(plain.q, quick.q) >= 0.75
    assert agreeing(plain.taus[0], quick.taus[0]) >= 0.75
    assert agreeing(mean.then[None], quick_mean.then[None]) >= 0.75


@pytest.mark.parametrize("device", DEVICES)
def test_fused_restarts_of_ad3_are_the_plain_ones(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (average, fused):
        monkeypatch.setattr(module, "CHECK", 1)
    plain, mean, quick, quick_mean = both(mixed(40, seed=1).to(device), 2, 2)
    same = ((plain.z - quick.z).abs() <= 1e-9).all(0)
    assert float(same.double().mean()) >= 0.6
    assert mean.count[same].tolist() == quick_mean.count[same].tolist()
    assert 0 in mean.count.tolist()
    assert quick_mean.before[same].tolist() == pytest.approx(mean.before[same].tolist(), abs=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_fused_ad3_solves_the_linear_program(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relax, "fused_of", lambda layout, where: Fused.of(layout, where))
    model = GraphicalModel([2] * 4)
    model.add_unaries([0.0, 1.0, 0.0, 0.9, 0.0, 0.8, 0.0, -0.3])
    model.add_table((0, 1), [[0.0, 0.2], [0.1, 0.5]])
    model.add_budget((0, 1, 2, 3), at_most=2)
    found = fgnn.solve(model, "ad3", device=device)
    assert found.converged
    assert found.bound == pytest.approx(fgnn.solve(model, "lp").bound, rel=1e-4)


def test_other_factors_are_left_to_the_plain_operations() -> None:
    many = GraphicalModel([3, 2])
    many.add_table((0, 1), np.zeros((3, 2)))
    wide = GraphicalModel([2] * 70)
    wide.add_budget(range(70), at_most=3)
    for model in (many, wide, GraphicalModel([2, 2])):
        assert Fused.of(build_layout(ModelBatch.stack([model])), torch.device("cpu")) is None


# ---- max-product ----------------------------------------------------------------------------------------------


@pytest.fixture
def fused_max_product(monkeypatch: pytest.MonkeyPatch) -> list[FusedFlooding | None]:
    """Make every call use the kernel if it supports the structure; returns the kernels used."""
    taken: list[FusedFlooding | None] = []

    def choose(wiring: Wiring, models: int) -> FusedFlooding | None:
        taken.append(FusedFlooding.of(wiring))
        return taken[-1]

    monkeypatch.setattr(max_product, "fused_flooding", choose)
    monkeypatch.setattr(FusedFlooding, "every", 3)
    return taken


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("batch", "options"),
    [
        (mixed(), {}),
        (mixed(dtype=torch.float32), {"variant": "paper", "damping": 0.0}),
        (ChainMAP(1, length=6, window=3).sample(3, seed=1), {"damping": 0.3, "tolerance": 0.05}),
        (ChainMAP(3, length=6, window=5).sample(3, seed=1), {}),
    ],
    ids=["bounds-on-both-sides", "paper", "shared-bounds", "own-bounds"],
)
def test_fused_max_product_is_the_plain_one(
    device: str, batch: ModelBatch, options: dict[str, Any], fused_max_product: list[FusedFlooding | None]
) -> None:
    quick = fgnn.solve(batch, "max-product", device=device, iterations=5, **options)
    assert fused_max_product != [None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(max_product, "fused_flooding", lambda *_: None)
        plain = fgnn.solve(batch, "max-product", device=device, iterations=5, **options)
    assert torch.allclose(quick.info["deltas"], plain.info["deltas"], atol=1e-5)
    assert quick.assignment.tolist() == plain.assignment.tolist()
    assert quick.iterations.tolist() == plain.iterations.tolist()
    assert quick.converged.tolist() == plain.converged.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_chains_on_a_gpu_reach_the_linear_program_and_the_plain_beliefs(kind: int) -> None:
    batch = ChainMAP(kind).sample(200, seed=kind, dtype=torch.float64)
    some = batch.select(slice(0, 40))
    found, exact = fgnn.solve(batch, "ad3", device="cuda"), fgnn.solve(some, "lp")
    assert bool(found.converged.all())
    assert found.bound[:40].tolist() == pytest.approx(exact.bound.tolist(), rel=1e-4, abs=1e-6)
    there, here = (fgnn.solve(batch, "max-product", device=d, iterations=30) for d in ("cuda", "cpu"))
    assert there.assignment.tolist() == here.assignment.tolist()
