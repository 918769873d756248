"""Counting the solutions of clauses, against brute force."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from fgnn import GraphicalModel, ModelBatch, log_partition
from fgnn.infer.probability import counting
from fgnn.infer.probability.counting import as_clauses, log_z_by_counting

pytest.importorskip("numba")


def formula(variables: int, clauses: int, seed: int, *, weighted: bool = True, parity: bool = True) -> GraphicalModel:
    """Random clauses of one to three literals, a few exclusive ors, and weights of the literals."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * variables)
    if weighted:
        model.add_unaries(rng.normal(size=2 * variables))
    for _ in range(clauses):
        size = int(rng.choice([1, 2, 3], p=[0.03, 0.3, 0.67]))
        scope = tuple(rng.choice(variables, size=size, replace=False).tolist())
        table = np.full((2,) * size, rng.normal() if weighted else 0.0)
        table[tuple(rng.integers(0, 2, size))] = -np.inf
        model.add_table(scope, table)
    if parity:
        model.add_table((0, 1, 2), np.where(np.indices((2, 2, 2)).sum(0) % 2, 0.0, -np.inf))
    return model


@pytest.mark.parametrize("seed", range(30))
def test_counts_equal_brute_force(seed: int) -> None:
    model = formula(12, 10 + seed, seed)
    answer = log_z_by_counting(ModelBatch.stack([model]), None)
    assert answer is not None
    expected = log_partition(model, "brute-force").value
    value = float(answer.log_z[0])
    assert value == pytest.approx(expected, abs=1e-9) if math.isfinite(expected) else value == expected


def test_wide_formulas_are_exact_in_auto() -> None:
    blocks, size = 4, 30
    model = GraphicalModel([2] * (blocks * size))
    rng = np.random.default_rng(0)
    for b in range(blocks):
        for _ in range(110):
            scope = tuple((b * size + rng.choice(size, size=3, replace=False)).tolist())
            table = np.zeros((2, 2, 2))
            table[tuple(rng.integers(0, 2, 3))] = -np.inf
            model.add_table(scope, table)
    answer = log_partition(model, time_limit=60)
    assert answer.exact


def test_tables_with_scores_are_not_clauses() -> None:
    model = formula(4, 2, 0)
    model.add_table((0, 1), [[0.0, 1.0], [2.0, 0.0]])
    assert as_clauses(ModelBatch.stack([model])) is None
    assert as_clauses(ModelBatch.stack([GraphicalModel([3])])) is None


def test_counting_ends_with_its_time() -> None:
    model = formula(300, 600, 0, parity=False)
    log_z_by_counting(ModelBatch.stack([formula(4, 2, 0)]), None)  # loads the loops
    begin = time.perf_counter()
    assert log_z_by_counting(ModelBatch.stack([model]), 0.5) is None
    assert time.perf_counter() - begin < 3.0


def test_loops_that_still_compile_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(counting.LOOPS, "wait", lambda seconds: waited.append(seconds))
    assert log_z_by_counting(ModelBatch.stack([formula(4, 2, 0)]), 2.0) is None
    assert 0.0 < waited[0] < 2.0
