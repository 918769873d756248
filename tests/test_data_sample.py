"""Samples, their batches, and what carries them: loaders, files, devices, other packages."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

import fgnn
from fgnn import Data, FactorGraph, FactorGroup, collate
from fgnn.graph import EdgeTypes
from fgnn.nn import FGNNLayer, GraphPool
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph


def sample(graph: FactorGraph, seed: int = 0, types: bool = False) -> Data:
    """Features of every node and edge; targets of the variables."""
    widths = dict.fromkeys(graph.groups, 3)
    f, gs, edges = features(graph, 2, widths, widths, types=types, seed=seed, dtype=torch.float32)
    return Data(graph, f, gs, edges, y=torch.arange(graph.num_variables) + 100 * seed)


def same(one: Data, other: Data) -> bool:
    lists = [{k: g.lists() for k, g in data.graph.groups.items() if g.num_factors} for data in (one, other)]
    pairs = [(one.f, other.f), (one.y, other.y)]
    for mine, theirs in ((one.gs, other.gs), (one.edge_rows(), other.edge_rows())):
        pairs += [(x, theirs[name]) for name, x in mine.items() if len(x)]
    return lists[0] == lists[1] and all(torch.equal(x, y) for x, y in pairs)  # type: ignore[arg-type]


class Samples(torch.utils.data.Dataset[Data]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, k: int) -> Data:
        return sample((uniform_graph, ragged_graph)[k % 2](), k)


@settings(max_examples=25, deadline=None)
@given(st.lists(graphs(), min_size=1, max_size=3), st.booleans())
def test_a_batch_holds_its_samples_and_a_layer_treats_them_apart(some: list[FactorGraph], types: bool) -> None:
    samples = [sample(graph, k, types) for k, graph in enumerate(some)]
    batch = collate(samples)
    assert batch.num_graphs == len(samples)
    assert all(same(one, other) for one, other in zip(samples, batch.unbatch(), strict=True))
    widths = dict.fromkeys(batch.graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q="table" if types else "basis")
    apart = [layer(*one.inputs)[0] for one in samples]
    torch.testing.assert_close(layer(*batch.inputs)[0], torch.cat(apart), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_workers_gives_the_same_batches(workers: int) -> None:
    loader = DataLoader(Samples(), batch_size=4, collate_fn=collate, num_workers=workers)
    batches = list(loader)
    wanted = [collate([Samples()[k] for k in part]) for part in (range(4), range(4, 6))]
    assert all(same(one, other) for one, other in zip(batches, wanted, strict=True))


def test_torch_collates_samples_by_default() -> None:
    pairs: list[Any] = [(Samples()[k], {"name": k}) for k in range(6)]
    for batch, names in DataLoader(pairs, batch_size=3):
        assert isinstance(batch, Data)
        assert batch.num_graphs == len(names["name"]) == 3


def test_a_module_that_takes_samples_can_be_exported() -> None:
    data = sample(uniform_graph())
    module = torch.nn.Module()
    module.layer = FGNNLayer(2, {"pair": 3, "triple": 3}, {"pair": 3, "triple": 3}, out=2)
    module.forward = lambda one: module.layer(*one.inputs)[0]
    exported = torch.export.export(module, (data,), strict=False).module()
    torch.testing.assert_close(exported(data), module(data))


def test_pygs_loader_batches_them_as_hetero_data() -> None:
    loaders = pytest.importorskip("torch_geometric.loader")
    samples = [sample(uniform_graph(), k) for k in range(3)]
    (batch,) = loaders.DataLoader([one.to_hetero_data() for one in samples], batch_size=3)
    found = Data.from_hetero_data(batch)
    assert found.num_graphs == 3
    assert same(found, collate(samples))
    pooled = GraphPool("sum")(found.graph, found.f)  # type: ignore[arg-type]
    torch.testing.assert_close(pooled, torch.stack([one.f.sum(0) for one in samples]))  # type: ignore[union-attr]


@settings(max_examples=15, deadline=None)
@given(graphs())
def test_features_go_to_networkx_and_pyg_and_back(graph: FactorGraph) -> None:
    data = sample(graph)
    assert same(Data.from_networkx(data.to_networkx()), data)
    assert same(Data.from_hetero_data(data.to_hetero_data()), data)


def test_hetero_features_follow_edges_in_any_order() -> None:
    data = sample(uniform_graph()).to_hetero_data()
    store = data["triple", "contains", "variable"]
    order = torch.tensor([3, 4, 5, 0, 1, 2, *range(6, 15)])
    store.edge_index, store.edge_attr = store.edge_index[:, order], store.edge_attr[order]
    assert same(Data.from_hetero_data(data), sample(uniform_graph()))


def test_networkx_features_are_complete_or_absent() -> None:
    graph = sample(uniform_graph()).to_networkx()
    del graph.nodes["variable", 3]["x"]
    with pytest.raises(ValueError, match=r"all 7 variables or of none \(got 6\)"):
        Data.from_networkx(graph)


def test_samples_of_one_structure_may_share_it() -> None:
    samples = [sample(uniform_graph(), k) for k in range(3)]
    shared = [Data(one.graph, one.f, one.gs, samples[0].edges, one.y) for one in samples]
    batch = collate(shared, stack=True)
    assert batch.f is not None
    assert batch.f.shape == (3, 7, 2)
    assert batch.edges["pair"] is samples[0].edges["pair"]
    assert collate(samples, stack=True).edges["pair"].shape == (3, 8, 3)  # type: ignore[union-attr]
    for made, given_samples in ((batch, shared), (collate(samples, stack=True), samples)):
        assert all(same(one, other) for one, other in zip(given_samples, made.unbatch(), strict=True))
    with pytest.raises(ValueError, match=r"samples of one structure to stack .*as sample 1"):
        collate([samples[0], sample(ragged_graph())], stack=True)
    assert next(iter(DataLoader(shared, batch_size=3, collate_fn=partial(collate, stack=True)))).f.shape == (3, 7, 2)  # type: ignore[arg-type]


def test_features_by_position_stay_so() -> None:
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
    eye = torch.eye(2)
    assert collate([Data(graph, edges={"pair": eye})] * 3).edges["pair"] is eye
    other = collate([Data(graph, edges={"pair": eye}), Data(graph, edges={"pair": 2 * eye})]).edges["pair"]
    assert torch.equal(other, torch.cat([eye, eye, 2 * eye, 2 * eye]))  # type: ignore[arg-type]
    types = EdgeTypes(torch.tensor([0, 1, 1, 0]), 2)
    joined = collate([Data(graph, edges={"pair": types})] * 2).edges["pair"]
    assert isinstance(joined, EdgeTypes)
    assert joined.index.tolist() == [0, 1, 1, 0] * 2
    with pytest.raises(ValueError, match="as many edge types of group 'pair'"):
        collate([Data(graph, edges={"pair": types}), Data(graph, edges={"pair": EdgeTypes(types.index, 3)})])


def test_numbers_as_targets_become_one_vector() -> None:
    graph = FactorGraph(3, {"pair": FactorGroup([[0, 1]])})
    assert collate([Data(graph, y=1.5), Data(graph, y=2.5)]).y.tolist() == [1.5, 2.5]
    assert collate([Data(graph, y=[[1.0, 2.0]])] * 2).y.shape == (2, 2)


def several(graph: FactorGraph, seed: int) -> Data:
    """A sample with a target of its own and one for each variable."""
    forces = torch.randn(graph.num_variables, 3, generator=torch.Generator().manual_seed(seed))
    return replace(sample(graph, seed), y={"energy": float(seed), "forces": forces})


def test_several_targets_by_name() -> None:
    samples = [several(uniform_graph(), 1), several(ragged_graph(), 2)]
    batch = collate(samples)
    assert {name: tuple(y.shape) for name, y in batch.y.items()} == {"energy": (2,), "forces": (15, 3)}
    assert "y energy (2,), y forces (15, 3)" in repr(batch)
    for one, other in zip(batch.unbatch(), samples, strict=True):
        assert all(torch.equal(one.y[name], other.y[name]) for name in ("energy", "forces"))
    stacked = collate([several(uniform_graph(), 1), several(uniform_graph(), 2)], stack=True)
    assert stacked.y["forces"].shape == (2, 7, 3)
    assert stacked.unbatch()[1].y["energy"] == 2


def test_several_targets_go_everywhere() -> None:
    data = several(uniform_graph(), 1)
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    others = [
        torch.load(file, weights_only=True),
        data.to("cpu"),
        tree_map(torch.clone, data),
        Data.from_networkx(data.to_networkx()),
        next(iter(DataLoader([data], collate_fn=collate, num_workers=1))).unbatch()[0],
    ]
    if find_spec("torch_geometric"):
        others.append(Data.from_hetero_data(data.to_hetero_data()))
    for other in others:
        assert torch.equal(other.y["forces"], data.y["forces"])
    assert data.to("meta").y["energy"].device.type == "meta"


def test_targets_of_some_samples_only_are_named() -> None:
    graph = FactorGraph(2, {"pair": FactorGroup([[0, 1]])})
    with pytest.raises(ValueError, match=r"data.y of \['e'\] .* \(got none in sample 0\)"):
        collate([Data(graph), Data(graph, y={"e": 1.0})])


def test_non_blocking_may_be_the_second_argument() -> None:
    graph = FactorGraph(2, {"pair": FactorGroup([[0, 1]])})
    assert Data(graph, torch.ones(2, 1)).to("cpu", True).f is not None


def test_floating_point_tensors_change_their_dtype() -> None:
    data = several(uniform_graph(), 1)
    for other in (data.to(torch.float64), data.to("cpu", torch.float64), data.to(dtype=torch.float64)):
        assert other.f is not None
        assert {other.f.dtype, other.gs["pair"].dtype, other.y["forces"].dtype} == {torch.float64}
        assert other.graph is data.graph
    typed = sample(uniform_graph(), types=True).to(torch.float16)
    assert typed.edges["pair"].dtype == typed.y.dtype == torch.int64
    with pytest.raises(ValueError, match=r"floating-point dtype .*got torch.int64"):
        data.to(torch.int64)


def test_groups_without_factors_are_kept_by_networkx() -> None:
    scopes = torch.empty(0, 2, dtype=torch.long)
    graph = FactorGraph(2, {"none": FactorGroup(scopes), "any": FactorGroup([]), "pair": FactorGroup([[0, 1]])})
    data = Data(graph, torch.zeros(2, 3), {"none": torch.zeros(0, 4)}, {"none": torch.zeros(0, 5)})
    other = Data.from_networkx(data.to_networkx())
    assert other.graph.structure.key == graph.structure.key
    assert (other.gs["none"].shape, other.edge_rows()["none"].shape) == ((0, 4), (0, 5))
    nothing = Data(FactorGraph(0, {}), torch.zeros(0, 3))
    assert Data.from_networkx(nothing.to_networkx()).f.shape == (0, 3)


def test_samples_are_saved_moved_and_mapped() -> None:
    data = collate([sample(uniform_graph()), sample(ragged_graph(), 1)])
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=True), data.to("cpu"), tree_map(torch.clone, data)):
        assert same(other, data)
    assert data.to("meta").graph.device.type == "meta"


@pytest.mark.gpu
def test_pinned_batches_reach_a_gpu_on_another_stream() -> None:
    data = collate([sample(uniform_graph()), sample(ragged_graph(), 1)]).pin_memory()
    assert data.f is not None
    assert data.f.is_pinned()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        moved = data.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    moved.record_stream(torch.cuda.current_stream())
    assert same(moved.to("cpu"), data)


def test_a_model_is_a_sample() -> None:
    model = fgnn.GraphicalModel([2, 2, 2])
    model.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
    model.add_budget((0, 1, 2), at_most=2)
    data = Data.from_model(model, y=fgnn.solve(model).assignment)
    assert data.gs["table2x2"].shape == (1, 4)
    assert collate([data, data]).y.shape == (6,)


GRAPH = uniform_graph()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data(torch.zeros(3)), "FactorGraph as data.graph (got Tensor)"),  # type: ignore[arg-type]
        (lambda: Data(GRAPH, torch.zeros(5, 2)), "data.f of shape (7, d), or (B, 7, d) (got (5, 2))"),
        (lambda: Data(GRAPH, gs={"pair": torch.zeros(5, 2)}), "data.gs['pair'] of shape (4, d)"),
        (lambda: Data(GRAPH, gs={"pears": torch.zeros(5, 2)}), "['pair', 'triple'] (got ['pears'])"),
        (lambda: Data(GRAPH, edges={"pair": torch.zeros(5, 2)}), "data.edges['pair'] of shape (C, A, 2) or (E, 2) or"),
        (lambda: Data(GRAPH, y="text"), "data.y as a tensor or numbers (got str)"),
        (lambda: Data(GRAPH, y=(torch.zeros(2), torch.zeros(3, 1))), "(got tuple of tensors (2,), (3, 1))"),
        (lambda: Data(GRAPH, y={"name": "text"}), "data.y['name'] as a tensor or numbers (got str)"),
        (lambda: collate([Data(GRAPH, y={"a": 1}), Data(GRAPH, y={"b": 1})]), "data.y of ['a'] in all samples (got"),
        (lambda: collate([Data(GRAPH, y={"a": 1}), Data(GRAPH, y=1)]), "['a'] in all samples (got () in sample 1)"),
        (lambda: collate([Data(GRAPH), Data(GRAPH, y=1)], stack=True), "data.y none in all samples, as in"),
        (lambda: collate([]), "at least one sample"),
        (lambda: collate([sample(GRAPH), 3]), "fgnn.Data samples (got int as sample 1)"),  # type: ignore[list-item]
        (lambda: collate([Data(GRAPH, torch.zeros(7, 2)), Data(GRAPH, torch.zeros(7, 3))]), "data.f (·, 2)"),
        (lambda: collate([sample(GRAPH), Data(GRAPH, torch.zeros(7, 2))]), "data.gs['pair'] (·, 3)"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_tensor_group_and_shapes(make: Callable[[], Data], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_inputs_run_a_training_step() -> None:
    """The ten lines of the documentation."""
    loader = DataLoader(Samples(), batch_size=3, collate_fn=collate, shuffle=True, generator=torch.Generator())
    layer = FGNNLayer(2, {"pair": 3, "triple": 3, "any": 3}, {"pair": 3, "triple": 3, "any": 3}, out=1)
    optimiser = torch.optim.Adam(layer.parameters())
    for batch in loader:
        f, _ = layer(*batch.inputs)
        loss: Tensor = (GraphPool("mean")(batch.graph, f) - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert torch.isfinite(loss)


def test_samples_of_one_structure_share_a_graph_on_the_other_device() -> None:
    def draw(last: int) -> Data:
        return Data(FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, last]])}), torch.zeros(3, 2))

    one, other, different = (draw(last).to("meta") for last in (2, 2, 0))
    assert one.graph is other.graph
    assert one.graph is not different.graph
    assert one.graph.device.type == "meta"
    assert draw(2).to("cpu").graph.device.type == "cpu"
    batch = collate([draw(2), draw(2)], stack=True)
    assert batch.to("meta").graph is one.graph
