"""The shipped check finds layers that depend on an order, and passes those that do not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, build
from fgnn.testing import assert_permutation_equivariant
from tests.nn.graphs import features, graphs


@given(
    graph=graphs(),
    seed=st.integers(0, 2**16),
    q=st.sampled_from(["dense", "basis", "table"]),
    aggregate=st.sampled_from(["max", "sum", "mean", "softmax"]),
    schedule=st.sampled_from(["sequential", "parallel"]),
)
def test_layers_pass(graph: FactorGraph, seed: int, q: str, aggregate: str, schedule: str) -> None:
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(seed)
    layer = FGNNLayer(2, widths, widths, 4, q=q, aggregate=aggregate, schedule=schedule).double()
    f, gs, edges = features(graph, 2, widths, widths, types=q == "table", seed=seed)
    assert_permutation_equivariant(layer, graph, f, gs, edges, seed=seed, rtol=1e-10, atol=1e-10)


def test_networks_pass() -> None:
    graph = FactorGraph(6, {"pair": FactorGroup([[0, 1], [1, 2], [3, 5]]), "any": FactorGroup([[0, 1, 2], [4]])})
    widths = {"pair": 3, "any": 2}
    net = build(
        "FGNN(8) - Res[FC(8) - FGNN(8)] - GlobalPooling - FC(2)", variable_in=2, factor_in=widths, edge_in=widths
    )
    f, gs, edges = features(graph, 2, widths, widths, batch=3, dtype=torch.float32)
    assert_permutation_equivariant(net, graph, f, gs, edges, atol=1e-5, rtol=1e-4)


class _ByNumber(nn.Module):
    """A layer that looks at the number of a variable."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> torch.Tensor:
        return f * torch.arange(f.shape[-2]).unsqueeze(-1)


class _FirstOfScope(nn.Module):
    """A layer that looks at the first variable of each scope."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> tuple[torch.Tensor, dict]:
        return f, {name: f[group.scopes[:, 0]] for name, group in graph.groups.items()}


class _ByFactorNumber(nn.Module):
    """A layer that looks at the number of a factor."""

    def forward(self, graph: FactorGraph, f: torch.Tensor, gs: object, edges: object) -> tuple[torch.Tensor, dict]:
        return f, {name: torch.arange(group.num_factors).unsqueeze(1) for name, group in graph.groups.items()}


@pytest.mark.parametrize(
    ("layer", "what"), [(_ByNumber(), "variables"), (_FirstOfScope(), "edges"), (_ByFactorNumber(), "factors")]
)
def test_a_layer_that_depends_on_an_order_is_found(layer: nn.Module, what: str) -> None:
    graph = FactorGraph(6, {"pair": FactorGroup([[0, 1], [1, 2], [3, 5], [4, 0]])})
    f = torch.arange(12.0).reshape(6, 2)
    with pytest.raises(AssertionError, match=f"depends on the order of {what}"):
        assert_permutation_equivariant(layer, graph, f, seed=1)
