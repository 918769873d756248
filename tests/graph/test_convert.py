"""Conversion to and from networkx and PyG keeps the structure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from fgnn import FactorGraph, FactorGroup
from tests.nn.graphs import graphs


def same(one: FactorGraph, other: FactorGraph) -> bool:
    return one.num_variables == other.num_variables and {k: g.lists() for k, g in one.groups.items()} == {
        k: g.lists() for k, g in other.groups.items()
    }


@settings(max_examples=20)
@given(graphs())
def test_networkx_round_trip(graph: FactorGraph) -> None:
    made = graph.to_networkx()
    assert made.number_of_edges() == graph.num_edges
    assert same(FactorGraph.from_networkx(made), graph)


def test_networkx_can_write_a_graph_to_a_file(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
    networkx.write_graphml(networkx.relabel_nodes(graph.to_networkx(), str), tmp_path / "graph.graphml")
    assert (tmp_path / "graph.graphml").stat().st_size


def test_networkx_graphs_of_another_form_are_refused() -> None:
    nx = pytest.importorskip("networkx")
    with pytest.raises(ValueError, match=r'Expected nodes \("variable", i\) and \(group, c\) \(got 1\)'):
        FactorGraph.from_networkx(nx.path_graph(3).subgraph([1]))
    bad = nx.Graph([(("f", 0), ("f", 1))])
    with pytest.raises(ValueError, match="Expected edges between factors and variables only"):
        FactorGraph.from_networkx(bad)
    with pytest.raises(ValueError, match="Expected variables numbered 0 to 0"):
        FactorGraph.from_networkx(nx.Graph([(("f", 0), ("variable", 1))]))
    gap = nx.Graph([(("f", 1), ("variable", 0))])
    with pytest.raises(ValueError, match="Expected factors of 'f' numbered 0 to 0"):
        FactorGraph.from_networkx(gap)


@settings(max_examples=20)
@given(graphs())
def test_hetero_data_round_trip(graph: FactorGraph) -> None:
    pytest.importorskip("torch_geometric")
    data = graph.to_hetero_data()
    assert data["variable"].num_nodes == graph.num_variables
    assert sum(data[kind].edge_index.shape[1] for kind in data.edge_types) == graph.num_edges
    assert same(FactorGraph.from_hetero_data(data), graph)


def test_hetero_data_edges_may_come_in_any_order() -> None:
    hetero = pytest.importorskip("torch_geometric.data").HeteroData
    data = hetero()
    data["variable"].num_nodes, data["clause"].num_nodes = 4, 2
    data["clause", "has", "variable"].edge_index = torch.tensor([[1, 0, 1, 0], [3, 2, 1, 0]])
    assert FactorGraph.from_hetero_data(data).groups["clause"].scopes.tolist() == [[2, 0], [3, 1]]
    data["variable", "next", "variable"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r'Expected edge types \(group, relation, "variable"\)'):
        FactorGraph.from_hetero_data(data)


def test_the_name_variable_is_taken() -> None:
    graph = FactorGraph(2, {"variable": FactorGroup([[0, 1]])})
    for convert in (graph.to_networkx, graph.to_hetero_data):
        with pytest.raises(ValueError, match='Expected no group called "variable"'):
            convert()
