"""Batching never changes a result: shared structure, concatenation, and one by one agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import FactorGraph
from fgnn.nn import FGNNLayer, GlobalPooling, build
from tests.nn.graphs import features, graphs, ragged_graph, uniform_graph

GROUPS = {"type0": 3, "type1": 3, "type2": 3}


@settings(max_examples=30)
@given(
    parts=st.lists(graphs(), min_size=1, max_size=4),
    q=st.sampled_from(["dense", "basis", "table"]),
    aggregate=st.sampled_from(["max", "sum", "mean", "softmax"]),
)
def test_concatenation_equals_one_by_one(parts: list[FactorGraph], q: str, aggregate: str) -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, GROUPS, GROUPS, 4, q=q, aggregate=aggregate).double()
    inputs = [features(g, 2, GROUPS, GROUPS, types=q == "table", seed=k) for k, g in enumerate(parts)]
    whole = FactorGraph.concat(parts)
    names = list(whole.groups)
    f, made = layer(
        whole,
        torch.cat([f for f, _, _ in inputs]),
        {k: torch.cat([gs[k] for _, gs, _ in inputs if k in gs]) for k in names},
        {k: torch.cat([edges[k] for _, _, edges in inputs if k in edges]) for k in names},
    )
    apart = [layer(g, *one) for g, one in zip(parts, inputs, strict=True)]
    torch.testing.assert_close(f, torch.cat([one for one, _ in apart]), rtol=1e-12, atol=1e-12)
    for name in names:
        expected = torch.cat([gs[name] for _, gs in apart if name in gs])
        torch.testing.assert_close(made[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("q", ["dense", "basis", "table"])
@pytest.mark.parametrize("graph", [uniform_graph(), ragged_graph()], ids=["uniform", "ragged"])
def test_shared_structure_equals_one_by_one_and_concatenation(graph: FactorGraph, q: str, batch: int) -> None:
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    net = build(
        "FGNN(6) - Res[FC(4) - FGNN(6)] - GlobalPooling - FC(5) - FGNN(2)",
        variable_in=2, factor_in=widths, edge_in=widths, q=q,
    ).double()  # fmt: skip
    f, gs, edges = features(graph, 2, widths, widths, batch=batch, types=q == "table")
    shared = net(graph, f, gs, edges)
    apart = [net(graph, f[b], {k: g[b] for k, g in gs.items()}, edges) for b in range(batch)]
    torch.testing.assert_close(shared, torch.stack(apart), rtol=1e-11, atol=1e-11)
    side_by_side = net(
        FactorGraph.concat([graph] * batch),
        f.flatten(0, 1),
        {k: g.flatten(0, 1) for k, g in gs.items()},
        {k: torch.cat([t] * batch) for k, t in edges.items()},
    )
    torch.testing.assert_close(side_by_side, shared.flatten(0, 1), rtol=1e-11, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("q", ["dense", "basis", "table"])
@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax"])
def test_cpu_and_gpu_agree(q: str, aggregate: str) -> None:
    graph = ragged_graph()
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q=q, aggregate=aggregate).double()
    f, gs, edges = features(graph, 2, widths, widths, batch=5, types=q == "table")
    here, made = layer(graph, f, gs, edges)
    there, made_there = layer.cuda()(
        graph.to("cuda"), f.cuda(), {k: g.cuda() for k, g in gs.items()}, {k: t.cuda() for k, t in edges.items()}
    )
    torch.testing.assert_close(there.cpu(), here, rtol=1e-10, atol=1e-10)
    for name in made:
        torch.testing.assert_close(made_there[name].cpu(), made[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("q", ["dense", "basis", "table"])
@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax"])
@pytest.mark.parametrize("graph", [uniform_graph(), ragged_graph()], ids=["uniform", "ragged"])
def test_a_batch_without_samples_gives_none_and_zero_gradients(graph: FactorGraph, q: str, aggregate: str) -> None:
    sizes = dict.fromkeys(graph.groups, 3)
    f, gs, edges = features(graph, 2, sizes, sizes, batch=0, types=q == "table")
    layer = FGNNLayer(2, sizes, sizes, 4, q=q, aggregate=aggregate, bias=True).double()
    new_f, new_gs = layer(graph, f.requires_grad_(), gs, edges)
    assert new_f.shape == (0, graph.num_variables, 4)
    (new_f.sum() + sum(g.sum() for g in new_gs.values())).backward()
    assert f.grad is not None
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_pooling_of_no_samples() -> None:
    for graph in (uniform_graph(), FactorGraph.concat([uniform_graph(), ragged_graph()])):
        assert GlobalPooling()(graph, torch.zeros(0, graph.num_variables, 3), {})[0].shape[-1] == 6
