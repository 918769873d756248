"""Complete bipartite models with equal tables, against brute force and elimination."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn import GraphicalModel, ModelBatch, marginals
from fgnn.infer.probability import exchangeable


def rule(side: int, other: int, states: int, *, leaves: bool, seed: int = 0) -> GraphicalModel:
    """One random table over all pairs of objects, with a variable of its own for each pair if ``leaves``."""
    rng = np.random.default_rng(seed)
    pairs = [(i, side + j) for i in range(side) for j in range(other)]
    cards = [2] * side + [states] * other + [2] * (len(pairs) if leaves else 0) + [3]
    model = GraphicalModel(cards)
    shared = rng.normal(size=2)
    for i, k in enumerate(cards):
        model.add_unary(i, shared if i >= side + other and k == 2 else rng.normal(size=k))
    table = rng.normal(size=(2, 2, states) if leaves else (states, 2))
    for c, (i, j) in enumerate(pairs):
        model.add_table((i, side + other + c, j) if leaves else (j, i), table)
    return model


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("observed", [{}, {0: 1, 4: 0}, {0: 0, 1: 0, 2: 0}])
def test_counting_equals_brute_force(leaves: bool, observed: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchangeable, "_SMALL_SIDE", 2)
    model = rule(3, 2, 3, leaves=leaves)
    assert exchangeable.marginals_exchangeable(ModelBatch.stack([model])) is not None
    expected = marginals(model, "brute-force", evidence=observed)
    got = marginals(model, "auto", evidence=observed)
    assert got.status == "exact"
    assert got.log_partition == pytest.approx(expected.log_partition, abs=1e-9)
    for ours, theirs in zip(got.variables, expected.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_a_width_of_a_hundred_takes_no_elimination() -> None:
    answer = marginals(rule(100, 120, 2, leaves=True), "auto", time_limit=60)
    assert answer.status == "exact"
    assert all(p.sum() == pytest.approx(1, abs=1e-9) for p in answer.variables)


def test_a_table_that_differs_is_left_to_other_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchangeable, "_SMALL_SIDE", 2)
    model = rule(3, 2, 2, leaves=True)
    model.add_unary(6, [0.0, 1.0])  # the relation of one pair
    expected, got = marginals(model, "brute-force"), marginals(model, "auto")
    assert got.log_partition == pytest.approx(expected.log_partition, abs=1e-9)
