"""Groups and graphs: what they hold, what they refuse, and the index tensors they derive."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from fgnn import FactorGraph, FactorGroup
from fgnn.graph import EdgeTypes, Incidence
from tests.nn.graphs import graphs


def test_scopes_may_be_a_table_or_lists() -> None:
    for scopes in ([[0, 1], [1, 2]], torch.tensor([[0, 1], [1, 2]]), np.array([[0, 1], [1, 2]], dtype=np.int32)):
        group = FactorGroup(scopes=scopes)
        assert (group.num_factors, group.num_edges, group.arity) == (2, 4, 2)
        assert group.offsets is None
        assert group.lists() == [[0, 1], [1, 2]]
        assert group.scopes.dtype == torch.long


def test_scopes_may_come_from_an_iterator() -> None:
    for scopes in (zip([0, 1], [1, 2], strict=True), (scope for scope in [[0, 1], [1, 2]]), pairwise(range(3))):
        assert FactorGroup(scopes).lists() == [[0, 1], [1, 2]]
    assert FactorGroup(map(range, [1, 3])).lists() == [[0], [0, 1, 2]]


def test_ragged_scopes() -> None:
    group = FactorGroup([[0], [], [2, 1]])
    same = FactorGroup.ragged(torch.tensor([0, 2, 1]), torch.tensor([0, 1, 1, 3]))
    for one in (group, same):
        assert (one.num_factors, one.num_edges, one.arity) == (3, 3, None)
        assert one.lists() == [[0], [], [2, 1]]
        assert one.factor_index().tolist() == [0, 2, 2]
        assert one.factor_ptr().tolist() == [0, 1, 1, 3]


def test_no_factors_and_empty_scopes_are_fine() -> None:
    assert FactorGroup([]).num_factors == 0
    assert FactorGroup([[], []]).arity == 0
    graph = FactorGraph(2, {"none": FactorGroup([])})
    assert graph.num_edges == 0
    assert FactorGraph(0, {}).num_variables == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorGroup([[0.5, 1.0]]), "Expected integer scopes (got torch.float32)"),
        (lambda: FactorGroup(torch.zeros(3, dtype=torch.long)), "Expected scopes of shape (C, A)"),
        (lambda: FactorGroup([0, 1]), "Expected a list of scopes, each a list of variables (got 0 for one)"),
        (lambda: FactorGroup(None), "Expected scopes as a table (C, A) or a list of lists of variables (got NoneType)"),
        (lambda: FactorGroup.ragged(torch.zeros(3), torch.tensor([0, 3])), "Expected integer scopes"),
        (
            lambda: FactorGroup.ragged(torch.arange(3), torch.tensor([0, 2])),
            "Expected offsets that rise from 0 to 3, the number of edges (got [0, 2])",
        ),
        (lambda: FactorGroup.ragged(torch.arange(3), torch.tensor([0, 2, 1, 3])), "Expected offsets that rise"),
        (lambda: FactorGroup.ragged(torch.zeros(2, 2).long(), torch.tensor([0, 4])), "Expected ragged scopes as"),
        (lambda: FactorGraph(-1, {}), "Expected num_variables >= 0 (got -1)"),
        (lambda: FactorGraph("3", {}), "Expected num_variables as an integer (got '3')"),
        (lambda: FactorGraph(4.0, {}), "Expected num_variables as an integer (got 4.0)"),
        (lambda: FactorGraph(True, {}), "Expected num_variables as an integer (got True)"),
        (lambda: FactorGraph(np.float64(4), {}), "Expected num_variables as an integer (got np.float64(4.0))"),
        (lambda: FactorGraph(torch.tensor(4.0), {}), "Expected num_variables as an integer (got tensor(4.))"),
        (
            lambda: FactorGraph(3, {"p": FactorGroup([[0, 1], [2, 3]])}),
            "Expected variables 0 to 2 in group 'p' (got 3 in the scope of factor 1)",
        ),
        (lambda: FactorGraph(3, {"p": FactorGroup([[-1, 1]])}), "(got -1 in the scope of factor 0)"),
        (
            lambda: FactorGraph(3, {"p": FactorGroup([[0, 1], [2, 1, 2]])}),
            "Expected each variable at most once in a scope (got variable 2 twice in factor 1 of group 'p')",
        ),
        (lambda: FactorGraph(3, {"p": [[0, 1]]}), "Expected a FactorGroup for group 'p' (got list)"),
        (lambda: FactorGraph(3, {"": FactorGroup([[0]])}), "Expected a name for every group"),
        (lambda: FactorGraph(3, {}).incidence("p"), "Expected one of the groups [] (got 'p')"),
        (lambda: EdgeTypes(torch.tensor([0, 2]), 2), "Expected edge types 0 to 1 (got 2)"),
        (lambda: EdgeTypes(torch.tensor([0.0]), 2), "Expected one integer type for each edge"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("count", [np.int64(4), np.uint8(4), torch.tensor(4)])
def test_any_kind_of_integer_counts_variables(count: Any) -> None:
    assert type(FactorGraph(count, {}).num_variables) is int


def test_graphs_do_not_change() -> None:
    graph = FactorGraph(2, {"p": FactorGroup([[0, 1]])})
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.num_variables = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.groups["p"].scopes = torch.zeros(1)


def test_checks_may_be_skipped() -> None:
    assert FactorGraph(1, {"p": FactorGroup([[0, 5]])}, validate=False).num_edges == 2


@given(graphs())
def test_index_tensors_list_the_same_edges_from_both_sides(graph: FactorGraph) -> None:
    for name, group in graph.groups.items():
        edges = graph.incidence(name)
        assert graph.incidence(name) is edges, "made once"
        pairs = [(c, i) for c, scope in enumerate(group.lists()) for i in scope]
        assert list(zip(edges.factor.tolist(), edges.variable.tolist(), strict=True)) == pairs
        for i in range(graph.num_variables):
            of_i = edges.var_edge[edges.var_ptr[i] : edges.var_ptr[i + 1]].tolist()
            assert of_i == [e for e, (_, j) in enumerate(pairs) if j == i]
        for c in range(group.num_factors):
            start, stop = edges.factor_ptr[c : c + 2].tolist()
            assert list(range(start, stop)) == [e for e, (d, _) in enumerate(pairs) if d == c]
        assert edges.positions.index.tolist() == [a for scope in group.lists() for a in range(len(scope))]


@given(graphs())
def test_blocks_hold_every_edge_once_besides_padding(graph: FactorGraph) -> None:
    for name in graph.groups:
        edges = graph.incidence(name).prepare()
        for side in ("factor", "variable"):
            seen = []
            empty = set(range(edges.num_destinations(side)))
            for block in edges.blocks(side):
                at = block.edges
                if at is None:
                    at = torch.arange(block.rows * block.width).view(block.rows, block.width)
                ids = torch.arange(block.rows) if block.destinations is None else block.destinations
                assert torch.equal(edges.destination(side)[at], ids[:, None].expand_as(at))
                keep = torch.ones_like(at, dtype=torch.bool) if block.padding is None else ~block.padding
                seen += at[keep].tolist()
                empty -= set(ids.tolist())
                assert bool((at.diff(dim=1)[keep[:, 1:]] > 0).all()), "in edge order"
            assert sorted(seen) == list(range(edges.num_edges))
            assert edges.has_empty(side) == bool(empty)
    alone = graph.isolated()
    without = [i for i in range(graph.num_variables) if int(graph.variable_degree()[i]) == 0]
    assert ([] if alone is None else alone.nonzero().flatten().tolist()) == without


def test_a_hub_among_leaves_is_not_padded_to() -> None:
    star = FactorGraph(101, {"pair": FactorGroup([[0, i] for i in range(1, 101)])})
    blocks = star.incidence("pair").blocks("variable")
    assert sum(block.rows * block.width for block in blocks) == 200
    assert {block.width for block in blocks} == {1, 100}


@given(graphs())
def test_moving_keeps_everything(graph: FactorGraph) -> None:
    moved = FactorGraph.concat([graph, graph]).to("cpu")
    assert moved.num_graphs == 2
    assert [g.lists() for g in moved.groups.values()] == [
        [*g.lists(), *([i + graph.num_variables for i in scope] for scope in g.lists())] for g in graph.groups.values()
    ]
    assert moved.device.type == "cpu"


def test_it_shows_what_it_holds() -> None:
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1]]), "any": FactorGroup([[0], [1, 2]])})
    assert repr(graph) == (
        "FactorGraph(3 variables; pair: 1 factors, arity 2, 2 edges; any: 2 factors, ragged, 3 edges)"
    )
    assert repr(FactorGraph.concat([graph] * 2)).startswith("FactorGraph(2 graphs, 6 variables; ")
    assert (graph.num_factors, graph.num_edges, graph.num_graphs) == (3, 5, 1)


def test_groups_must_share_a_device() -> None:
    groups = {"a": FactorGroup([[0, 1]]), "b": FactorGroup(torch.zeros(1, 2, dtype=torch.long, device="meta"))}
    with pytest.raises(ValueError, match="Expected all groups on one device"):
        FactorGraph(2, groups, validate=False)


def test_an_incidence_can_be_made_of_any_group() -> None:
    assert Incidence.of(FactorGroup([[0, 2]]), 3).num_edges == 2
