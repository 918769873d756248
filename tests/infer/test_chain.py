"""log Z of chains as a product of matrices, against elimination."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, log_partition
from fgnn.bench.marginals_speed import chain_batch
from fgnn.infer.probability.chain import chain_log_z, chain_order


@pytest.mark.parametrize("length", [2, 3, 8, 13])
def test_the_product_of_matrices_equals_elimination_with_its_gradient(length: int) -> None:
    batch = chain_batch(5, length, 4, "cpu", seed=length).to(dtype=torch.float64)
    batch = replace(batch, unary=torch.randn(5, length, 4, dtype=torch.float64))
    batch.tables[0].values[:, 0, 1, 2] = -torch.inf
    order = chain_order(batch)
    assert order is not None
    results = []
    for method in ("scan", "exact"):
        unary, values = (t.detach().clone().requires_grad_(True) for t in (batch.unary, batch.tables[0].values))
        models = replace(batch, unary=unary, tables=(replace(batch.tables[0], values=values),))
        log_z = chain_log_z(models, order) if method == "scan" else log_partition(models, "exact").value
        assert log_z is not None
        results.append((log_z.detach(), *torch.autograd.grad(log_z.sum(), (unary, values))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_sums_that_would_underflow_are_refused_and_other_graphs_are_not_chains() -> None:
    batch = chain_batch(2, 6, 3, "cpu", seed=0).to(dtype=torch.float64)
    order = chain_order(batch)
    assert order is not None
    wide = replace(batch.tables[0], values=400 * batch.tables[0].values)
    assert chain_log_z(replace(batch, tables=(wide,)), order) is None
    star = GraphicalModel([2, 2, 2])
    star.add_tables([(0, 1), (0, 2)], torch.zeros(2, 2, 2).numpy())
    assert chain_order(ModelBatch.stack([star])) is None


@pytest.mark.gpu
def test_a_gpu_gives_the_log_z_of_the_cpu() -> None:
    batch = chain_batch(64, 100, 16, "cpu", seed=0)
    ours = log_partition(batch.to("cuda"), "exact").value.cpu()
    torch.testing.assert_close(ours, log_partition(batch, "exact").value, rtol=1e-9, atol=1e-9)
