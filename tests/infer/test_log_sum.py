"""The log-sum-exp elimination: log Z, marginals and samples against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fgnn import GraphicalModel, ModelBatch
from fgnn.infer.exact.log_sum import LogSum
from fgnn.infer.exact.solver import exact_plan
from fgnn.testing.solvers import random_models
from tests.infer.oracle import chain


def enumerated(models: list[GraphicalModel]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All joint states (S, N), and the score of each in every model (B, S)."""
    cards = models[0].cardinalities.tolist()
    states = np.array(list(itertools.product(*map(range, cards))), dtype=np.int64)
    return states, np.stack([m.score(states) for m in models])


@pytest.mark.parametrize("count", [1, 3])
def test_log_z_and_its_gradient_equal_enumeration(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(60):
        models = random_models(rng, count)
        batch = ModelBatch.stack(models)
        states, scores = enumerated(models)
        expected = np.logaddexp.reduce(scores, axis=1)
        plan = exact_plan(batch)
        if plan.steps is None:
            assert np.isneginf(expected).all()
            continue
        run = LogSum(plan, batch, torch.float64)
        np.testing.assert_allclose(run.log_z, expected, rtol=0, atol=1e-12)
        unary, tables = run.gradient(torch.ones(count))
        assert not unary.isnan().any()
        for b in np.flatnonzero(np.isfinite(expected)):
            p = np.exp(scores[b] - expected[b])
            for i, k in enumerate(batch.cardinalities.tolist()):
                marginal = np.bincount(states[:, i], weights=p, minlength=k)
                np.testing.assert_allclose(unary[b, i, :k], marginal, rtol=0, atol=1e-12)
            for group, values in zip(batch.tables, tables, strict=True):
                for c, scope in enumerate(group.scopes.tolist()):
                    joint = np.zeros(group.shape)
                    np.add.at(joint, tuple(states[:, scope].T), p)
                    np.testing.assert_allclose(values[b, c], joint, rtol=0, atol=1e-12)


def test_samples_follow_the_distribution() -> None:
    """Pearson's statistic over all states; its 99.99 % quantile for 127 degrees of freedom is 194."""
    model = chain(3, length=7, window=4, at_most=2)
    states, scores = enumerated([model])
    batch = ModelBatch.stack([model, model])
    plan = exact_plan(batch)
    count = 20_000
    drawn = LogSum(plan, batch, torch.float64).sample(count, torch.Generator().manual_seed(0))
    assert drawn.shape == (count, 2, 7)
    p = np.exp(scores[0] - np.logaddexp.reduce(scores[0]))
    for b in range(2):
        index = np.ravel_multi_index(tuple(drawn[:, b].numpy().T), (2,) * 7)
        seen = np.bincount(index, minlength=len(states))
        assert not seen[p == 0].any()
        expected = count * p[p > 0]
        assert float(((seen[p > 0] - expected) ** 2 / expected).sum()) < 194
