"""Edge features in the forms that layers accept, brought into edge order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGroup, Incidence

EdgeFeatures = Tensor | EdgeTypes


def flatten_edges(
    t: Tensor, group: Incidence | FactorGroup, width: int | None, name: str = "edge features"
) -> tuple[Tensor, bool]:
    """Features (or types, with ``width`` None) as one row per edge or one row per position in the scope.

    ``name`` is what an error calls them.

    Returns:
        (E, ·) or (B, E, ·) and False; or (A, ·) and True.
    """
    lead = t.shape if width is None else t.shape[:-1]
    tail = () if width is None else (int(t.shape[-1]),)
    form = _form(lead, group) if width is None or (t.dim() and t.shape[-1] == width) else None
    if form == "scopes":
        return t.reshape(*lead[:-2], group.num_edges, *tail), False
    if form == "nothing":
        return t[:0], False
    if form is not None:
        return t, form == "positions"
    raise ValueError(
        f"Expected {name} {_forms(group, width)} (got {tuple(t.shape)}){_AS_TYPES if width is None else ''}"
    )


def _form(
    lead: Sequence[int], group: Incidence | FactorGroup
) -> Literal["edges", "scopes", "positions", "nothing"] | None:
    """What these axes stand for: (B?, E), (B?, C, A) or (A,), also without any factors; None if for no such."""
    edges, arity, factors = group.num_edges, group.arity, group.num_factors
    if tuple(lead) == (edges,):
        return "edges"
    if arity is not None and tuple(lead[-2:]) == (factors, arity) and len(lead) in (2, 3):
        return "scopes"
    if len(lead) == 2 and lead[1] == edges:
        return "edges"
    if arity is not None and tuple(lead) == (arity,):
        return "positions"
    return "nothing" if not factors and len(lead) == 1 else None


_AS_TYPES = "; integers are types, use .float() for features"


def _forms(group: Incidence | FactorGroup, width: int | None) -> str:
    """The shapes that edge features may have, for an error."""
    edges, arity, factors = group.num_edges, group.arity, group.num_factors
    end = "" if width is None else f", {width}"
    if arity is None:
        return f"of shape (E{end}), or with B in front, where E = {edges}"
    sizes = f"E = {edges}, C = {factors}, A = {arity}"
    either = f"of shape (C, A{end}) or (E{end}) or one of these with B in front"
    return f"{either}, or (A{end}) without B, for all factors and samples alike, where {sizes}"


def check_integers(t: Tensor, group: Incidence, num_types: int, name: str) -> None:
    """Refuse integers that are types by their shape, and by their values rather a one-hot of the types.

    As types of scopes, (C, A), such values are common: only those of an identity, a row per position, are refused.
    """
    one_hot = t.dim() > 1 and t.shape[-1] == num_types and _form(t.shape[:-1], group)
    form = _form(t.shape, group)
    if not one_hot or form is None:
        return
    rows = t.long()
    if form == "scopes":
        found = t.dim() == 2 and torch.equal(rows, torch.eye(num_types, dtype=rows.dtype)[: t.shape[0]])
    else:
        found = bool(((rows == 1).sum(-1) == 1).all()) and bool(((rows == 0) | (rows == 1)).all())
    if found:
        got = f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)}"
        raise ValueError(
            f"Expected {name} as integer types or as a floating-point one-hot (got {got}, which may be both); "
            f"use .float() for a one-hot, EdgeTypes(types.flatten(), {num_types}) for types of all edges"
        )


def edge_types(
    t: EdgeFeatures | None, incidence: Incidence, num_types: int, name: str = "edge features"
) -> EdgeTypes | Tensor:
    """The types of the edges, from types or one-hot features; ``name`` is what an error calls them.

    A tensor is read and sorted at every call, with host synchronisation; ``EdgeTypes`` are checked and sorted once.

    Returns:
        ``EdgeTypes``; or, by position, types (A,); or, where samples have their own, types (B, E).
    """
    if isinstance(t, EdgeTypes):
        if t.num_types != num_types or t.num_edges != incidence.num_edges:
            raise ValueError(
                f"Expected {name} of {num_types} types for {incidence.num_edges} edges "
                f"(got {t.num_types} for {t.num_edges})"
            )
        return t
    if t is None:
        if num_types != 1:
            raise ValueError(f"Expected {name}, types 0 to {num_types - 1} (got none)")
        return incidence.one_type
    if t.dtype.is_floating_point:
        one_hot, by_position = flatten_edges(t, incidence, num_types, name)
        types = one_hot.argmax(-1)
        if bool((nn.functional.one_hot(types, num_types) != one_hot).any()):
            raise ValueError(f"Expected {name} one-hot, or integer types, for q='table' (got other values)")
    else:
        flat, by_position = flatten_edges(t, incidence, None, name)
        types = flat.long()
    if by_position or types.dim() == 2:
        _checked(types.reshape(-1), num_types, name)
        return types
    return _checked(types, num_types, name).prepare()


def _checked(types: Tensor, num_types: int, name: str) -> EdgeTypes:
    try:
        return EdgeTypes(types, num_types)
    except ValueError as error:
        raise ValueError(f"{error} in {name}") from None
