"""Independent exact methods agree, on every path an elimination can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.infer.exact.allowed_states import allowed_states
from fgnn.infer.exact.plan import build_plan
from fgnn.infer.exact.run import run_plan
from tests.strategies import models

# Settings that make small models take the paths of large ones.
PATHS: dict[str, dict[str, object]] = {
    "as it comes": {},
    "every budget counted": {"counters._THRESHOLDS": (-1.0,)},
    "full tables only": {"estimate._LIST_ALWAYS": -1.0},
    "lists into full tables": {"estimate._LIST_ALWAYS": 3.0},
    "states of several words": {"states._WORD_BITS": 3},
    "keys too wide for a table": {"states._DIRECT_BITS": 0},
}

OPTIONS = {"full tables only": {"list_share": -1e9}, "lists into full tables": {"list_share": -1.0}}


@contextmanager
def taking(path: str) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in PATHS[path].items():
            stack.enter_context(patch(f"fgnn.infer.exact.{name}", value))
        yield


@st.composite
def batches(draw: st.DrawFn) -> ModelBatch:
    """Models of one structure that differ in everything else: numbers, forbidden entries and bounds."""
    first = draw(models(max_variables=8, max_budgets=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stacked = [first]
    for _ in range(draw(st.integers(0, 3))):
        model = GraphicalModel(first.cardinalities)
        model.add_unaries(rng.normal(size=first.unaries.size))
        for table in first.tables():
            forbid = rng.random(table.values.shape) < 0.2
            model.add_table(table.scope, np.where(forbid, -np.inf, rng.normal(size=table.values.shape)))
        for budget in first.budgets():
            low = int(rng.integers(0, len(budget.scope) + 1)) if rng.random() < 0.3 else budget.at_least
            model.add_budget(budget.scope, int(rng.integers(low, len(budget.scope) + 1)), at_least=low)
        stacked.append(model)
    return ModelBatch.stack(stacked)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40)
@given(batch=batches())
def test_elimination_agrees_with_brute_force(path: str, batch: ModelBatch) -> None:
    truth = solve(batch, "brute-force").score
    with taking(path):
        plan = build_plan(
            allowed_states(batch), **OPTIONS.get(path, {})
        )  # not cached: the cache ignores these settings
        if plan.steps is None:
            assert bool((truth == -torch.inf).all())
            return
        assignment, value = run_plan(plan, batch, torch.float64)
    torch.testing.assert_close(batch.score(assignment), truth, rtol=0, atol=1e-9)
    torch.testing.assert_close(value, truth, rtol=0, atol=1e-9)


@given(models())
def test_statuses_agree(model: GraphicalModel) -> None:
    brute, exact = solve(model, "brute-force"), solve(model, "exact")
    assert exact.status == brute.status
    assert exact.bound == pytest.approx(brute.bound, abs=1e-9)


@settings(max_examples=15)
@given(models())
def test_elimination_agrees_with_branch_and_bound(model: GraphicalModel) -> None:
    pytest.importorskip("pytoulbar2")
    exact, searched = solve(model, "exact"), solve(model, "toulbar2")
    assert searched.status == exact.status
    assert searched.score == pytest.approx(exact.score, abs=1e-9)
