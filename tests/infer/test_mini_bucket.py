"""The upper bound on log Z by mini-buckets, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, marginals
from fgnn.testing.solvers import random_models


@pytest.mark.parametrize("bits", [1.0, 2.0, 3.0, 40.0])
def test_the_bound_is_never_below_log_z(bits: float) -> None:
    rng = np.random.default_rng(11)
    for _ in range(30):
        batch = ModelBatch.stack(random_models(rng, int(rng.integers(1, 4))))
        expected = marginals(batch, "brute-force")
        got = marginals(batch, "mini-bucket", bits=bits)
        assert bool((got.bound >= expected.log_partition - 1e-9).all())
        if bits == 40.0:
            assert got.status == expected.status
            torch.testing.assert_close(got.log_partition, expected.log_partition, rtol=0, atol=1e-8)
            for ours, theirs in zip(got.variables, expected.variables, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7, equal_nan=True)


def test_wider_mini_buckets_tighten_the_bound_on_a_grid() -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * 64)
    model.add_unaries(rng.normal(size=128))
    for i in range(64):
        for j in (i + 1, i + 8):
            if j < 64 and (j != i + 1 or j % 8):
                model.add_table((i, j), rng.normal(size=(2, 2)))
    log_z = marginals(model, "exact").log_partition
    bounds = [marginals(model, "mini-bucket", bits=b).bound for b in (2, 4, 6, 12)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == pytest.approx(log_z, abs=1e-8)
    anytime = marginals(model, "mini-bucket", time_limit=30)
    assert anytime.status == "exact"
    loose = marginals(model, "mini-bucket", bits=3)
    assert loose.status == "approximate"
    assert all(p.sum() == pytest.approx(1, abs=1e-9) for p in loose.variables)


def test_a_wide_budget_is_left_out_and_the_bound_holds() -> None:
    model = GraphicalModel([2] * 20)
    model.add_unaries(np.random.default_rng(0).normal(size=40))
    model.add_budget(tuple(range(20)), at_most=3)
    got = marginals(model, "mini-bucket")
    assert got.status == "approximate"
    assert got.bound >= marginals(model, "exact").log_partition


def test_options_that_make_no_sense_are_refused() -> None:
    model = GraphicalModel([2])
    with pytest.raises(ValueError, match="1 bit"):
        marginals(model, "mini-bucket", bits=0.0)
    with pytest.raises(ValueError, match="tables"):
        marginals(model, "mini-bucket", tables=True)
