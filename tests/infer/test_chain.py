"""log Z of chains by forward and backward messages, against elimination and brute force, with gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fgnn import GraphicalModel, ModelBatch, log_partition, marginals
from fgnn.bench.marginals_speed import chain_batch
from fgnn.infer.exact.solver import Clock
from fgnn.infer.probability import chain
from fgnn.infer.probability.chain import chain_log_z, chain_order
from fgnn.infer.probability.elimination import Elimination

interpreted = pytest.mark.skipif(
    find_spec("triton") is None
    or os.environ.get("TRITON_INTERPRET") != "1"
    or tuple(map(int, version("triton").split(".")[:2])) < (3, 9),
    reason="needs triton with an interpreter that works, and no GPU",
)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PASSES = ["loops", pytest.param("interpreted", marks=interpreted), pytest.param("cuda", marks=gpu)]


@pytest.fixture(params=PASSES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where chains are computed; the kernels also on the CPU, by Triton's interpreter."""
    if request.param == "interpreted":
        from fgnn.infer.probability import chain_launch

        monkeypatch.setattr(chain, "_passes", lambda device: chain_launch)
    with np.errstate(divide="ignore"):  # the interpreter warns of the log of 0, a GPU does not
        yield "cuda" if request.param == "cuda" else "cpu"


def chains(models: int, length: int, states: int, *, shared: bool = False, dtype: torch.dtype) -> ModelBatch:
    """Random chains with forbidden entries and constants; the last model has no feasible assignment."""
    make = torch.Generator().manual_seed(100 * length + states)
    batch = chain_batch(models, length, states, "cpu", seed=length).to(dtype=torch.float64)
    values = 3 * torch.randn(1 if shared else models, length - 1, states, states, generator=make, dtype=torch.float64)
    values[torch.rand(values.shape, generator=make) < 0.2] = -torch.inf
    unary = torch.randn(models, length, states, generator=make, dtype=torch.float64)
    unary[torch.rand(unary.shape, generator=make) < 0.1] = -torch.inf
    unary[-1, length // 2] = -torch.inf
    kind = frozenset({"values"}) if shared else frozenset[str]()
    table = replace(batch.tables[0], values=values.expand(models, *values.shape[1:]), shared=kind)
    constant = torch.randn(models, generator=make, dtype=torch.float64)
    return replace(batch, unary=unary, tables=(table,), constant=constant).to(dtype=dtype)


def shuffled(batch: ModelBatch) -> ModelBatch:
    """The same models with the tables in another order."""
    order = torch.randperm(batch.num_variables - 1, generator=torch.Generator().manual_seed(1))
    template = GraphicalModel(batch.cardinalities.tolist())
    states = int(batch.cardinalities[0])
    scopes = [(int(t), int(t) + 1) for t in order]
    template.add_tables(scopes, torch.zeros(len(scopes), states, states).numpy())
    other = ModelBatch.stack([template], dtype=batch.dtype).repeat(len(batch))
    values = batch.tables[0].distinct("values")[:, order]
    values = values.expand(len(batch), *values.shape[1:])
    table = replace(other.tables[0], values=values, shared=batch.tables[0].shared)
    return replace(other, unary=batch.unary, constant=batch.constant, tables=(table,))


def with_gradients(batch: ModelBatch, by_elimination: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """log Z, and the gradients of a weighted sum of it over the feasible models."""
    table = batch.tables[0]
    leaves = [t.detach().clone().requires_grad_(True) for t in (batch.constant, batch.unary, table.distinct("values"))]
    own = replace(table, values=leaves[2].expand(len(batch), *leaves[2].shape[1:]))
    models = replace(batch, constant=leaves[0], unary=leaves[1], tables=(own,))
    if by_elimination:
        log_z: Any = Elimination.of(models, Clock(None, None, len(batch))).log_z()
    else:
        log_z = chain_log_z(models, dtype)
    assert log_z is not None
    weight = torch.linspace(0.5, 2, len(batch), dtype=torch.float64, device=log_z.device)
    feasible = torch.where(log_z > -torch.inf, log_z, 0.0)
    return [log_z.detach(), *torch.autograd.grad((weight * feasible).sum(), leaves)]


@pytest.mark.parametrize(
    ("length", "states", "shared", "mixed"),
    [(2, 1, False, False), (2, 3, True, False), (3, 2, False, True), (7, 4, True, True), (9, 5, False, False)],
)
def test_messages_equal_elimination_with_its_gradient(
    length: int, states: int, shared: bool, mixed: bool, device: str
) -> None:
    batch = chains(5, length, states, shared=shared, dtype=torch.float64)
    batch = shuffled(batch) if mixed else batch
    expected = with_gradients(batch, by_elimination=True)
    found = with_gradients(batch.to(device), by_elimination=False)
    assert expected[0].isfinite().any()
    assert expected[0][-1] == -torch.inf
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-10, atol=1e-10)


def test_float32_potentials_are_summed_in_float64(device: str) -> None:
    batch = chains(4, 6, 3, dtype=torch.float32)
    expected = with_gradients(batch.to(dtype=torch.float64), by_elimination=True)
    found = with_gradients(batch.to(device), by_elimination=False)
    torch.testing.assert_close(found[0].cpu(), expected[0], rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.cpu(), theirs.float(), rtol=1e-6, atol=1e-6)
    coarse = with_gradients(batch.to(device), by_elimination=False, dtype=torch.float32)
    torch.testing.assert_close(coarse[0].cpu(), expected[0], rtol=1e-5, atol=1e-5)


def test_potentials_of_any_size_neither_underflow_nor_lose_the_differences(device: str) -> None:
    batch = chains(3, 40, 3, dtype=torch.float64)
    wide = replace(batch.tables[0], values=1e4 * batch.tables[0].values)
    batch = replace(batch, tables=(wide,))
    expected = with_gradients(batch, by_elimination=True)
    for ours, theirs in zip(with_gradients(batch.to(device), by_elimination=False), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9)


def test_threads_share_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (False, True):
        batch = chains(6, 5, 3, shared=shared, dtype=torch.float64)
        alone = with_gradients(batch, by_elimination=False)
        with monkeypatch.context() as patch:
            patch.setattr("fgnn.infer.threads._FEWEST", 1)
            patch.setattr(torch, "get_num_threads", lambda: 4)
            together = with_gradients(batch, by_elimination=False)
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_log_partition_takes_this_way_and_agrees_with_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.probability.exact.Elimination", None)
    model = chains(2, 4, 3, dtype=torch.float64).model(0)
    batch = ModelBatch.stack([model])
    exact = marginals(batch, "brute-force", tables=True)
    unary = batch.unary.clone().requires_grad_(True)
    log_z = log_partition(replace(batch, unary=unary), "exact")
    assert bool(log_z.exact)
    torch.testing.assert_close(log_z.value.detach(), exact.log_partition, rtol=0, atol=1e-9)
    (found,) = torch.autograd.grad(log_z.value.sum(), unary)
    for i, p in enumerate(exact.variables):
        torch.testing.assert_close(found[:, i], p, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_marginals_of_variables_and_tables_are_those_of_elimination(shared: bool, device: str) -> None:
    batch = shuffled(chains(4, 6, 3, shared=shared, dtype=torch.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fgnn.infer.probability.exact.chain_marginals", lambda *args, **options: None)
        expected = marginals(batch, "exact", tables=True)
    found = marginals(batch.to(device), "exact", tables=True)
    assert found.status == expected.status
    assert expected.tables is not None
    assert found.tables is not None
    pairs = zip([*found.variables, *found.tables], [*expected.variables, *expected.tables], strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-10, equal_nan=True)
    torch.testing.assert_close(found.log_partition.cpu(), expected.log_partition, rtol=0, atol=1e-10)


def test_other_graphs_and_types_are_left_to_elimination() -> None:
    star = GraphicalModel([2, 2, 2])
    star.add_tables([(0, 1), (0, 2)], torch.zeros(2, 2, 2).numpy())
    assert chain_order(ModelBatch.stack([star])) is None
    assert chain_log_z(ModelBatch.stack([star])) is None
    batch = chain_batch(2, 3, 2, "cpu", seed=0)
    assert chain_log_z(batch, torch.float16) is None
    assert chain_log_z(batch.select(slice(0, 0))) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("length", "states"), [(100, 16), (60, 32), (9, 100)])
def test_a_gpu_gives_the_log_z_and_the_gradient_of_the_cpu(length: int, states: int) -> None:
    batch = chain_batch(64, length, states, "cpu", seed=0).to(dtype=torch.float64)
    found = with_gradients(batch.to("cuda"), by_elimination=False)
    for ours, theirs in zip(found, with_gradients(batch, by_elimination=True), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9)
