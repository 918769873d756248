"""Estimates of log Z from random solutions, against exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn import GraphicalModel, ModelBatch, log_partition
from fgnn.infer.probability import auto
from fgnn.infer.probability.clause_samples import _Sampler, log_z_by_sampling
from fgnn.infer.probability.counting import as_clauses, log_z_by_counting

pytest.importorskip("numba")


def formula(variables: int, clauses: int, seed: int) -> GraphicalModel:
    """Random clauses of three literals that one assignment satisfies, weighted literals, a fact and a constant."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * variables)
    model.add_unaries(rng.normal(size=2 * variables))
    model.add_unary(0, [-np.inf, 0.5])
    solution = rng.integers(0, 2, variables)
    solution[0] = 1
    for _ in range(clauses):
        scope = rng.choice(variables, size=3, replace=False)
        entry = rng.integers(0, 2, 3)
        if (entry == solution[scope]).all():
            entry[0] ^= 1
        table = np.zeros((2, 2, 2))
        table[tuple(entry)] = -np.inf
        model.add_table(tuple(scope.tolist()), table)
    model.constant = 0.7
    return model


def estimate(batch: ModelBatch, rounds: int, seed: int = 0) -> float:
    clauses = as_clauses(batch)
    assert clauses is not None
    sampler = _Sampler(clauses, seed)
    for _ in range(rounds):
        sampler.round()
    return float(np.logaddexp.reduce(sampler.logs)) - np.log(len(sampler.logs)) + sampler.constant


def counted(batch: ModelBatch) -> float:
    exact = log_z_by_counting(batch, None)
    assert exact is not None
    return float(exact.log_z[0])


@pytest.mark.parametrize(("variables", "clauses"), [(3, 0), (12, 20), (30, 70), (40, 100)])
def test_the_mean_over_samples_approaches_z(variables: int, clauses: int) -> None:
    batch = ModelBatch.stack([formula(variables, clauses, seed=clauses)])
    assert estimate(batch, rounds=30) == pytest.approx(counted(batch), abs=0.3)


def test_without_constraints_that_matter_the_learned_proposal_is_the_model() -> None:
    model = GraphicalModel([2] * 8)
    model.add_unaries(np.tile([0.0, 1.0], 8))
    model.add_table((0, 1), [[-np.inf, 0.0], [0.0, 0.0]])
    batch = ModelBatch.stack([model])
    assert estimate(batch, rounds=60) == pytest.approx(counted(batch), abs=0.02)


def test_formulas_without_a_solution_have_no_estimate() -> None:
    model = GraphicalModel([2, 2, 2])
    for a in (0, 1):
        for b in (0, 1):
            table = np.zeros((2, 2))
            table[a, b] = -np.inf
            model.add_table((0, 1), table)
    batch = ModelBatch.stack([model])
    clauses = as_clauses(batch)
    assert clauses is not None
    assert log_z_by_sampling(batch, clauses, 0.2) is None


def test_auto_samples_where_neither_elimination_nor_counting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model = formula(40, 120, seed=3)
    exact = counted(ModelBatch.stack([model]))
    monkeypatch.setattr(auto, "log_partition_exact", _too_large)
    monkeypatch.setattr(auto, "log_z_by_counting", lambda batch, seconds: None)
    answer = log_partition(model, time_limit=1.0)
    assert answer.method == "sampling"
    assert not answer.exact
    assert answer.value == pytest.approx(exact, abs=0.5)
    assert answer.bound >= exact - 1e-9


def _too_large(*args: object, **options: object) -> None:
    raise auto.TooLarge("too large")
