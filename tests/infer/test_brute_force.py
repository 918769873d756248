"""Brute force tries every assignment, and keeps the first of the best."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given

from fgnn import GraphicalModel, ModelBatch, solve
from tests.infer.oracle import best_score
from tests.strategies import models


@given(models())
def test_it_finds_the_best_score(model: GraphicalModel) -> None:
    solution = solve(model, "brute-force")
    best = best_score(model)
    if best == -np.inf:
        assert (solution.status, solution.bound) == ("infeasible", -np.inf)
    else:
        assert solution.status == "optimal"
        assert solution.score == pytest.approx(best, abs=1e-12)
        assert solution.score <= solution.bound <= solution.score + 1e-12


def test_among_equals_the_first_in_lexicographic_order_wins() -> None:
    model = GraphicalModel([3, 2, 2])
    model.add_table((0, 1, 2), np.where(np.arange(12).reshape(3, 2, 2) % 5 == 3, 1.0, 0.0))  # at cells 3 and 8
    assert solve(model, "brute-force").assignment.tolist() == [0, 1, 1]


def test_the_first_wins_across_chunks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.brute_force._CHUNK", 4)
    model = GraphicalModel([2] * 5)
    model.add_unary(1, [0.0, 1.0])
    assert solve(model, "brute-force").assignment.tolist() == [0, 1, 0, 0, 0]


def test_a_batch_is_solved_model_by_model() -> None:
    rng = np.random.default_rng(0)
    singles = []
    for _ in range(5):
        model = GraphicalModel([2, 3, 2])
        model.add_unaries(rng.normal(size=7))
        model.add_table((2, 1), rng.normal(size=(2, 3)))
        singles.append(model)
    together = solve(ModelBatch.stack(singles), "brute-force")
    for b, model in enumerate(singles):
        assert together[b].score == solve(model, "brute-force").score


def test_too_many_states_are_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=re.escape("max_states=4,194,304 joint states to try one by one (got 8,388,608)")
    ):
        solve(GraphicalModel([2] * 23), "brute-force")


def test_a_model_without_variables_has_one_assignment() -> None:
    model = GraphicalModel([])
    model.constant = 2.5
    solution = solve(model, "brute-force")
    assert (solution.score, solution.status, len(solution.assignment)) == (2.5, "optimal", 0)


def test_the_time_limit_ends_it_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.brute_force._CHUNK", 64)
    model = GraphicalModel([2] * 20)
    model.add_unaries(torch.arange(40.0).numpy())
    solution = solve(model, "brute-force", time_limit=1e-3)
    assert (solution.status, solution.bound) == ("time-limit", 400.0)  # every variable at its best
