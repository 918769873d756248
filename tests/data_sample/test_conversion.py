"""Batches go to PyG's batches and back."""

from __future__ import annotations

import pytest
import torch

from fgnn import Data, FactorGraph, FactorGroup, collate

pyg = pytest.importorskip("torch_geometric.data")

TWO = FactorGraph(2, {"pair": FactorGroup([[0, 1]])})
THREE = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]]), "ring": FactorGroup([[0, 1, 2]])})


def test_a_joined_batch_is_a_batch_of_pyg() -> None:
    samples = [Data(graph, torch.randn(graph.num_variables, 2), y=torch.randn(3, 1)) for graph in (TWO, THREE)]
    data = collate(samples).to_hetero_data()
    assert data.num_graphs == 2
    assert data["variable"].batch.tolist() == [0, 0, 1, 1, 1]
    assert data["ring"].ptr.tolist() == [0, 0, 1]
    found = Data.from_hetero_data(data)
    assert (found.num_graphs, found.y_rows) == (2, [3, 3])
    assert all(torch.equal(one.y, other.y) for one, other in zip(found.unbatch(), samples, strict=True))


def test_concatenated_graphs_are_a_batch_of_pyg() -> None:
    both = FactorGraph.concat([TWO, THREE])
    data = both.to_hetero_data()
    assert data["pair"].batch.tolist() == [0, 1, 1]
    assert [g.num_variables for g in FactorGraph.from_hetero_data(data).unbatch()] == [2, 3]


def test_targets_by_name_keep_their_rows() -> None:
    batch = collate([Data(TWO, y={"a": torch.ones(3), "b": 1.0})] * 2)
    found = Data.from_hetero_data(batch.to_hetero_data())
    assert found.y_rows == {"a": [3, 3], "b": [1, 1]}
    assert [tuple(one.y["a"].shape) for one in found.unbatch()] == [(3,), (3,)]


def test_stacked_batches_are_refused() -> None:
    batch = collate([Data(TWO, torch.zeros(2, 1))] * 4, stack=True)
    for convert in (batch.to_hetero_data, batch.to_networkx):
        with pytest.raises(ValueError, match=r"joined samples to convert \(got 4 stacked ones\); .*unbatch"):
            convert()


def test_graphs_of_one_node_type_are_refused_with_a_way_out() -> None:
    data = pyg.Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
    for convert in (Data.from_hetero_data, FactorGraph.from_hetero_data):
        with pytest.raises(ValueError, match=r'"variable" and one for each group \(got Data\); .*edge_index.T'):
            convert(data)
        with pytest.raises(ValueError, match=r"got HeteroData"):
            convert(pyg.HeteroData())


def test_transposed_edges_are_named() -> None:
    data = pyg.HeteroData()
    data["variable"].num_nodes, data["c"].num_nodes = 3, 2
    data["c", "in", "variable"].edge_index = torch.tensor([[0, 1], [0, 2], [1, 2]])
    with pytest.raises(ValueError, match=r"edge_index of \('c', 'in', 'variable'\) of shape \(2, E\) \(got \(3, 2\)\)"):
        FactorGraph.from_hetero_data(data)
    with pytest.raises(ValueError, match=r"variable 0 twice .*FactorGroup\(edge_index.T\)"):
        FactorGraph(3, {"pair": FactorGroup(torch.tensor([[0, 1, 0], [1, 2, 2]]))})
