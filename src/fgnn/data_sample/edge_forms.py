"""The forms of edge features: by edge (E, d), by scope (C, A, d), by position in the scope (A, d), or as types."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGroup
from fgnn.nn.edge_matrix import EdgeFeatures


def edge_form(name: str, t: EdgeFeatures, group: FactorGroup) -> tuple[str, bool]:
    """How edge features are given, "edge", "scope" or "position", and whether with a leading B."""
    if isinstance(t, EdgeTypes):
        if t.num_edges == group.num_edges:
            return "edge", False
        raise ValueError(f"Expected types of {group.num_edges} edges as data.edges[{name!r}] (got {t.num_edges})")
    lead = _lead(t)
    forms: dict[tuple[int, ...], str] = {(group.num_edges,): "edge"}
    if group.arity is not None:
        forms = {(group.arity,): "position", (group.num_factors, group.arity): "scope", **forms}
    for form, kind in forms.items():
        if lead == form or (kind != "position" and lead[1:] == form):
            return kind, lead != form
    shapes = " or ".join(f"({', '.join(map(str, form))}, d)" for form in forms)
    raise ValueError(f"Expected data.edges[{name!r}] of shape {shapes} (got {tuple(t.shape)})")


def by_edge(name: str, t: EdgeFeatures, group: FactorGroup) -> Tensor:
    """The features (E, d) or types (E,) of one sample's edges."""
    if isinstance(t, EdgeTypes):
        return t.index
    kind, batched = edge_form(name, t, group)
    if batched:
        raise ValueError(f"Expected data.edges[{name!r}] of one sample (got {tuple(t.shape)})")
    tail = t.shape[len(_lead(t)) :]
    if kind == "position":
        return t.expand(group.num_factors, *t.shape).reshape(group.num_edges, *tail)
    return t.reshape(group.num_edges, *tail)


def serves_all_factors(t: EdgeFeatures, group: FactorGroup) -> bool:
    """Whether features given for one sample hold by position for every factor of the joined group."""
    if isinstance(t, EdgeTypes) or group.arity is None:
        return False
    return _lead(t) == (group.arity,) != (group.num_edges,)


def same_edges(one: EdgeFeatures, other: EdgeFeatures) -> bool:
    """Whether two edge features are equal, form included."""
    if one is other:
        return True
    if isinstance(one, EdgeTypes) and isinstance(other, EdgeTypes):
        return one.num_types == other.num_types and torch.equal(one.index, other.index)
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def map_edges(t: EdgeFeatures, change: Callable[[Tensor], Tensor]) -> EdgeFeatures:
    """The same features in another tensor."""
    if not isinstance(t, EdgeTypes):
        return change(t)
    index = change(t.index)
    return t if index is t.index else EdgeTypes.known(index, t.num_types, t.num_edges)


def _lead(t: Tensor) -> tuple[int, ...]:
    """The shape without the width; types are integers and have none."""
    return tuple(t.shape[:-1] if t.is_floating_point() else t.shape)
