"""Check that a layer does not depend on the order of variables, factors and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup

Edges = Mapping[str, Tensor | EdgeTypes]
Layer = Callable[..., Any]  # (graph, f, gs, edges) -> f, or f and gs


def assert_permutation_equivariant(
    layer: Layer,
    graph: FactorGraph,
    f: Tensor,
    gs: Mapping[str, Tensor] | None = None,
    edges: Edges | None = None,
    *,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Check that the order of variables, of factors and of the edges in a scope does not matter.

    Permuted variables (or factors) must give the same rows permuted; scopes permuted together with their edge features
    must give the same rows. The permutations are drawn from ``seed``.

    Args:
        layer: Called as ``layer(graph, f, gs, edges)``; returns f, or f and gs.
        rtol, atol: As in ``torch.testing.assert_close``.

    Raises:
        AssertionError: If an order matters; the message names it.
    """
    gs, edges = dict(gs or {}), dict(edges or {})
    rng = torch.Generator().manual_seed(seed)

    def order(count: int, shuffle: bool) -> Tensor:
        """New place -> old place."""
        return (torch.randperm(count, generator=rng) if shuffle else torch.arange(count)).to(graph.device)

    with torch.no_grad():
        expected_f, expected_gs = call_layer(layer, graph, f, gs, edges)
        for what in ("variables", "factors", "edges"):
            variables = order(graph.num_variables, what == "variables")
            factors = {name: order(g.num_factors, what == "factors") for name, g in graph.groups.items()}
            moved = {
                name: _edge_order(group, factors[name], order(group.num_edges, what == "edges"))
                for name, group in graph.groups.items()
            }
            groups = {name: _permute(g, variables, factors[name], moved[name]) for name, g in graph.groups.items()}
            new_edges = edges
            if what != "variables":
                new_edges = {name: _permute_edges(t, graph, name, moved[name]) for name, t in edges.items()}
            new_f, new_gs = call_layer(
                layer,
                FactorGraph(graph.num_variables, groups),
                f.index_select(-2, variables),
                {name: g.index_select(-2, factors[name]) for name, g in gs.items()},
                new_edges,
            )
            expected = {name: g.index_select(-2, factors[name]) for name, g in expected_gs.items()}
            assert_same(
                (new_f, new_gs),
                (expected_f.index_select(-2, variables), expected),
                f"The result depends on the order of {what}",
                rtol=rtol,
                atol=atol,
            )


def call_layer(
    layer: Layer, graph: FactorGraph, f: Tensor, gs: Any = None, edges: Any = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Call a layer; one that returns no factor features returns none for any group."""
    result = layer(graph, f, gs, edges)
    return result if isinstance(result, tuple) else (result, {})


def assert_same(
    actual: tuple[Tensor, Mapping[str, Tensor]],
    expected: tuple[Tensor, Mapping[str, Tensor]],
    problem: str,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare the features of variables and of each group of factors."""
    pairs = [(actual[0], expected[0]), *((g, expected[1][name]) for name, g in actual[1].items())]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda text: f"{problem}. {text}")


def _edge_order(group: FactorGroup, factors: Tensor, edges: Tensor) -> Tensor:
    """Sort the edges, already in the order ``edges``, by the new places of their factors.  # shape: (E,)"""
    rank = torch.argsort(factors)[group.factor_index()]
    return edges[torch.argsort(rank[edges], stable=True)]


def _permute(group: FactorGroup, variables: Tensor, factors: Tensor, edges: Tensor) -> FactorGroup:
    scopes = torch.argsort(variables)[group.scopes.reshape(-1)[edges]]
    if group.offsets is None:
        return FactorGroup(scopes.reshape(group.scopes.shape))
    sizes = group.offsets.diff()[factors]
    return FactorGroup(scopes, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def _permute_edges(t: Tensor | EdgeTypes, graph: FactorGraph, name: str, order: Tensor) -> Tensor | EdgeTypes:
    """Edge features in a new order of edges; those given by place are first expanded to every edge."""
    if isinstance(t, EdgeTypes):
        return EdgeTypes(t.index[order], t.num_types)
    from fgnn.nn.edge_features import flatten_edges

    incidence = graph.incidence(name)
    is_float = t.dtype.is_floating_point
    flat, by_place = flatten_edges(t, incidence, int(t.shape[-1]) if is_float else None)
    if by_place:
        return flat[incidence.positions.index][order]
    return flat.index_select(flat.dim() - (2 if is_float else 1), order)
