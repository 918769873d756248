"""Batches with the same groups whatever their samples have."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fgnn import Data, FactorGraph, FactorGroup, collate
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, build

PAIR, RAGGED = [[0, 1], [1, 2]], [[0, 1, 2], [0, 1]]


def sample(*groups: str) -> Data:
    scopes = {"pair": FactorGroup(PAIR), "ring": FactorGroup(RAGGED), "kind": FactorGroup(PAIR)}
    edges = {"pair": torch.eye(2), "ring": torch.ones(5, 3), "kind": EdgeTypes(torch.tensor([0, 1, 1, 0]), 2)}
    graph = FactorGraph(3, {name: scopes[name] for name in groups})
    gs = {name: torch.ones(2, 4) for name in groups if name != "kind"}
    return Data(graph, torch.ones(3, 1), gs, {name: edges[name] for name in groups}, y=1.0)


ALL = sample("pair", "ring", "kind")


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("groups", [(), ("ring",), ("kind", "pair"), ("ring", "kind", "pair")])
def test_every_batch_has_all_groups_in_the_same_order(groups: tuple[str, ...], stack: bool) -> None:
    batch = collate([sample(*groups)] * 2, stack=stack, groups=ALL)
    assert list(batch.graph.groups) == ["pair", "ring", "kind"]
    assert (set(batch.gs), set(batch.edges)) == ({"pair", "ring"}, {"pair", "ring", "kind"})
    absent = [name for name in batch.graph.groups if name not in groups]
    assert all(batch.graph.groups[name].num_factors == 0 for name in absent)
    for one in batch.unbatch():
        assert {name for name, group in one.graph.groups.items() if group.num_factors} == set(groups)


@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax"])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_every_parameter_gets_a_gradient_from_every_batch(aggregate: str, norm: Any) -> None:
    net = build(
        "FGNN(4) - Res[FC(4) - FGNN(4) - FC(4)] - FGNN(1)",
        variable_in=1, factor_in={"pair": 4, "ring": 4, "kind": 0}, edge_in={"pair": 2, "ring": 3},
        aggregate=aggregate, norm=norm,
    )  # fmt: skip
    for groups in ((), ("pair",), ("ring",)):
        net.zero_grad()
        batch = collate([sample(*groups)] * 2, groups=ALL)
        net(batch.graph, batch.f, batch.gs, {k: t for k, t in batch.edges.items() if k != "kind"}).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "none",
    [
        FactorGroup([]),
        *(FactorGroup(torch.empty(0, A).long()) for A in (2, 3)),
        FactorGroup(torch.empty(0).long(), [0]),
    ],
)
@pytest.mark.parametrize("t", [torch.eye(2), torch.tensor([0, 1])])
def test_features_by_position_fit_a_group_without_factors(none: FactorGroup, t: Tensor) -> None:
    atom = Data(FactorGraph(1, {"pair": none}), torch.ones(1, 1), edges={"pair": t}, y=1.0)
    chain = Data(FactorGraph(3, {"pair": FactorGroup(PAIR)}), torch.ones(3, 1), edges={"pair": t}, y=2.0)
    q: Any = "basis" if t.is_floating_point() else "table"
    layer = FGNNLayer(1, {"pair": 0}, {"pair": 2}, 4, q=q)
    apart = [layer(*one.inputs)[0] for one in (atom, chain)]
    for samples in ([atom, chain], [chain, atom], [atom, atom]):
        batch = collate(samples)
        assert [one.num_graphs for one in (batch, collate([batch, *batch.unbatch()]))] == [2, 4]
        wanted = torch.cat([apart[0 if one is atom else 1] for one in samples])
        torch.testing.assert_close(layer(*batch.inputs)[0], wanted)
    assert [one.num_graphs for one in (collate([atom] * 2, stack=True), collate([atom], groups=chain))] == [2, 1]
    assert collate([chain], groups=atom).edges["pair"] is not None


def test_groups_that_the_example_lacks_are_named() -> None:
    with pytest.raises(ValueError, match=r"groups \['pair'\] \(got \['ring'\]\)"):
        collate([sample("ring")], groups=sample("pair"))


def test_a_loader_adds_them() -> None:
    loader = DataLoader([sample("pair")] * 2, collate_fn=partial(collate, groups=ALL), num_workers=1)
    assert all(list(batch.graph.groups) == ["pair", "ring", "kind"] for batch in loader)
