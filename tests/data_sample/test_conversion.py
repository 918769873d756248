"""Batches go to PyG's batches and back."""

from __future__ import annotations

import re
from typing import Any

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


def test_batches_of_pyg_whose_samples_lack_a_group_are_refused() -> None:
    data = pyg.Batch.from_data_list([graph.to_hetero_data() for graph in (THREE, TWO, THREE)])
    for convert in (FactorGraph.from_hetero_data, Data.from_hetero_data):
        with pytest.raises(ValueError, match=r"group 'ring' each \(got 2 of 3\); fgnn.collate"):
            convert(data)


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


KIND = ("c", "in", "variable")


def hetero(index: Any, nodes: dict[str, Any], **features: Any) -> Any:
    data = pyg.HeteroData()
    data["variable"].num_nodes = 4
    data["c"].update(nodes)
    data[KIND].update({"edge_index": index, **features})
    return data


def test_factors_are_counted_by_their_features() -> None:
    found = Data.from_hetero_data(hetero(torch.tensor([[0, 0], [0, 1]], dtype=torch.int32), {"x": torch.ones(3, 1)}))
    assert found.graph.groups["c"].lists() == [[0, 1], [], []]
    assert found.gs["c"].shape == (3, 1)


INDEX = torch.tensor([[0, 0, 1], [0, 1, 1]])
COUNT = {"num_nodes": 2}
ROWS = "with a row for each of 3 edges"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (hetero(INDEX, COUNT, edge_attr=torch.ones(5, 2)), f"edge_attr of {KIND} {ROWS} (got (5, 2))"),
        (hetero(INDEX, COUNT, edge_attr=torch.ones(2, 2)), f"edge_attr of {KIND} {ROWS} (got (2, 2))"),
        (hetero(INDEX, COUNT, edge_attr=torch.tensor(1)), f"edge_attr of {KIND} {ROWS} (got ())"),
        (hetero(INDEX + 2, COUNT), f"factors 0 to 1 in edge_index of {KIND}, as data['c'] has 2 (got 2)"),
        (hetero(INDEX - 1, COUNT), f"factors 0 to 1 in edge_index of {KIND}, as data['c'] has 2 (got -1)"),
        (hetero(INDEX, {"num_nodes": 0}), f"no factors in edge_index of {KIND}, as data['c'] has 0 (got 0)"),
        (hetero(INDEX.float(), COUNT), f"edge_index of {KIND} in integers (got torch.float32)"),
        (hetero(INDEX.tolist(), COUNT), f"edge_index of {KIND} as a tensor of shape (2, E) (got list)"),
        (hetero(None, COUNT), f"edge_index of {KIND} as a tensor of shape (2, E) (got NoneType)"),
        (hetero(INDEX, {}), "data['c'].num_nodes, or features data['c'].x to count (got neither)"),
    ],
)  # fmt: skip
def test_sizes_that_disagree_are_named(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Data.from_hetero_data(data)


def test_variables_must_be_counted_too() -> None:
    data = pyg.HeteroData()
    data["variable"].name, data["c"].num_nodes = "v", 1
    data[KIND].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(ValueError, match=r"data\['variable'\].num_nodes, or .*got neither"):
        FactorGraph.from_hetero_data(data)


def test_transposed_edges_are_named() -> None:
    data = pyg.HeteroData()
    data["variable"].num_nodes, data["c"].num_nodes = 3, 2
    data["c", "in", "variable"].edge_index = torch.tensor([[0, 1], [0, 2], [1, 2]])
    with pytest.raises(ValueError, match=r"edge_index of \('c', 'in', 'variable'\) of shape \(2, E\) \(got \(3, 2\)\)"):
        FactorGraph.from_hetero_data(data)
    with pytest.raises(ValueError, match=r"variable 0 twice .*FactorGroup\(edge_index.T\)"):
        FactorGraph(3, {"pair": FactorGroup(torch.tensor([[0, 1, 0], [1, 2, 2]]))})
