"""Models as graphs with features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch
from fgnn.graph import EdgeTypes
from fgnn.models.map.featurise import Positions, constant_groups, featurise
from fgnn.nn import build
from tests.strategies import models


@pytest.fixture
def model() -> GraphicalModel:
    """Three tables of two shapes, budgets of two sizes, mixed cardinalities."""
    made = GraphicalModel([2, 2, 3, 2])
    made.add_unaries([0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, -1.0, -np.inf])
    made.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
    made.add_table((1, 3), [[1.0, 2.0], [3.0, 4.0]])
    made.add_table((2, 0), [[0.0, 1.0], [2.0, -np.inf], [4.0, 5.0]])
    made.add_budget((0, 1, 3), at_most=2)
    made.add_budget((1, 3), at_most=1, at_least=1)
    return made


def test_features_are_the_numbers_of_the_model(model: GraphicalModel) -> None:
    made = featurise(model)
    assert list(made.graph.groups) == ["table2x2", "table3x2", "budget"]
    assert made.graph.groups["table2x2"].lists() == [[0, 1], [1, 3]]
    assert made.graph.groups["table3x2"].lists() == [[2, 0]]
    assert made.graph.groups["budget"].lists() == [[0, 1, 3], [1, 3]]
    # three states at most: the third of a binary variable and a forbidden one become the marker, and are masked
    assert made.variables[0, 2].tolist() == [0.5, 1.5, 2.5, 0, 0, 0]
    assert made.variables[0, 3].tolist() == [-1.0, -10.0, -10.0, 0, 1, 1]
    assert made.factors["table2x2"].tolist() == [[[0.0, 0.1, 0.2, 1.0], [1.0, 2.0, 3.0, 4.0]]]
    assert made.factors["table3x2"].tolist() == [[[0.0, 1.0, 2.0, -10.0, 4.0, 5.0, 0, 0, 0, 1, 0, 0]]]
    assert made.factors["budget"].tolist() == [[[2, 3, 2 / 3, 0], [1, 2, 1 / 2, 1]]]


def test_edges_encode_their_position_in_the_scope(model: GraphicalModel) -> None:
    one_hot, index = featurise(model).edges, featurise(model, positions="index").edges
    assert one_hot["table2x2"].tolist() == [[1, 0], [0, 1]]  # by position, the same for every factor
    assert one_hot["budget"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    for name, places in (("table2x2", [0, 1, 0, 1]), ("budget", [0, 1, 2, 0, 1])):
        types = index[name]
        assert isinstance(types, EdgeTypes)
        assert types.index.tolist() == places
    assert featurise(model, positions="none").edges == {}
    wider = [featurise(model, positions=p, arity={"budget": 5}).edge_in for p in ("one-hot", "index")]
    assert wider == [{"table2x2": 2, "table3x2": 2, "budget": 5}] * 2


def test_centred_unaries_are_differences_to_the_first_state(model: GraphicalModel) -> None:
    binary = GraphicalModel([2, 2])
    binary.add_unaries([0.25, 1.0, 3.0, 2.0])
    assert featurise(binary, centre=True).variables.tolist() == [[[0.75], [-1.0]]]
    assert featurise(model, centre=True, masks=False).variables[0, 2].tolist() == [1.0, 2.0]


def test_fixed_groups_become_constants(model: GraphicalModel) -> None:
    made = featurise(model, fixed=["table2x2", "budget"])
    assert made.factors["table2x2"].tolist() == [[[1.0], [1.0]]]
    assert made.factors["budget"].tolist() == [[[1.0], [1.0]]]
    assert made.factor_in == {"table2x2": 1, "table3x2": 12, "budget": 1}
    with pytest.raises(ValueError, match="fixed groups among table2x2, table3x2, budget"):
        featurise(model, fixed=["pairs"])


def test_constant_groups() -> None:
    rng = np.random.default_rng(0)

    def chain() -> GraphicalModel:
        m = GraphicalModel([2, 2, 2])
        m.add_unaries(rng.random(6))
        m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        m.add_table((1, 2), [[0.0, 0.1], [0.2, 1.0]])
        m.add_table((0, 1, 2), rng.random((2, 2, 2)))
        m.add_budget((0, 1, 2), at_most=2)
        return m

    batch = ModelBatch.stack([chain(), chain()])
    assert constant_groups(batch) == {"table2x2", "budget"}


@given(models(), st.booleans(), st.sampled_from(["one-hot", "index"]))
def test_a_network_reads_any_model(model: GraphicalModel, centre: bool, positions: Positions) -> None:
    made = featurise(ModelBatch.stack([model, model], dtype=torch.float32), centre=centre, positions=positions)
    assert made.variables.shape[:2] == (2, model.num_variables)
    assert made.factors.keys() == made.edges.keys() == made.graph.groups.keys()
    assert all(t.isfinite().all() for t in (made.variables, *made.factors.values()))
    if not made.variable_in:
        return  # centred variables of one state have nothing to say
    form = "table" if positions == "index" else "basis"
    net = build(
        "FGNN(4) - FGNN(2)",
        variable_in=made.variable_in,
        factor_in=made.factor_in,
        edge_in=made.edge_in,
        q=form,
    )
    scores = net(made.graph, made.variables, made.factors, made.edges)
    assert scores.shape == (2, model.num_variables, 2)
    torch.testing.assert_close(scores[0], scores[1])


def test_an_isolated_variable_gets_a_factor_of_its_own() -> None:
    model = GraphicalModel([2, 2, 2, 2])
    model.add_table((0, 2), [[0.0, 0.1], [0.2, 1.0]])
    made = featurise(model)
    assert made.graph.groups["single"].lists() == [[1], [3]]
    assert made.factors["single"].tolist() == [[[1.0], [1.0]]]
    assert made.edge_in["single"] == 1
    assert "single" not in featurise(model, singles=False).graph.groups


def test_features_do_not_depend_on_the_rest_of_the_batch(model: GraphicalModel) -> None:
    other = model.copy()
    other.add_unary(0, [0.3, -0.4])
    together = featurise(ModelBatch.stack([model, other]))
    for b, one in enumerate((model, other)):
        alone = featurise(one)
        assert alone.graph is together.graph
        assert torch.equal(together.variables[b], alone.variables[0])
        assert all(torch.equal(together.factors[name][b], alone.factors[name][0]) for name in together.factors)


def test_the_graph_is_made_once_and_shared_numbers_are_not_copied() -> None:
    model = GraphicalModel([2] * 6)
    for i in range(5):
        model.add_table((i, i + 1), [[0.0, 0.1], [0.2, 1.0]])
    model.add_budget(range(6), at_most=3)
    one = ModelBatch.stack([model], dtype=torch.float32)
    (table,), (budget,) = one.tables, one.budgets
    wide = ModelBatch(
        one.structure,
        torch.rand(1000, 6, 2),
        (replace(table, values=table.values.expand(1000, -1, -1, -1), shared=frozenset({"values"})),),
        (
            replace(
                budget,
                at_least=budget.at_least.expand(1000, -1),
                at_most=budget.at_most.expand(1000, -1),
                shared=frozenset({"at_least", "at_most"}),
            ),
        ),
        one.constant.expand(1000),
    )
    first, second = featurise(wide), featurise(one)
    assert first.graph is second.graph
    assert first.edges["budget"] is second.edges["budget"]
    for name in ("table2x2", "budget"):
        assert first.factors[name].shape[0] == 1000
        assert first.factors[name].stride(0) == 0
    assert first.factors["budget"][7].tolist() == [[3, 6, 0.5, 0]]


def test_wrong_options_are_refused(model: GraphicalModel) -> None:
    with pytest.raises(ValueError, match="positions among"):
        featurise(model, positions="sine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window"):
        featurise(model, window=2)
