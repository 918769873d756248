"""Marginals, log Z, gradients, samples and the best assignments, against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch
from fgnn.infer.exact.best_assignments import best_assignments
from fgnn.infer.probability import log_partition, marginals, sample
from fgnn.testing.solvers import random_models
from tests.infer.oracle import chain
from tests.infer.test_log_sum import enumerated


def tree(seed: int = 0, variables: int = 9) -> GraphicalModel:
    """A random tree of pair tables with mixed cardinalities, and a budget over three leaves of its own."""
    rng = np.random.default_rng(seed)
    cards = [*rng.integers(1, 5, variables).tolist(), 2, 2, 2]
    model = GraphicalModel(cards)
    model.add_unaries(rng.normal(size=sum(cards)))
    for i in range(1, variables):
        j = int(rng.integers(i))
        model.add_table((j, i), rng.normal(size=(cards[j], cards[i])))
    model.add_table((variables - 1, variables), rng.normal(size=(cards[variables - 1], 2)))
    model.add_budget((variables, variables + 1, variables + 2), at_most=2, at_least=1)
    return model


@pytest.mark.parametrize("method", ["exact", "auto"])
def test_marginals_and_log_z_equal_brute_force(method: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        batch = ModelBatch.stack(random_models(rng, int(rng.integers(1, 4))))
        expected, got = marginals(batch, "brute-force", tables=True), marginals(batch, method, tables=True)
        assert got.status == expected.status
        torch.testing.assert_close(got.log_partition, expected.log_partition, rtol=0, atol=1e-9)
        for ours, theirs in zip(got.variables, expected.variables, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, equal_nan=True)
        assert got.tables is not None
        assert expected.tables is not None
        for ours, theirs in zip(got.tables, expected.tables, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
def test_sum_product_is_exact_on_trees(schedule: str) -> None:
    for seed in range(6):
        model = tree(seed)
        got = marginals(model, "sum-product", tables=True, schedule=schedule, tolerance=1e-12)
        expected = marginals(model, "brute-force", tables=True)
        assert got.status == "exact"
        assert got.log_partition == pytest.approx(expected.log_partition, abs=1e-8)
        assert got.tables is not None
        assert expected.tables is not None
        for ours, theirs in zip([*got.variables, *got.tables], [*expected.variables, *expected.tables], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


def test_sum_product_on_loops_is_called_approximate() -> None:
    answer = marginals(chain(0, length=10, window=4, at_most=2), "sum-product")
    assert answer.status == "approximate"
    assert answer.converged


def test_the_tables_of_one_model_are_in_the_order_they_were_added() -> None:
    model = tree(3)
    answer = marginals(model, "exact", tables=True)
    assert answer.tables is not None
    for table, p in zip(model.tables(), answer.tables, strict=True):
        for axis, i in enumerate(table.scope):
            others = tuple(a for a in range(p.ndim) if a != axis)
            np.testing.assert_allclose(p.sum(others), answer.variables[i], atol=1e-12)


# ---- evidence -------------------------------------------------------------------------------------------------------


def test_a_matrix_of_evidence_asks_one_query_a_row() -> None:
    model = tree(1)
    rng = np.random.default_rng(0)
    evidence = np.where(rng.random((50, model.num_variables)) < 0.2, 0, -1)
    answers = marginals(model, "exact", evidence=evidence)
    for row, states in enumerate(evidence):
        observed = {i: int(s) for i, s in enumerate(states) if s >= 0}
        alone = marginals(model.condition(observed), "brute-force")
        assert answers[row].log_partition == pytest.approx(alone.log_partition, abs=1e-9)
        for ours, theirs in zip(answers[row].variables, alone.variables, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_impossible_evidence_is_infeasible_and_not_an_error() -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.0, -np.inf], [0.0, 0.0]])
    answer = marginals(model, "exact", evidence={0: 0, 1: 1})
    assert answer.status == "infeasible"
    assert answer.log_partition == -np.inf
    assert all(np.isnan(p).all() for p in answer.variables)


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({5: 0}, "variable below 2"),
        ({0: 2}, "state below 2"),
        ({0: -1}, "state below 2"),
        (np.zeros((3, 4), dtype=np.int64), r"\(E, 2\)"),
        (np.zeros((3, 2)), "integer"),
        (np.full((1, 2), 7), "state below 2"),
    ],
)
def test_evidence_that_does_not_fit_is_refused(evidence: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        marginals(GraphicalModel([2, 2]), "exact", evidence=evidence)  # type: ignore[call-overload]


# ---- gradients ------------------------------------------------------------------------------------------------------


def learnable(batch: ModelBatch, *leaves: torch.Tensor) -> ModelBatch:
    """The batch with these tensors as its unaries and tables; ``-inf`` entries stay."""
    unary = torch.where(batch.unary > -torch.inf, leaves[0], -torch.inf)
    tables = [
        replace(t, values=torch.where(t.values > -torch.inf, leaf, -torch.inf))
        for t, leaf in zip(batch.tables, leaves[1:], strict=True)
    ]
    return replace(batch, unary=unary, tables=tuple(tables))


def test_gradcheck_of_exact_log_z() -> None:
    rng = np.random.default_rng(2)
    checked = 0
    while checked < 5:
        batch = ModelBatch.stack(random_models(rng, 2))
        if not bool((log_partition(batch, "exact").value > -torch.inf).all()) or batch.num_variables > 5:
            continue
        leaves = [
            torch.where(x > -torch.inf, x, 0.0).clone().requires_grad_(True)
            for x in (batch.unary, *(t.values for t in batch.tables))
        ]
        assert torch.autograd.gradcheck(
            lambda *x, b=batch: log_partition(learnable(b, *x), "exact").value.sum(), leaves, atol=1e-6
        )
        checked += 1


@pytest.mark.parametrize("method", ["exact", "sum-product", "brute-force"])
def test_the_gradient_is_the_marginals_also_where_models_share_tables(method: str) -> None:
    model = tree(2)
    batch = ModelBatch.stack([model])
    theta = [t.values.clone().requires_grad_(True) for t in batch.tables]
    shared = replace(batch, tables=tuple(replace(t, values=v) for t, v in zip(batch.tables, theta, strict=True)))
    evidence = np.full((3, model.num_variables), -1)
    evidence[1, 2] = 0
    weight = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    options = {"tolerance": 1e-12} if method == "sum-product" else {}
    (log_partition(shared, method, evidence=evidence, **options).value * weight).sum().backward()
    expected = marginals(model, "brute-force", evidence=evidence, tables=True)
    assert expected.tables is not None
    for leaf, p in zip(theta, expected.tables, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad[0], torch.einsum("b,b...->...", weight, p), rtol=0, atol=1e-7)


# ---- samples and best assignments -----------------------------------------------------------------------------------


def test_samples_repeat_with_their_seed_and_respect_evidence() -> None:
    model = tree(4)
    drawn = sample(model, 100, evidence={1: 0}, seed=7)
    assert drawn.shape == (100, model.num_variables)
    assert (drawn[:, 1] == 0).all()
    assert np.isfinite(model.score(drawn)).all()
    np.testing.assert_array_equal(drawn, sample(model, 100, evidence={1: 0}, seed=7))
    assert not np.array_equal(drawn, sample(model, 100, evidence={1: 0}, seed=8))


def test_a_model_without_feasible_assignments_cannot_be_sampled() -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[-np.inf, -np.inf], [-np.inf, -np.inf]])
    with pytest.raises(ValueError, match="forbids all"):
        sample(model, 1)


def test_the_best_assignments_are_those_of_sorted_enumeration() -> None:
    rng = np.random.default_rng(8)
    for _ in range(25):
        model = random_models(rng, 1)[0]
        _, scores = enumerated([model])
        ranked = np.sort(scores[0][np.isfinite(scores[0])])[::-1][:12]
        found, values = best_assignments(model, 12)
        np.testing.assert_allclose(values, ranked, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(model.score(found) if len(found) else values, values)
        assert len(np.unique(found, axis=0)) == len(found)
