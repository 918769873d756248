"""Graphs side by side, and apart again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn import Data, FactorGraph, FactorGroup
from tests.nn.graphs import graphs


@given(st.lists(graphs(), min_size=1, max_size=4))
def test_apart_again_they_are_what_they_were(parts: list[FactorGraph]) -> None:
    whole = FactorGraph.concat(parts)
    assert whole.num_variables == sum(g.num_variables for g in parts)
    assert whole.num_edges == sum(g.num_edges for g in parts)
    back = whole.unbatch()
    assert len(back) == len(parts) == whole.num_graphs
    for one, other in zip(parts, back, strict=True):
        assert one.num_variables == other.num_variables
        for name, group in one.groups.items():
            assert group.lists() == other.groups[name].lists()
        for name in set(other.groups) - set(one.groups):
            assert other.groups[name].num_factors == 0


def test_numbers_and_pointers() -> None:
    a = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
    b = FactorGraph(2, {"pair": FactorGroup([[1, 0]]), "any": FactorGroup([[0], [1, 0]])})
    whole = FactorGraph.concat([a, b, a])
    assert whole.groups["pair"].scopes.tolist() == [[0, 1], [1, 2], [4, 3], [5, 6], [6, 7]]
    assert whole.groups["any"].lists() == [[3], [4, 3]]
    assert whole.variable_ptr.tolist() == [0, 3, 5, 8]
    assert whole.factor_ptr["pair"].tolist() == [0, 2, 3, 5]
    assert whole.factor_ptr["any"].tolist() == [0, 0, 2, 2]
    assert whole.members().factor.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]


def test_batches_may_be_batched() -> None:
    a = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
    whole = FactorGraph.concat([FactorGraph.concat([a, a]), a])
    assert whole.num_graphs == 3
    assert a.unbatch() == [a]


def test_groups_of_other_arity_become_ragged() -> None:
    a = FactorGraph(3, {"f": FactorGroup([[0, 1], [1, 2]])})
    b = FactorGraph(3, {"f": FactorGroup([[0, 1, 2]])})
    whole = FactorGraph.concat([a, b])
    assert whole.groups["f"].arity is None
    assert whole.groups["f"].lists() == [[0, 1], [1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([Data(FactorGraph(1, {}))], r"FactorGraph as graph 0 \(got Data\); fgnn.collate joins samples"),
        ([FactorGraph(1, {}), None], r"FactorGraph as graph 1 \(got NoneType\)"),
        (FactorGraph(1, {}), r"list of graphs to concatenate \(got FactorGraph\)"),
    ],
)
def test_only_graphs_are_concatenated(graphs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FactorGraph.concat(graphs)


def test_nothing_cannot_be_concatenated() -> None:
    with pytest.raises(ValueError, match="Expected at least one graph"):
        FactorGraph.concat([])
