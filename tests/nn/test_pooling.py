"""Pooling by sample against plain loops, and heads for graphs and edges."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import EdgeHead, GraphHead, GraphPool
from tests.nn.graphs import graphs, ragged_graph


def by_loop(pool: GraphPool, x: Tensor) -> Tensor:
    if not len(x):
        return x.new_zeros(x.shape[1])
    if pool.score is not None:
        return (torch.softmax(pool.score(x), 0) * x).sum(0)
    return {"sum": x.sum(0), "mean": x.mean(0), "max": x.max(0).values}[pool.how]


@settings(max_examples=20, deadline=None)
@given(st.lists(graphs(), min_size=1, max_size=3), st.sampled_from(["sum", "mean", "max", "attention"]))
def test_pooling_equals_a_loop_over_samples(some: list[FactorGraph], how) -> None:
    torch.manual_seed(0)
    pool = GraphPool(how, 3 if how == "attention" else None).double()
    joined = FactorGraph.concat(some)
    f = torch.randn(joined.num_variables, 3, dtype=torch.float64)
    parts = torch.split(f, [graph.num_variables for graph in some])
    torch.testing.assert_close(pool(joined, f), torch.stack([by_loop(pool, part) for part in parts]))
    g = torch.randn(joined.groups["type0"].num_factors, 3, dtype=torch.float64)
    rows = torch.split(g, [graph.groups["type0"].num_factors for graph in some])
    torch.testing.assert_close(pool(joined, g, "type0"), torch.stack([by_loop(pool, part) for part in rows]))
    shared = torch.randn(4, some[0].num_variables, 3, dtype=torch.float64)
    torch.testing.assert_close(pool(some[0], shared), torch.stack([by_loop(pool, x) for x in shared]))


@pytest.mark.parametrize("how", ["sum", "mean", "max", "attention"])
def test_gradients_by_finite_differences(how: str) -> None:
    torch.manual_seed(0)
    graph = FactorGraph.concat([ragged_graph(), FactorGraph(0, {}), FactorGraph(2, {"pair": FactorGroup([[0, 1]])})])
    pool = GraphPool(how, 3 if how == "attention" else None).double()
    f = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool(graph, x), (f,))


def test_heads_score_graphs_and_edges() -> None:
    one = ragged_graph()
    graph = FactorGraph.concat([one, one])
    torch.manual_seed(0)
    assert GraphHead(3, 2, pool="attention", hidden=(5,))(graph, torch.randn(16, 3)).shape == (2, 2)
    head = EdgeHead(3, {"any": 4, "pair": 0}, 2, hidden=(5,))
    f, g = torch.randn(16, 3), torch.randn(12, 4)
    scores = head(graph, f, {"any": g})
    assert scores["pair"].shape == (8, 2)
    message = head.messages["any"]
    incidence = graph.incidence("any")
    expected = [message(g[c], f[i]) for c, i in zip(incidence.factor, incidence.variable, strict=True)]
    torch.testing.assert_close(scores["any"], torch.stack(expected))


@pytest.mark.parametrize("how", ["sum", "mean", "attention"])
def test_large_graphs_are_pooled_in_half_precision(how: str) -> None:
    graph = FactorGraph(70_000, {"pair": FactorGroup([[0, 1]])})
    x = torch.ones(70_000, 1, dtype=torch.float16) / (70_000 if how == "sum" else 1)
    pool = GraphPool(how, 1 if how == "attention" else None).half()
    torch.testing.assert_close(pool(graph, x), torch.ones(1).half(), rtol=0.05, atol=0)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"pooling among .*got 'median'"):
        GraphPool("median")
    with pytest.raises(ValueError, match="width for attention"):
        GraphPool("attention")
    with pytest.raises(ValueError, match=r"\(\.\.\., 8, d\) of the variables to pool \(got \(7, 2\)\)"):
        GraphPool()(ragged_graph(), torch.zeros(7, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, f: GraphPool()(g, f, "pears"), "a group among ['any', 'pair'] (got 'pears')"),
        (lambda g, f: GraphPool()(f, g), "FactorGraph as graph (got tensor of shape (8, 2)); the arguments are"),
        (lambda g, f: GraphPool()(g, {"pair": f}), "as a tensor (got dict); the arguments are (graph, x, group)"),
        (lambda g, f: GraphPool("attention", 3)(g, f), "(..., 8, 3) of the variables to pool (got (8, 2))"),
        (lambda g, f: GraphHead(3, 1)(g, f), "f of shape (..., 8, 3) (got (8, 2))"),
        (lambda g, f: GraphHead(2, 1)(f, g), "FactorGraph as graph (got tensor of shape (8, 2))"),
        (lambda g, f: EdgeHead(2, {"pears": 1}, 1)(g, f, {}), "groups ['pears'] (got ['any', 'pair'])"),
        (lambda g, f: EdgeHead(3, {"pair": 0}, 1)(g, f, {}), "f of shape (8, 3) or (B, 8, 3)"),
        (lambda g, f: EdgeHead(2, {"pair": 4}, 1)(g, f, {}), "gs['pair'] of shape (2, 4) or (B, 2, 4)"),
        (lambda g, f: EdgeHead(2, {"pair": 2}, 1)(g, f, {"pair": f}), "gs['pair'] of shape (2, 2)"),
        (lambda g, f: EdgeHead(2, {"pair": 2}, 1)(g, {"pair": f}, f), "got dict); the arguments are (graph, f, gs)"),
        (lambda g, f: EdgeHead(2, {"pair": 0}, 1)(g, f.double(), {}), "f in the layer's torch.float32"),
        (lambda g, f: GraphHead(2, 1)(g, f.double()), "f in the layer's torch.float32 (got torch.float64)"),
        (lambda g, f: GraphPool("attention", 2)(g, f.long()), "x in floating point (got torch.int64)"),
        (
            lambda g, f: EdgeHead(2, {"pair": 1}, 1)(g, f.expand(2, 8, 2), {"pair": torch.zeros(3, 2, 1)}),
            "number of samples in all features (got f of 2, gs['pair'] of 3)",
        ),
    ],
)  # fmt: skip
def test_heads_name_what_does_not_fit(call: Callable[[FactorGraph, Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call(ragged_graph(), torch.zeros(8, 2))


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
def test_one_structure_is_pooled_by_attention_in_generated_code_with_threads(joined: bool) -> None:
    graph = FactorGraph.concat([ragged_graph()]) if joined else ragged_graph()
    head, x = GraphHead(3, 2, pool="attention"), torch.randn(8, 3, requires_grad=True)
    wanted = torch.autograd.grad(head(graph, x).square().sum(), x)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch._dynamo.reset()
        found = torch.autograd.grad(torch.compile(head)(graph, x).square().sum(), x)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("how", ["sum", "attention"])
def test_sizes_may_be_symbols_and_mistakes_are_named_with_numbers(how: str) -> None:
    for module in (GraphPool(how, 3 if how == "attention" else None), GraphHead(3, 1, pool=how)):
        fast, x = torch.compile(module, backend="eager", fullgraph=True, dynamic=True), torch.randn(8, 3)
        torch._dynamo.reset()
        torch.testing.assert_close(fast(ragged_graph(), x), module(ragged_graph(), x))
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"\(\.\.\., 8, [3d]\).*\(got \(7, 3\)\)"):
            fast(ragged_graph(), x[:7])
