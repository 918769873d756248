"""Sum-product on binary pairs by compiled lanes, against the same models one by one, which tensor operations solve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, marginals
from fgnn.bench.marginals_speed import grid_models
from fgnn.infer.max_product import pair_lanes
from fgnn.infer.max_product.pair_lanes import PairLanes
from fgnn.infer.max_product.wiring import Wiring

pytest.importorskip("numba")


def lanes(batch: ModelBatch) -> PairLanes | None:
    return PairLanes.of(Wiring.of(batch, full=False), batch)


def compare(batch: ModelBatch, atol: float, **options: Any) -> None:
    assert lanes(batch) is not None
    together = marginals(batch, "sum-product", **options)
    assert lanes(batch.select(slice(0, 1))) is None
    for b in range(len(batch)):
        alone = marginals(batch.select(slice(b, b + 1)), "sum-product", **options)
        assert bool(together.converged[b]) == bool(alone.converged[0])
        assert abs(int(together.iterations[b]) - int(alone.iterations[0])) <= 1
        assert float(together.log_partition[b]) == pytest.approx(float(alone.log_partition[0]), abs=100 * atol)
        for ours, theirs in zip(together.variables, alone.variables, strict=True):
            torch.testing.assert_close(ours[b], theirs[0], rtol=0, atol=atol)


@pytest.mark.parametrize("damping", [0.0, 0.3, 0.5])
def test_lanes_equal_tensor_operations(damping: float) -> None:
    compare(grid_models(37, 4, seed=0), 1e-9, damping=damping)


def test_iterations_that_run_out_and_single_precision() -> None:
    batch = grid_models(19, 4, seed=1)
    compare(batch, 1e-9, iterations=7)
    compare(batch.to(dtype=torch.float32), 2e-4, tolerance=1e-4)


def test_models_that_share_their_tables() -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * 6 + [1])
    model.add_unaries(rng.normal(size=13))
    model.add_tables([(i, (i + 1) % 6) for i in range(6)], rng.normal(size=(6, 2, 2)))
    model.add_tables([(0, 3), (1, 4)], rng.normal(size=(2, 2, 2)))
    batch = ModelBatch.stack([model]).repeat(20)
    unary = torch.where(batch.state_mask, torch.from_numpy(rng.normal(size=(20, 7, 2))), -torch.inf)
    compare(replace(batch, unary=unary), 1e-9)


def test_products_that_could_overflow_are_left_to_logarithms() -> None:
    batch = grid_models(20, 3, seed=0)
    assert lanes(batch) is not None
    assert lanes(replace(batch, unary=400 * batch.unary)) is None
    steep = replace(batch.tables[0], values=60 * batch.tables[0].values)
    assert lanes(replace(batch, tables=(steep,))) is None
    hub = GraphicalModel([2] * 9)  # eight messages of up to 90 each meet at one variable
    hub.add_tables([(0, i) for i in range(1, 9)], np.tile(90 * np.eye(2), (8, 1, 1)))
    wide = ModelBatch.stack([hub]).repeat(20)
    assert lanes(wide) is None
    assert marginals(wide, "sum-product").status == ["exact"] * 20


def test_a_time_limit_ends_lanes() -> None:
    answer = marginals(grid_models(2_000, 12, seed=0), "sum-product", time_limit=1e-3, tolerance=0.0, iterations=10**6)
    assert set(answer.status) == {"time-limit"}


def test_lanes_that_do_not_load_in_time_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def wait(self, seconds: float) -> bool:
            return seconds > 100

    batch = grid_models(20, 3, seed=0)
    monkeypatch.setitem(pair_lanes._LOADING, torch.float64, Slow())
    wiring = Wiring.of(batch, full=False)
    assert PairLanes.of(wiring, batch, seconds=1.0) is None
    assert PairLanes.of(wiring, batch) is not None
