"""Belief propagation given the states of a cut: exact where the cut opens every loop, nearer than without elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fgnn
from fgnn.infer.probability import conditioned as module
from fgnn.infer.probability.brute_force import marginals_brute_force
from fgnn.infer.probability.conditioned import choose_cut, conditioned
from fgnn.infer.probability.sum_product import marginals_sum_product
from fgnn.pgm import ModelBatch


def grid(rows: int, columns: int, seed: int, strength: float = 1.5) -> ModelBatch:
    rng = np.random.default_rng(seed)
    model = fgnn.GraphicalModel([2] * (rows * columns))
    place = np.arange(rows * columns).reshape(rows, columns)
    pairs = [*zip(place[:, :-1].ravel(), place[:, 1:].ravel(), strict=True)]
    pairs += [*zip(place[:-1].ravel(), place[1:].ravel(), strict=True)]
    for i in range(rows * columns):
        model.add_table((i,), rng.normal(size=2) * 0.3)
    for i, j in pairs:
        model.add_table((int(i), int(j)), rng.normal(size=(2, 2)) * strength)
    return ModelBatch.stack([model])


def test_a_cut_through_every_loop_makes_the_answer_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = grid(2, 4, seed=0)
    monkeypatch.setattr(module, "_FIRST", 256)  # the whole model
    found = conditioned(batch, marginals_sum_product(batch), 60.0, tables=True)
    want = marginals_brute_force(batch, tables=True)
    torch.testing.assert_close(found.unary, want.unary, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.log_z, want.log_z, atol=1e-9, rtol=0)
    assert found.tables is not None
    assert want.tables is not None
    for one, other in zip(found.tables, want.tables, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def test_a_cut_comes_nearer_to_the_marginals_than_none() -> None:
    errors = []
    for seed in range(8):
        batch = grid(4, 4, seed)
        want, plain = marginals_brute_force(batch).unary, marginals_sum_product(batch)
        cut = conditioned(batch, plain, 60.0, most=32)
        errors.append([float((beliefs.unary - want).abs().mean()) for beliefs in (plain, cut)])
    before, after = np.mean(errors, axis=0)
    assert after < 0.5 * before


def test_the_cut_takes_uncertain_variables_with_many_neighbours_and_only_their_likely_states() -> None:
    model = fgnn.GraphicalModel([3, 2, 2, 2])
    for i in (1, 2, 3):
        model.add_table((0, i), np.zeros((3, 2)))
    belief = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    batch = ModelBatch.stack([model])
    assert choose_cut(batch, belief, 2) == {0: [0, 1]}
    assert set(choose_cut(batch, belief, 1 << 10)) == {0}  # without it the others have no neighbour


def test_without_time_the_beliefs_stay_as_they_are() -> None:
    batch = grid(3, 3, seed=1)
    plain = marginals_sum_product(batch)
    assert conditioned(batch, plain, 0.0) is plain
