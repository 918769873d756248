"""The shapes edge features may come in, brought to edge order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fgnn.graph import EdgeTypes, Incidence

EdgeFeatures = Tensor | EdgeTypes


def flatten_edges(t: Tensor, incidence: Incidence, width: int | None) -> tuple[Tensor, bool]:
    """Features (or types, with ``width`` None) with one row for each edge, or one for each place in the scope.

    Returns:
        (E, ·) or (B, E, ·) and False; or (A, ·) and True.
    """
    edges, arity, factors = incidence.num_edges, incidence.arity, incidence.num_factors
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
    end = "" if width is None else f", {width}"
    shapes = [f"(E{end})"] if arity is None else [f"(C, A{end})", f"(E{end})", f"(A{end})"]
    sizes = f"E = {edges}" + ("" if arity is None else f", C = {factors}, A = {arity}")
    raise ValueError(
        f"Expected edge features of shape {' or '.join(shapes)}, or with B in front, where {sizes} "
        f"(got {tuple(t.shape)})"
    )


# What was derived from a tensor of types, kept while the tensor lives and is not written to.
_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def was_read(t: Tensor) -> bool:
    """Whether types were read from this tensor: results then depend on what it held, not on what it holds."""
    return _known.get(t) is not None  # type: ignore[no-untyped-call]


def edge_types(t: EdgeFeatures | None, incidence: Incidence, num_types: int) -> EdgeTypes | Tensor:
    """The types of the edges, from types or one-hot features.

    Returns:
        ``EdgeTypes``; or, by place, types (A,); or, where samples have their own, types (B, E).
    """
    if isinstance(t, EdgeTypes):
        if t.num_types != num_types or t.index.numel() != incidence.num_edges:
            raise ValueError(
                f"Expected {num_types} types for {incidence.num_edges} edges (got {t.num_types} for {t.index.numel()})"
            )
        return t
    if t is None:
        if num_types != 1:
            raise ValueError(f"Expected edge types 0 to {num_types - 1} (got none)")
        return incidence.one_type
    found = _kept_types(t, incidence, num_types)
    return incidence.positions if found is None else found


def _kept_types(t: Tensor, incidence: Incidence, num_types: int) -> EdgeTypes | Tensor | None:
    # Reading values breaks a compiled graph (give EdgeTypes there to stay in one), and a cache by tensor is not for it.
    if torch.compiler.is_compiling():
        return _read_types(t, incidence, num_types)
    kept = _known.get(t)  # type: ignore[no-untyped-call]
    if kept is not None and kept[0] == t._version and kept[1] == (incidence.num_edges, incidence.arity, num_types):
        found: EdgeTypes | Tensor | None = kept[2]
        return found
    found = _read_types(t, incidence, num_types)
    _known[t] = (t._version, (incidence.num_edges, incidence.arity, num_types), found)
    return found


def _read_types(t: Tensor, incidence: Incidence, num_types: int) -> EdgeTypes | Tensor | None:
    """As :func:`edge_types`; None where the type is the place itself."""
    if t.dtype.is_floating_point:
        flat, by_place = flatten_edges(t, incidence, num_types)
        hot = flat.argmax(-1)
        if bool((torch.nn.functional.one_hot(hot, num_types) != flat).any()):
            raise ValueError("Expected one-hot edge features or integer types for q='table' (got other values)")
        flat = hot
    else:
        flat, by_place = flatten_edges(t, incidence, None)
        flat = flat.long()
    if by_place or flat.dim() == 2:
        EdgeTypes(flat.reshape(-1), num_types)  # checks the range
        in_turn = by_place and flat.numel() == num_types == incidence.positions.num_types
        return None if in_turn and flat.tolist() == list(range(num_types)) else flat
    return EdgeTypes(flat, num_types).prepare()
