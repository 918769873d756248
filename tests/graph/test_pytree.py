"""Graphs as pytrees, saved and loaded, and moved between processes."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes, Hints, by_handle
from tests.nn.graphs import graphs


def lists(graph: FactorGraph) -> object:
    return graph.num_variables, {name: group.lists() for name, group in graph.groups.items()}


def loaded(value: object) -> object:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(max_examples=20)
@given(graphs())
def test_graphs_survive_flattening_saving_and_copying(graph: FactorGraph) -> None:
    both = FactorGraph.concat([graph, graph])
    for one in (graph, both):
        leaves, spec = tree_flatten(one)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        assert tree_unflatten(leaves, spec) is one  # with everything derived from it
        for other in (tree_map(torch.clone, one), loaded(one), pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            assert isinstance(other, FactorGraph)
            assert lists(other) == lists(one)
            assert [lists(g) for g in other.unbatch()] == [lists(g) for g in one.unbatch()]


def test_hints_and_graph_sizes_are_kept() -> None:
    graph = FactorGraph(2, {"pair": FactorGroup([[0, 1]])}, hints={"pair": Hints(max_degree=1, covers_all=True)})
    for other in (tree_map(torch.clone, graph), loaded(graph)):
        assert isinstance(other, FactorGraph)
        assert other.structure.hints["pair"] == Hints(1, True)
    joined = loaded(FactorGraph.concat([graph, graph]))
    assert isinstance(joined, FactorGraph)
    assert joined.graph_size == 2


def test_trees_may_hold_placeholders() -> None:
    graph = FactorGraph(3, {"any": FactorGroup([[0, 1], [2]])})
    none = tree_map(lambda _: None, graph)
    assert tree_flatten(none)[1] == tree_flatten(graph)[1]
    assert tree_flatten(none)[0] == [None, None]


def test_a_file_with_scopes_out_of_range_is_refused() -> None:
    graph = FactorGraph(9, {"pair": FactorGroup([[0, 8]])})
    object.__setattr__(graph, "num_variables", 5)
    with pytest.raises(Exception, match="Expected variables 0 to 4 in group 'pair'"):
        loaded(graph)


def test_edge_types_are_saved_and_loaded() -> None:
    types = loaded(EdgeTypes(torch.tensor([0, 2, 1]), 3))
    assert isinstance(types, EdgeTypes)
    assert types.index.tolist() == [0, 2, 1]
    positions = loaded(FactorGraph(3, {"a": FactorGroup([[0, 1], [1, 2]])}).incidence("a").positions)
    assert isinstance(positions, EdgeTypes)
    assert positions.index.tolist() == [0, 1, 0, 1]


def test_handles_name_objects_of_this_process() -> None:
    incidence = FactorGraph(3, {"a": FactorGroup([[0, 1], [1, 2]])}).incidence("a")
    assert by_handle(incidence.handle) is incidence
    other = pickle.loads(pickle.dumps(incidence))
    assert by_handle(other.handle) is other
    assert other.factor.tolist() == incidence.factor.tolist()
