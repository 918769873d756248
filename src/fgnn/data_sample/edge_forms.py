"""Edge features of a sample, which may be given by edge, by scope, by position in the scope, or as types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGroup
from fgnn.nn.edge_features import EdgeFeatures, flatten_edges


def check_edges(name: str, t: Any, group: FactorGroup) -> None:
    """Raise a `ValueError` unless the features are those of the group's edges, in one of the forms."""
    if isinstance(t, Tensor):
        _flat(name, t, group)
    elif not isinstance(t, EdgeTypes):
        kind = type(t).__name__
        raise ValueError(f"Expected data.edges[{name!r}] as a tensor or EdgeTypes (got {kind})")  # noqa: TRY004
    elif t.num_edges != group.num_edges:
        raise ValueError(f"Expected types of {group.num_edges} edges as data.edges[{name!r}] (got {t.num_edges})")


def by_sample(name: str, t: EdgeFeatures, group: FactorGroup) -> bool:
    """Whether the samples of a batch have features of their own: (B, ...)."""
    return isinstance(t, Tensor) and _flat(name, t, group)[0].dim() == (3 if t.is_floating_point() else 2)


def by_edge(name: str, t: EdgeFeatures, group: FactorGroup) -> Tensor:
    """The features (E, d) or types (E,) of one sample's edges."""
    if isinstance(t, EdgeTypes):
        return t.index
    if by_sample(name, t, group):
        raise ValueError(f"Expected data.edges[{name!r}] of one sample (got {tuple(t.shape)})")
    flat, by_position = _flat(name, t, group)
    return flat.expand(group.num_factors, *flat.shape).flatten(0, 1) if by_position else flat


def _flat(name: str, t: Tensor, group: FactorGroup) -> tuple[Tensor, bool]:
    width = t.shape[-1] if t.is_floating_point() and t.dim() else None
    return flatten_edges(t, group, width, f"data.edges[{name!r}]")


def serves_all_factors(t: EdgeFeatures, group: FactorGroup) -> bool:
    """Whether features given for one sample hold by position for every factor of the joined group."""
    if isinstance(t, EdgeTypes) or group.arity is None or group.num_factors == 1:
        return False
    return t.shape[0] == group.arity and t.dim() == (2 if t.is_floating_point() else 1)


def split_edges(name: str, t: EdgeFeatures, group: FactorGroup, sizes: Sequence[int]) -> Sequence[EdgeFeatures]:
    """The features of consecutive edges, in the same form where that is possible."""
    if serves_all_factors(t, group):
        return [t] * len(sizes)
    parts = torch.split(by_edge(name, t, group), list(sizes))
    return [EdgeTypes.known(x, t.num_types, len(x)) for x in parts] if isinstance(t, EdgeTypes) else parts


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
