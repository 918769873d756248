"""Conversion to other packages' graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from fgnn import GraphicalModel
from tests.strategies import models

networkx = pytest.importorskip("networkx")


@given(models())
def test_a_model_can_be_rebuilt_from_its_networkx_graph(model: GraphicalModel) -> None:
    model.constant = 0.5
    graph = model.to_networkx()
    assert networkx.is_bipartite(graph)
    by_kind = {
        kind: [d for _, d in graph.nodes(data=True) if d["kind"] == kind] for kind in ("variable", "table", "budget")
    }
    twin = GraphicalModel([d["cardinality"] for d in by_kind["variable"]])
    for i, d in enumerate(by_kind["variable"]):
        twin.add_unary(i, d["unary"])
    for d in by_kind["table"]:
        twin.add_table(d["scope"], d["table"])
    for d in by_kind["budget"]:
        twin.add_budget(d["scope"], d["at_most"], at_least=d["at_least"])
    twin.constant = graph.graph["constant"]
    assert twin == model


def test_edges_join_a_factor_to_its_scope_with_the_axis() -> None:
    model = GraphicalModel([2, 3, 2])
    model.add_table((1, 0), np.zeros((3, 2)))
    model.add_budget((0, 2), at_most=1)
    graph = model.to_networkx()
    assert {v: graph.edges[("table", 0), v]["axis"] for v in graph[("table", 0)]} == {
        ("variable", 1): 0,
        ("variable", 0): 1,
    }
    assert set(graph[("budget", 0)]) == {("variable", 0), ("variable", 2)}
    assert graph.number_of_nodes() == 5
