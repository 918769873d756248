"""Graphs, groups and edge types as pytrees, so that ``torch.export``, ``torch.func`` and CUDA graphs accept them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node

from fgnn.graph.edge_types import EdgeTypes
from fgnn.graph.factor_graph import FactorGraph, graph_tensors
from fgnn.graph.group import FactorGroup
from fgnn.graph.incidence import Hints


@dataclass(frozen=True)
class _GraphContext:
    """Everything of a graph but its tensors. ``source`` keeps what is derived from a graph whose tensors come back."""

    num_variables: int
    groups: tuple[tuple[str, bool], ...]  # name, and whether ragged
    pointers: tuple[str, ...] | None  # groups of ``factor_ptr``; None for one graph
    graph_size: int | None
    hints: tuple[tuple[str, int | None, bool], ...]
    source: ReferenceType[FactorGraph] | None = field(default=None, compare=False, repr=False)


def _flatten(graph: FactorGraph) -> tuple[list[Tensor], _GraphContext]:
    if "_skeleton" in graph.__dict__:
        leaves, context = graph.__dict__["_skeleton"]
        return leaves, context
    tensors = graph_tensors(graph)
    # What is derived from a graph while it is traced belongs to the trace. One of real tensors is the caller's own.
    real = not torch.compiler.is_dynamo_compiling() and all(type(x) is Tensor for x in tensors)
    context = _GraphContext(
        graph.num_variables,
        tuple((name, group.offsets is not None) for name, group in graph.groups.items()),
        None if graph.variable_ptr is None else tuple(graph.factor_ptr or ()),
        graph.graph_size,
        tuple((name, h.max_degree, h.covers_all) for name, h in graph.structure.hints.items()),
        ref(graph) if real else None,
    )
    return tensors, context


def _unflatten(leaves: Iterable[Any], context: _GraphContext) -> FactorGraph:
    tensors = list(leaves)
    source = None if context.source is None or torch.compiler.is_dynamo_compiling() else context.source()
    if source is not None and all(x is y for x, y in zip(tensors, graph_tensors(source), strict=True)):
        return source
    if not all(isinstance(x, Tensor) for x in tensors):  # torch also puts placeholders into trees
        skeleton = FactorGraph.__new__(FactorGraph)
        skeleton.__dict__["_skeleton"] = tensors, context
        return skeleton
    rest = iter(tensors)
    groups = {name: FactorGroup.known(next(rest), next(rest) if ragged else None) for name, ragged in context.groups}
    pointers = context.pointers
    return FactorGraph(
        context.num_variables,
        groups,
        None if pointers is None else next(rest),
        None if pointers is None else {name: next(rest) for name in pointers},
        context.graph_size,
        validate=False,
        hints={name: Hints(most, covers) for name, most, covers in context.hints},
    )


def _flatten_with_names(graph: FactorGraph) -> tuple[list[tuple[Any, Tensor]], _GraphContext]:
    leaves, context = _flatten(graph)
    names = [f"{name}_{part}" for name, ragged in context.groups for part in ("scopes", "offsets")[: 1 + ragged]]
    if context.pointers is not None:
        names += ["variable_ptr", *(f"{name}_ptr" for name in context.pointers)]
    return [(MappingKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], context


def _dump(context: _GraphContext) -> list[Any]:
    return [context.num_variables, context.groups, context.pointers, context.graph_size, context.hints]


def _load(dumped: list[Any]) -> _GraphContext:
    count, groups, pointers, size, hints = dumped
    pairs = tuple((name, ragged) for name, ragged in groups)
    names = None if pointers is None else tuple(pointers)
    return _GraphContext(count, pairs, names, size, tuple((name, most, covers) for name, most, covers in hints))


def _flatten_group(group: FactorGroup) -> tuple[list[Tensor], bool]:
    return [group.scopes, *(() if group.offsets is None else (group.offsets,))], group.offsets is not None


def _flatten_group_with_names(group: FactorGroup) -> tuple[list[tuple[Any, Tensor]], bool]:
    leaves, ragged = _flatten_group(group)
    return [(MappingKey(name), leaf) for name, leaf in zip(("scopes", "offsets"), leaves, strict=False)], ragged


def _unflatten_group(leaves: Iterable[Any], ragged: bool) -> FactorGroup:
    return FactorGroup.known(*leaves)


def _flatten_types(types: EdgeTypes) -> tuple[list[Tensor], int]:
    return [types.index], types.num_types


def _flatten_types_with_names(types: EdgeTypes) -> tuple[list[tuple[Any, Tensor]], int]:
    leaves, context = _flatten_types(types)
    return [(MappingKey("types"), leaf) for leaf in leaves], context


def _unflatten_types(leaves: Iterable[Any], num_types: int) -> EdgeTypes:
    (index,) = leaves
    return EdgeTypes.known(index, num_types, index.shape[0] if isinstance(index, Tensor) else 0)


register_pytree_node(
    FactorGraph,
    _flatten,
    _unflatten,
    serialized_type_name="fgnn.FactorGraph",
    to_dumpable_context=_dump,
    from_dumpable_context=_load,
    flatten_with_keys_fn=_flatten_with_names,
)
register_pytree_node(
    FactorGroup,
    _flatten_group,
    _unflatten_group,
    serialized_type_name="fgnn.FactorGroup",
    flatten_with_keys_fn=_flatten_group_with_names,
)
register_pytree_node(
    EdgeTypes,
    _flatten_types,
    _unflatten_types,
    serialized_type_name="fgnn.EdgeTypes",
    flatten_with_keys_fn=_flatten_types_with_names,
)
