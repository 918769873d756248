"""Factor graphs as networkx graphs and as PyG ``HeteroData``, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.errors import need
from fgnn.graph.factor_graph import FactorGraph
from fgnn.graph.group import FactorGroup

_RELATION = "contains"


Named = Mapping[str, Tensor]
Features = tuple[Tensor | None, dict[str, Tensor], dict[str, Tensor]]  # of variables, factors and edges


def to_networkx(
    graph: FactorGraph, f: Tensor | None = None, gs: Named | None = None, edges: Named | None = None
) -> Any:
    """Nodes ("variable", i) and (group, c) with attribute ``kind``; edges with ``position`` in the scope.

    Features of variables (N, d) and factors (C, d) are the attribute ``x`` of nodes, those of edges (E, d) or types
    (E,) the attribute ``edge_attr``, as tensors. A group without factors has no nodes: where there is one, the graph
    has the arity of each group (None if it is ragged) as attribute ``groups``, and features without rows as ``empty``.
    """
    _check_names(graph)
    lists = {name: group.lists() for name, group in graph.groups.items()}
    made = bipartite_graph(graph.num_variables, lists)
    for kind, x in (("variable", f), *(gs or {}).items()):
        for i, row in enumerate(() if x is None else x):
            made.nodes[kind, i]["x"] = row
    for name, rows in (edges or {}).items():
        pairs = [(c, i) for c, scope in enumerate(lists[name]) for i in scope]
        for (c, i), row in zip(pairs, rows, strict=True):
            made.edges[(name, c), ("variable", i)]["edge_attr"] = row
    if not all(group.num_factors for group in graph.groups.values()):
        made.graph["groups"] = {name: group.arity for name, group in graph.groups.items()}
    features = {("x", kind): x for kind, x in (("variable", f), *(gs or {}).items())}
    features |= {("edge_attr", name): rows for name, rows in (edges or {}).items()}
    empty = {key: x for key, x in features.items() if x is not None and not len(x)}
    made.graph |= {"empty": empty} if empty else {}
    return made


def networkx_features(graph: Any) -> Features:
    """The features that :func:`to_networkx` stored, in the order of :func:`from_networkx`."""
    structure, empty = from_networkx(graph), graph.graph.get("empty", {})
    f = _rows([graph.nodes["variable", i].get("x") for i in range(structure.num_variables)], "variables")
    f = empty.get(("x", "variable")) if f is None else f
    gs: dict[str, Tensor] = {}
    edges: dict[str, Tensor] = {}
    for name, group in structure.groups.items():
        lists = group.lists()
        nodes = _rows([graph.nodes[name, c].get("x") for c in range(len(lists))], f"factors of {name!r}")
        pairs = [((name, c), ("variable", i)) for c, scope in enumerate(lists) for i in scope]
        rows = _rows([graph.edges[pair].get("edge_attr") for pair in pairs], f"edges of {name!r}")
        for found, key, x in ((gs, "x", nodes), (edges, "edge_attr", rows)):
            x = empty.get((key, name)) if x is None else x
            found |= {} if x is None else {name: x}
    return f, gs, edges


def _rows(values: list[Any], what: str) -> Tensor | None:
    missing = sum(value is None for value in values)
    if missing == len(values):
        return None
    if missing:
        raise ValueError(f"Expected features of all {len(values)} {what} or of none (got {len(values) - missing})")
    return torch.stack([torch.as_tensor(value) for value in values])


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
    arities = graph.graph.get("groups", {})
    groups = {}
    for name in [*arities, *(name for name in scopes if name not in arities)]:
        members, arity = scopes.get(name, {}), arities.get(name)
        numbers = sorted(members)
        if numbers != list(range(len(numbers))):
            raise ValueError(f"Expected factors of {name!r} numbered 0 to {len(numbers) - 1} (got {numbers[:8]} ...)")
        lists = [members[c] for c in numbers]
        groups[name] = FactorGroup(lists if lists or arity is None else torch.empty(0, arity, dtype=torch.long))
    return FactorGraph(len(variables), groups)


def to_hetero_data(
    graph: FactorGraph, f: Tensor | None = None, gs: Named | None = None, edges: Named | None = None
) -> Any:
    """Node types "variable" and each group; edge types (group, "contains", "variable") in factor order.

    Features of variables (N, d) and factors (C, d) are ``x``, those of edges (E, d) or types (E,) ``edge_attr``.
    """
    data = need("torch_geometric.data").HeteroData()
    _check_names(graph)
    data["variable"].num_nodes = graph.num_variables
    if f is not None:
        data["variable"].x = f
    for name, group in graph.groups.items():
        data[name].num_nodes = group.num_factors
        if gs and name in gs:
            data[name].x = gs[name]
        store = data[name, _RELATION, "variable"]
        store.edge_index = torch.stack([group.factor_index(), group.scopes.reshape(-1)])
        if edges and name in edges:
            store.edge_attr = edges[name]
    return data


def hetero_batch(samples: Sequence[Any]) -> Any:
    """PyG's batch of graphs or samples, with ``batch`` and ``ptr`` for each node type."""
    return need("torch_geometric.data").Batch.from_data_list([one.to_hetero_data() for one in samples])


def from_hetero_data(data: Any) -> FactorGraph:
    """Read (group, relation, "variable") edge types; edges are sorted by factor, stably.

    A batch that PyG's loader made is a batch of graphs here too.
    """
    if "variable" not in getattr(data, "node_types", ()):
        expected = 'HeteroData with a node type "variable" and one for each group'
        pairs = 'FactorGraph(data.num_nodes, {"edge": FactorGroup(data.edge_index.T)}) is a graph of pairs'
        raise ValueError(f"Expected {expected} (got {type(data).__name__}); {pairs}")
    groups: dict[str, FactorGroup] = {}
    for kind in data.edge_types:
        name, _, target = kind
        if target != "variable" or name == "variable":
            raise ValueError(f'Expected edge types (group, relation, "variable") (got {kind})')
        if name in groups:
            raise ValueError(f"Expected one edge type for each group (got two for {name!r})")
        factor, variable = _edge_index(data, kind)
        order = torch.argsort(factor, stable=True)
        counts = torch.bincount(factor, minlength=_num_nodes(data, name))
        sizes = sorted(set(counts.tolist()))
        if len(sizes) == 1:
            groups[name] = FactorGroup(variable[order].reshape(counts.numel(), sizes[0]))
        else:
            groups[name] = FactorGroup(variable[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    ptr = data["variable"].get("ptr")
    if ptr is None:
        return FactorGraph(_num_nodes(data, "variable"), groups)
    sizes = sorted(set(ptr.diff().tolist()))
    factor_ptr = {name: data[name].ptr for name in groups}
    for name, own in factor_ptr.items():
        if len(own) != len(ptr):  # PyG has not counted the samples without it, and joined wrong variables
            got = f"{len(own) - 1} of {len(ptr) - 1}"
            raise ValueError(f"Expected samples with the group {name!r} each (got {got}); fgnn.collate joins others")
    return FactorGraph(int(ptr[-1]), groups, ptr, factor_ptr, sizes[0] if len(sizes) == 1 else None)


def _edge_index(data: Any, kind: tuple[str, str, str]) -> Tensor:
    """The edges of one type, (2, E), of factors that exist."""
    index, what = data[kind].get("edge_index"), f"edge_index of {kind}"
    if not isinstance(index, Tensor):
        raise ValueError(f"Expected {what} as a tensor of shape (2, E) (got {type(index).__name__})")  # noqa: TRY004
    if index.dim() != 2 or index.shape[0] != 2:
        raise ValueError(f"Expected {what} of shape (2, E) (got {tuple(index.shape)})")
    if index.dtype.is_floating_point or index.dtype.is_complex or index.dtype == torch.bool:
        raise ValueError(f"Expected {what} in integers (got {index.dtype})")
    count = _num_nodes(data, kind[0])
    wrong = index[0][(index[0] < 0) | (index[0] >= count)]
    if wrong.numel():
        exist = f"factors 0 to {count - 1}" if count else "no factors"
        raise ValueError(f"Expected {exist} in {what}, as data[{kind[0]!r}] has {count} (got {int(wrong[0])})")
    return index.long()


def _num_nodes(data: Any, kind: str) -> int:
    count = None
    if kind in data.node_types:
        with warnings.catch_warnings():  # PyG warns where it cannot tell
            warnings.simplefilter("ignore")
            count = data[kind].num_nodes
    if count is None:
        raise ValueError(f"Expected data[{kind!r}].num_nodes, or features data[{kind!r}].x to count (got neither)")
    return int(count)


def hetero_features(data: Any) -> Features:
    """The features ``x`` and ``edge_attr``, in the order of :func:`from_hetero_data`."""
    gs, edges = {}, {}
    for kind in data.edge_types:
        store, name = data[kind], kind[0]
        if data[name].get("x") is not None:
            gs[name] = data[name].x
        if store.get("edge_attr") is not None:
            rows, count = store.edge_attr, store.edge_index.shape[1]
            if not isinstance(rows, Tensor) or not rows.dim() or rows.shape[0] != count:
                got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise ValueError(f"Expected edge_attr of {kind} with a row for each of {count} edges (got {got})")
            edges[name] = rows[torch.argsort(store.edge_index[0], stable=True)]
    return data["variable"].get("x"), gs, edges


def target_rows(data: Any) -> Any:
    """The rows of ``y`` of each sample, where PyG has batched them: a list, or a dict of them by name."""
    if not isinstance(data, need("torch_geometric.data").Batch):
        return None
    ends = data._slice_dict.get("y")
    if isinstance(ends, Mapping):
        return {name: ptr.diff().tolist() for name, ptr in ends.items()}
    return None if ends is None else ends.diff().tolist()


def _check_names(graph: FactorGraph) -> None:
    if "variable" in graph.groups:
        raise ValueError('Expected no group called "variable" (the name of the variables\' nodes)')
