"""Join graphs of different structure into one, and split it again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.graph.factor_graph import FactorGraph
from fgnn.graph.group import FactorGroup


def concat(graphs: Sequence[FactorGraph]) -> FactorGraph:
    """Join graphs into one; see :meth:`FactorGraph.concat`."""
    if not graphs:
        raise ValueError("Expected at least one graph to concatenate (got none)")
    flat = [piece for graph in graphs for piece in (graph.unbatch() if graph.variable_ptr is not None else [graph])]
    device = next((graph.device for graph in flat if graph.groups), torch.device("cpu"))
    variable_ptr = _ptr([graph.num_variables for graph in flat], device)
    starts = variable_ptr.tolist()
    names = list(dict.fromkeys(name for graph in flat for name in graph.groups))
    groups, factor_ptr = {}, {}
    for name in names:
        pieces = [(graph.groups[name], at) for graph, at in zip(flat, starts, strict=False) if name in graph.groups]
        groups[name] = _join([group.shifted(at) for group, at in pieces])
        counts = [graph.groups[name].num_factors if name in graph.groups else 0 for graph in flat]
        factor_ptr[name] = _ptr(counts, device)
    sizes = {graph.num_variables for graph in flat}
    return FactorGraph(
        starts[-1],
        groups,
        variable_ptr=variable_ptr,
        factor_ptr=factor_ptr,
        graph_size=sizes.pop() if len(sizes) == 1 else None,
        validate=False,
    )


def unbatch(graph: FactorGraph) -> list[FactorGraph]:
    """The graphs that were concatenated; see :meth:`FactorGraph.unbatch`."""
    if graph.variable_ptr is None or graph.factor_ptr is None:
        return [graph]
    variables = graph.variable_ptr.tolist()
    factors = {name: ptr.tolist() for name, ptr in graph.factor_ptr.items()}
    return [
        FactorGraph(
            variables[k + 1] - variables[k],
            {
                name: _cut(group, factors[name][k], factors[name][k + 1]).shifted(-variables[k])
                for name, group in graph.groups.items()
            },
            validate=False,
        )
        for k in range(len(variables) - 1)
    ]


def _join(groups: list[FactorGroup]) -> FactorGroup:
    """Concatenate groups; the result is uniform if all non-empty groups have the same arity."""
    some = [group for group in groups if group.num_factors] or groups[:1]
    arities = {group.arity for group in some}
    if len(arities) == 1 and None not in arities:
        return FactorGroup(torch.cat([group.scopes for group in some]))
    sizes = torch.cat([group.factor_ptr().diff() for group in some])
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup(torch.cat([group.scopes.reshape(-1) for group in some]), offsets)


def _cut(group: FactorGroup, start: int, stop: int) -> FactorGroup:
    if group.offsets is None:
        return FactorGroup(group.scopes[start:stop])
    ptr = group.offsets[start : stop + 1]
    return FactorGroup(group.scopes[int(ptr[0]) : int(ptr[-1])], ptr - ptr[0])


def _ptr(counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *counts], device=device).cumsum(0)
