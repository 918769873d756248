"""Factor graphs as networkx graphs and as PyG ``HeteroData``, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fgnn.errors import need
from fgnn.graph.factor_graph import FactorGraph
from fgnn.graph.group import FactorGroup

_RELATION = "contains"


def to_networkx(graph: FactorGraph) -> Any:
    """Nodes ("variable", i) and (group, c) with attribute ``kind``; edges with ``position`` in the scope."""
    _check_names(graph)
    return bipartite_graph(graph.num_variables, {name: group.lists() for name, group in graph.groups.items()})


def bipartite_graph(
    num_variables: int, scopes: Mapping[str, Iterable[Sequence[int]]], *, position: str = "position"
) -> Any:
    """The ``networkx.Graph`` of variables and of factors by kind, with ``position`` as the edges' attribute."""
    graph = need("networkx").Graph()
    graph.add_nodes_from((("variable", i) for i in range(num_variables)), kind="variable", bipartite=0)
    for kind, members in scopes.items():
        for c, scope in enumerate(members):
            graph.add_node((kind, c), kind=kind, bipartite=1)
            graph.add_edges_from(((kind, c), ("variable", i), {position: a}) for a, i in enumerate(scope))
    return graph


def from_networkx(graph: Any) -> FactorGraph:
    """The inverse of :func:`to_networkx`; edges without ``position`` are sorted by variable."""
    scopes: dict[str, dict[int, list[int]]] = {}
    variables = []
    for node in graph.nodes:
        if not (isinstance(node, tuple) and len(node) == 2):
            raise ValueError(f'Expected nodes ("variable", i) and (group, c) (got {node!r})')
        kind, index = node
        if kind == "variable":
            variables.append(index)
            continue
        neighbours = []
        for other in graph.adj[node]:
            if other[0] != "variable":
                raise ValueError(f"Expected edges between factors and variables only (got {node!r} and {other!r})")
            neighbours.append((graph.edges[node, other].get("position", 0), other[1]))
        scopes.setdefault(kind, {})[index] = [i for _, i in sorted(neighbours)]
    if sorted(variables) != list(range(len(variables))):
        raise ValueError(f"Expected variables numbered 0 to {len(variables) - 1} (got {sorted(variables)[:8]} ...)")
    groups = {}
    for name, members in scopes.items():
        numbers = sorted(members)
        if numbers != list(range(len(numbers))):
            raise ValueError(f"Expected factors of {name!r} numbered 0 to {len(numbers) - 1} (got {numbers[:8]} ...)")
        groups[name] = FactorGroup([members[c] for c in numbers])
    return FactorGraph(len(variables), groups)


def to_hetero_data(graph: FactorGraph) -> Any:
    """Node types "variable" and each group; edge types (group, "contains", "variable") in factor order."""
    data = need("torch_geometric.data").HeteroData()
    _check_names(graph)
    data["variable"].num_nodes = graph.num_variables
    for name, group in graph.groups.items():
        data[name].num_nodes = group.num_factors
        data[name, _RELATION, "variable"].edge_index = torch.stack([group.factor_index(), group.scopes.reshape(-1)])
    return data


def from_hetero_data(data: Any) -> FactorGraph:
    """Read (group, relation, "variable") edge types; edges are sorted by factor, stably."""
    groups: dict[str, FactorGroup] = {}
    for kind in data.edge_types:
        name, _, target = kind
        if target != "variable" or name == "variable":
            raise ValueError(f'Expected edge types (group, relation, "variable") (got {kind})')
        if name in groups:
            raise ValueError(f"Expected one edge type for each group (got two for {name!r})")
        factor, variable = data[kind].edge_index
        order = torch.argsort(factor, stable=True)
        counts = torch.bincount(factor, minlength=int(data[name].num_nodes))
        sizes = sorted(set(counts.tolist()))
        if len(sizes) == 1:
            groups[name] = FactorGroup(variable[order].reshape(counts.numel(), sizes[0]))
        else:
            groups[name] = FactorGroup(variable[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    return FactorGraph(int(data["variable"].num_nodes), groups)


def _check_names(graph: FactorGraph) -> None:
    if "variable" in graph.groups:
        raise ValueError('Expected no group called "variable" (the name of the variables\' nodes)')
