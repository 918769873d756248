"""Sum-product: k FGNN layers with log-sum-exp aggregation are k iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from torch import nn

from fgnn import GraphicalModel
from fgnn import nn as layers
from fgnn.theory import sum_product_network
from fgnn.theory.budget import split_budget
from tests.strategies import models, tree_models
from tests.theory.reference import sum_product

VARIANTS = ("paper", "standard")


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=40)
@given(model=models(max_arity=3))
def test_beliefs_equal_the_loop_at_every_iteration(variant: str, model: GraphicalModel) -> None:
    net = sum_product_network(model, iterations=5, variant=variant)
    wanted = sum_product(model, 5, variant)
    for after, reference in zip(net.beliefs(), wanted, strict=True):
        for mine, theirs in zip(after, reference, strict=True):
            finite = np.isfinite(theirs)
            assert np.array_equal(np.isfinite(mine.numpy()), finite)
            np.testing.assert_allclose(mine.numpy()[finite], theirs[finite], rtol=1e-12, atol=1e-9)


@settings(max_examples=30)
@given(tree_models(max_variables=6))
def test_on_trees_the_marginals_are_exact(model: GraphicalModel) -> None:
    states = np.stack(np.meshgrid(*[np.arange(k) for k in model.cardinalities], indexing="ij"), -1)
    scores = model.score(states.reshape(-1, model.num_variables)).reshape(states.shape[:-1])
    joint = np.exp(scores - scores.max())
    joint /= joint.sum()
    last = sum_product_network(model, 2 * model.num_variables + 1).marginals()[-1]
    for i, marginal in enumerate(last):
        exact = joint.sum(axis=tuple(a for a in range(joint.ndim) if a != i))
        np.testing.assert_allclose(marginal.numpy(), exact, rtol=1e-9, atol=1e-12)


def test_it_consists_of_fgnn_layers_with_log_sum_exp_and_a_linear_layer() -> None:
    model = GraphicalModel([2, 3])
    model.add_table((0, 1), np.arange(6.0).reshape(2, 3))
    net = sum_product_network(model)
    assert len(net.layers) == net.iterations == 5
    assert all(isinstance(layer, layers.FGNNLayer) for layer in net.layers)
    assert {name for name, _ in net.named_children()} == {"layer", "readout"}
    assert type(net.readout) is nn.Linear
    directions = [*net.layer.variable_to_factor.values(), net.layer.factor_to_variable]
    assert {str(d.aggregation) for d in directions} == {"softmax(1)"}


@pytest.mark.parametrize("n", range(1, 8))
def test_a_budget_splits_into_disjoint_boxes(n: int) -> None:
    ones = sum(np.indices((2,) * n))
    for low in range(n + 1):
        for high in range(low, n + 1):
            count = np.zeros((2,) * n, dtype=int)
            for box in split_budget(n, low, high):
                count[np.ix_(*box)] += 1
            assert np.array_equal(count, (low <= ones) & (ones <= high)), (low, high)


def test_a_very_low_entry_costs_the_others_nothing() -> None:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [0.3, -1e15])
    model.add_table((0, 1), [[0.1, 0.2], [0.4, 0.7]])
    for mine, theirs in zip(sum_product_network(model, 2).beliefs()[-1], sum_product(model, 2)[-1], strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-14)


def test_a_state_that_no_factor_allows() -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.0, 1.0], [-np.inf, -np.inf]])
    last = sum_product_network(model, 3).marginals()[-1]
    assert last[0].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(last[1].numpy(), np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum())


def test_beliefs_that_leave_the_range_are_refused() -> None:
    model = GraphicalModel([2] * 4)
    for scope in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)):
        model.add_table(scope, [[0.0, 0.5], [0.25, 1.0]])
    with pytest.raises(ValueError, match=r"beliefs below 1e\+06 .*after iteration \d+"):
        sum_product_network(model, 40).marginals()
    with pytest.raises(ValueError, match=r"messages below 1e\+90.*after iteration \d+"):
        sum_product_network(model, 400).beliefs()
    model.add_unary(0, [1e250, 0.0])
    with pytest.raises(ValueError, match=r"below 1e\+90 or -inf \(got 1e\+250\)"):
        sum_product_network(model, 1).beliefs()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"variant": "loopy"}, "variant paper or standard"), ({"iterations": 0}, r"at least one iteration \(got 0\)")],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sum_product_network(GraphicalModel([2]), **({"iterations": 1} | options))
    with pytest.raises(ValueError, match="at least one variable"):
        sum_product_network(GraphicalModel([]), 1)
