"""Batches give back the samples they were made of, and name samples that do not fit."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from fgnn import Data, FactorGraph, FactorGroup, collate
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer

ONE = FactorGraph(1, {})
TWO = FactorGraph(2, {"pair": FactorGroup([[0, 1]])})
THREE = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})


@pytest.mark.parametrize(
    "targets",
    [
        (torch.zeros(1, 4), torch.ones(1, 4)),  # a row for each sample
        (torch.zeros(3), torch.ones(2)),  # three rows of two variables, and two of three
        (torch.zeros(0, 2), torch.ones(5, 2)),  # as many rows as variables together
        (torch.zeros(1), torch.ones(1)),
        (torch.tensor(0.0), torch.tensor(1.0)),
        ({"a": torch.zeros(1, 2), "b": torch.tensor(1)}, {"a": torch.ones(4, 2), "b": torch.tensor(2)}),
        (None, None),
    ],
)
@pytest.mark.parametrize("graphs", [(TWO, THREE), (ONE, ONE)])
def test_targets_of_any_rows_come_back(graphs: tuple[FactorGraph, ...], targets: tuple[Any, ...]) -> None:
    samples = [Data(graph, y=y) for graph, y in zip(graphs, targets, strict=True)]
    file = io.BytesIO()
    torch.save(collate(samples), file)
    file.seek(0)
    batch = torch.load(file, weights_only=True)
    for made in (batch, collate([batch]), collate([collate(samples[:1]), samples[1]]), batch.to("cpu").clone(),
                 tree_map(lambda x: x, batch)):  # fmt: skip
        for one, given in zip(made.unbatch(), samples, strict=True):
            assert str(one.y) == str(given.y)


def test_a_sample_is_a_batch_of_itself() -> None:
    data = Data(THREE, y=torch.zeros(1, 4))
    assert data.unbatch() == [data]


def test_targets_of_other_batches_have_a_row_for_each_sample_or_variable() -> None:
    batch = collate([Data(TWO, y=torch.zeros(4)), Data(THREE, y=torch.zeros(4))])
    assert [one.y.shape for one in replace(batch, y=torch.zeros(5)).unbatch()] == [(2,), (3,)]
    assert [one.y.shape for one in replace(batch, y=torch.zeros(2)).unbatch()] == [(), ()]
    with pytest.raises(ValueError, match=r"data.y with a row for each of 2 samples or 5 variables.*\(got \(3,\)\)"):
        replace(batch, y=torch.zeros(3)).unbatch()


def stacked(edges: Tensor | EdgeTypes) -> Data:
    f = torch.randn(2, 3, 1)
    return Data(THREE, f, {"pair": torch.randn(2, 2)}, {"pair": edges}, y=torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    "edges", [torch.randn(2, 2, 2, 5), torch.eye(2), torch.tensor([0, 1]), EdgeTypes(torch.tensor([0, 1, 1, 0]), 2)]
)
def test_stacked_batches_are_collated_as_their_samples(edges: Tensor | EdgeTypes) -> None:
    batch = stacked(edges)
    alone = batch.unbatch()
    joined = collate([batch, alone[0]])
    assert (batch.num_graphs, joined.num_graphs) == (2, 3)
    assert joined.y.tolist() == [1, 2, 1]
    assert torch.equal(joined.unbatch()[1].f, alone[1].f)
    assert type(collate([joined, joined]).edges["pair"]) is type(edges)
    again = collate([batch, alone[1]], stack=True)
    assert again.f is not None
    assert again.f.shape == (3, 3, 1)


def test_samples_may_differ_in_edge_features_alone() -> None:
    batch = Data(THREE, torch.zeros(3, 1), edges={"pair": torch.randn(4, 2, 2, 5)})
    assert batch.num_graphs == len(batch.unbatch()) == 4


@pytest.mark.parametrize(
    ("f", "g", "t", "message"),
    [
        ((2, 3, 1), (3, 2, 1), (4, 1), "data.f of shape (2, 3, 1) and data.gs['pair'] of shape (3, 2, 1)"),
        ((3, 3, 1), (2, 2, 1), (4, 1), "data.f of shape (3, 3, 1) and data.gs['pair'] of shape (2, 2, 1)"),
        ((1, 3, 1), (2, 2, 1), (5, 4, 1), "data.gs['pair'] of shape (2, 2, 1) and data.edges['pair'] of shape (5,"),
        ((2, 3, 1), (2, 1), (5, 2, 2, 1), "data.f of shape (2, 3, 1) and data.edges['pair'] of shape (5, 2, 2, 1)"),
    ],
)
def test_numbers_of_samples_that_disagree_are_named(f: Any, g: Any, t: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"number of samples in all features, or 1 (got {message}")):
        Data(THREE, torch.ones(f), {"pair": torch.ones(g)}, {"pair": torch.ones(t)})


@pytest.mark.parametrize(
    ("f", "g", "t"),
    [((1, 3, 1), (2, 2, 1), (4, 1)), ((2, 3, 1), (1, 2, 1), (1, 4, 1)), ((3, 1), (1, 2, 1), (2, 2, 2, 1))],
)
def test_features_with_a_leading_one_belong_to_every_sample(f: Any, g: Any, t: Any) -> None:
    batch = Data(THREE, torch.randn(f), {"pair": torch.randn(g)}, {"pair": torch.randn(t)}, y=[0, 1])
    assert batch.num_graphs == len(batch.unbatch()) == 2
    for k, one in enumerate(batch.unbatch()):
        assert one.f is not None
        assert torch.equal(one.f, batch.f.expand(2, 3, 1)[k])
        assert torch.equal(one.gs["pair"], batch.gs["pair"].expand(2, 2, 1)[k])
        assert (one.y, one.stacked) == (k, None)


@pytest.mark.parametrize("edges", [torch.eye(2), torch.tensor([0, 1]), EdgeTypes(torch.tensor([0, 1, 1, 0]), 2)])
def test_samples_that_share_all_features_stay_apart(edges: Tensor | EdgeTypes) -> None:
    samples = [Data(THREE, edges={"pair": edges}, y=float(k)) for k in range(3)]
    batch = collate(samples, stack=True)
    assert batch.num_graphs == 3
    for one, given in zip(batch.unbatch(), samples, strict=True):
        assert one.y == given.y
        assert torch.equal(one.edge_rows()["pair"], given.edge_rows()["pair"])
    q = "basis" if isinstance(edges, Tensor) and edges.is_floating_point() else "table"
    layer = FGNNLayer(0, {"pair": 0}, {"pair": 2}, 4, q=q)
    torch.testing.assert_close(layer(*batch.inputs)[0], torch.stack([layer(*one.inputs)[0] for one in samples]))


def test_samples_without_features_are_joined_instead() -> None:
    samples = [Data(THREE, y=float(k)) for k in range(3)]
    with pytest.raises(ValueError, match=r"features f, gs or edges .* \(got none in 3 samples\); .*stack=False"):
        collate(samples, stack=True)
    assert collate(samples).num_graphs == 3


def test_targets_of_a_stacked_batch_have_a_row_for_each_sample() -> None:
    with pytest.raises(ValueError, match=r"data.y of shape \(2, ...\) to unbatch \(got \(3,\)\)"):
        replace(stacked(torch.eye(2)), y=torch.zeros(3)).unbatch()


def test_parts_of_tuples_and_dicts_are_collated() -> None:
    data = Data(THREE, torch.zeros(3, 1))
    batch, (numbers, named) = collate([(data, (k, {"z": torch.ones(2), "d": data})) for k in range(3)])
    assert batch.num_graphs == named["d"].num_graphs == 3
    assert numbers.tolist() == [0, 1, 2]
    assert named["z"].shape == (3, 2)
    loader: Any = DataLoader([(data, 1)] * 4, batch_size=2, collate_fn=partial(collate, stack=True))
    assert all(one.f.shape == (2, 3, 1) for one, _ in loader)


def lacking() -> Data:
    return Data(TWO, gs={"pair": torch.zeros(1, 2)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [Data(TWO, y=1.0), Data(TWO, y=[1.0])], "data.y a number in all samples, as in sample 0 (got (·) in"),
        (lambda: [Data(TWO, y={"e": [1.0]}), Data(TWO, y={"e": 1.0})], "data.y['e'] (·) in all samples"),
        (lambda: [Data(TWO, y=1.0), Data(TWO, y=1)], "a number of torch.float32 on cpu in all samples"),
        (lambda: [Data(TWO, torch.ones(2, 1)), Data(TWO, torch.ones(2, 1).double())], "torch.float64 on cpu in"),
        (lambda: [Data(TWO, torch.ones(2, 1)), Data(TWO)], "(·, 1) in all samples, as in sample 0 (got none"),
        (lambda: [Data(ONE), lacking(), Data(TWO)], "gs['pair'] (·, 2) in all samples, as in sample 1 (got none in"),
    ],
)  # fmt: skip
def test_samples_that_differ_are_named(make: Callable[[], list[Data]], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        collate(make())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(TWO, gs=torch.zeros(1, 2)), "data.gs as a dict by group (got tensor of shape (1, 2))"),
        (lambda: Data(TWO, edges=[1]), "data.edges as a dict by group (got list)"),
        (lambda: Data(TWO, edges={"pair": [1]}), "data.edges['pair'] as a tensor or EdgeTypes (got list)"),
    ],
)  # fmt: skip
def test_features_by_group_are_dicts_of_tensors(make: Callable[[], Data], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: collate([Data(TWO)], groups=TWO), "(fgnn.Data) with all groups as groups (got FactorGraph)"),
        (lambda: collate([Data(TWO)], groups=["pair"]), "(fgnn.Data) with all groups as groups (got list)"),
        (lambda: collate(Data(TWO)), "a list of samples to collate (got Data)"),
        (lambda: collate({"a": Data(TWO)}), "a list of samples to collate (got dict)"),
        (lambda: collate(None), "a list of samples to collate (got NoneType)"),
        (lambda: collate([(TWO, 1)] * 2), "(got FactorGraph); give fgnn.Data(graph)"),
        (lambda: next(iter(DataLoader([{"graph": TWO}] * 2))), "(got FactorGraph); give fgnn.Data(graph)"),
    ],
)  # fmt: skip
def test_what_cannot_be_collated_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_samples_are_copied_and_detached() -> None:
    data = Data(THREE, torch.zeros(3, 1, requires_grad=True), y=1.0)
    copy = data.clone()
    assert copy.f is not None
    assert copy.f.requires_grad
    assert copy.f is not data.f
    assert copy.graph is data.graph
    assert not data.detach().f.requires_grad
    assert data.cpu().graph is THREE


@pytest.mark.gpu
def test_samples_go_to_the_current_gpu_and_back() -> None:
    data = Data(THREE, torch.zeros(3, 1), y=1.0)
    for moved in (data.cuda(), data.cuda(0, non_blocking=True), data.cuda("cuda:0")):
        assert moved.y.device == moved.graph.device == torch.device("cuda", 0)
        assert moved.cpu().y == 1
