"""Groups that no sample of a batch has, added without factors."""

from __future__ import annotations

from fgnn.data_sample.edge_forms import serves_all_factors
from fgnn.data_sample.sample import Data
from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.nn.edge_features import EdgeFeatures


def with_groups(batch: Data, like: Data) -> Data:
    """The batch with the groups of ``like``, in that order, and with features of the same widths where it has none."""
    graph, known = batch.graph, like.graph.groups
    unknown = [name for name in graph.groups if name not in known]
    if unknown:
        raise ValueError(f"Expected samples with the groups {list(known)} (got {unknown})")
    if list(graph.groups) != list(known):
        ptrs = graph.factor_ptr
        if ptrs is not None and graph.variable_ptr is not None:
            none = graph.variable_ptr.new_zeros(graph.num_graphs + 1)
            ptrs = {name: ptrs.get(name, none) for name in known}
        graph = FactorGraph(
            graph.num_variables,
            {name: graph.groups.get(name) or _without_factors(group) for name, group in known.items()},
            graph.variable_ptr,
            ptrs,
            graph.graph_size,
            validate=False,
            hints=graph.structure.hints,
        )
    empty = [name for name, group in graph.groups.items() if not group.num_factors]
    gs = {name: like.gs[name].flatten(0, -2)[:0] for name in empty if name in like.gs and name not in batch.gs}
    edges = {
        name: _no_edges(like.edges[name], known[name])
        for name in empty
        if name in like.edges and name not in batch.edges
    }
    return Data(graph, batch.f, {**batch.gs, **gs}, {**batch.edges, **edges}, batch.y, batch.y_rows)


def _without_factors(group: FactorGroup) -> FactorGroup:
    if group.offsets is None:
        return FactorGroup.known(group.scopes[:0])
    return FactorGroup.known(group.scopes[:0], group.offsets[:1])


def _no_edges(t: EdgeFeatures, group: FactorGroup) -> EdgeFeatures:
    if isinstance(t, EdgeTypes):
        return EdgeTypes.known(t.index[:0], t.num_types, 0)
    if serves_all_factors(t, group):
        return t
    return (t.flatten(0, -2) if t.is_floating_point() else t.flatten())[:0]
