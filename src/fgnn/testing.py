"""Checks for layers of one's own, as the project's tests use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup

Edges = Mapping[str, Tensor | EdgeTypes]


def assert_permutation_equivariant(
    layer: nn.Module,
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

    Renumbered variables (or factors) must give the same rows renumbered; scopes listed in another order, with their
    edge features, must give the same rows. Each order is drawn from ``seed``.

    Args:
        layer: Called as ``layer(graph, f, gs, edges)``; gives f, or f and gs, as layers and networks do.
        rtol, atol: As in ``torch.testing.assert_close``.

    Raises:
        AssertionError: Naming the order that matters.
    """
    gs, edges = dict(gs or {}), dict(edges or {})
    rng = torch.Generator().manual_seed(seed)
    expected_f, expected_gs = _call(layer, graph, f, gs, edges)

    def check(what: str, found: Tensor, expected: Tensor) -> None:
        note = f"The result depends on the order of {what}"
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda text: f"{note}. {text}")

    order = torch.randperm(graph.num_variables, generator=rng).to(graph.device)  # new place -> old variable
    place = torch.argsort(order)
    groups = {name: FactorGroup(place[group.scopes], group.offsets) for name, group in graph.groups.items()}
    new_f, new_gs = _call(layer, FactorGraph(graph.num_variables, groups), f.index_select(-2, order), gs, edges)
    check("variables", new_f, expected_f.index_select(-2, order))
    for name in new_gs:
        check("variables", new_gs[name], expected_gs[name])

    orders = {name: torch.randperm(g.num_factors, generator=rng).to(graph.device) for name, g in graph.groups.items()}
    moved = {name: _factor_edges(group, orders[name]) for name, group in graph.groups.items()}
    groups = {name: _take(group, orders[name], moved[name]) for name, group in graph.groups.items()}
    new_f, new_gs = _call(
        layer,
        FactorGraph(
            graph.num_variables, {name: _take(graph.groups[name], orders[name], moved[name]) for name in moved}
        ),
        f,
        {name: g.index_select(-2, orders[name]) for name, g in gs.items()},
        {name: _move(t, graph, name, moved[name]) for name, t in edges.items()},
    )
    check("factors", new_f, expected_f)
    for name in new_gs:
        check("factors", new_gs[name], expected_gs[name].index_select(-2, orders[name]))

    shuffled = {name: _shuffle_scopes(graph, name, rng) for name in graph.groups}
    groups = {name: _reorder(group, shuffled[name]) for name, group in graph.groups.items()}
    new_f, new_gs = _call(
        layer,
        FactorGraph(graph.num_variables, groups),
        f,
        gs,
        {name: _move(t, graph, name, shuffled[name]) for name, t in edges.items()},
    )
    check("edges", new_f, expected_f)
    for name in new_gs:
        check("edges", new_gs[name], expected_gs[name])


def _call(layer: nn.Module, graph: FactorGraph, f: Tensor, gs: Any, edges: Any) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.no_grad():
        made = layer(graph, f, gs, edges)
    return made if isinstance(made, tuple) else (made, {})


def _factor_edges(group: FactorGroup, order: Tensor) -> Tensor:
    """The old edges in the order they have once factors are reordered.  # shape: (E,)"""
    rank = torch.argsort(order)[group.factor_index()]
    return torch.argsort(rank, stable=True)


def _take(group: FactorGroup, order: Tensor, moved: Tensor) -> FactorGroup:
    if group.offsets is None:
        return FactorGroup(group.scopes[order])
    sizes = group.offsets.diff()[order]
    return FactorGroup(group.scopes[moved], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def _shuffle_scopes(graph: FactorGraph, name: str, rng: torch.Generator) -> Tensor:
    """Edges shuffled within each factor.  # shape: (E,)"""
    factor = graph.groups[name].factor_index()
    mixed = torch.randperm(factor.numel(), generator=rng).to(factor.device)
    return mixed[torch.argsort(factor[mixed], stable=True)]


def _reorder(group: FactorGroup, moved: Tensor) -> FactorGroup:
    return FactorGroup(group.scopes.reshape(-1)[moved].reshape(group.scopes.shape), group.offsets)


def _move(t: Tensor | EdgeTypes, graph: FactorGraph, name: str, moved: Tensor) -> Tensor | EdgeTypes:
    """Edge features in a new order of edges; those given by place are first written out for every edge."""
    if isinstance(t, EdgeTypes):
        return EdgeTypes(t.index[moved], t.num_types)
    from fgnn.nn.edge_features import flatten_edges

    incidence = graph.incidence(name)
    flat, by_place = flatten_edges(t, incidence, int(t.shape[-1]) if t.dtype.is_floating_point else None)
    if by_place:
        return flat[incidence.positions.index][moved]
    axis = flat.dim() - (2 if t.dtype.is_floating_point else 1)
    return flat.index_select(axis, moved)
