"""Edge features in the forms that layers accept, brought into edge order."""

from __future__ import annotations

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
    edges, arity, factors = group.num_edges, group.arity, group.num_factors
    lead = t.shape if width is None else t.shape[:-1]
    tail = () if width is None else (int(t.shape[-1]),)
    if width is None or (t.dim() and t.shape[-1] == width):
        if tuple(lead) == (edges,):
            return t, False
        if arity is not None and tuple(lead[-2:]) == (factors, arity) and len(lead) in (2, 3):
            return t.reshape(*lead[:-2], edges, *tail), False
        if len(lead) == 2 and lead[1] == edges:
            return t, False
        if arity is not None and tuple(lead) == (arity,):
            return t, True
        if not factors and len(lead) == 1:  # by position in scopes of any length, as there are none
            return t[:0], False
    end = "" if width is None else f", {width}"
    shapes = [f"(E{end})"] if arity is None else [f"(C, A{end})", f"(E{end})", f"(A{end})"]
    sizes = f"E = {edges}" + ("" if arity is None else f", C = {factors}, A = {arity}")
    raise ValueError(
        f"Expected {name} of shape {' or '.join(shapes)}, or with B in front, where {sizes} (got {tuple(t.shape)})"
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
