"""A sample for training loops of your own: a factor graph, its features and targets; and batches of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.models.map.featurise import featurise
from fgnn.nn.edge_matrix import EdgeFeatures
from fgnn.pgm import GraphicalModel


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """One sample, or a batch that :func:`collate` made of several. A network reads it as ``net(*data.inputs)``.

    Args:
        graph: The structure.
        f: Features of the variables, (N, d).
        gs: Features of the factors by group, (C, d).
        edges: Features of the edges by group: (E, d) or (C, A, d) by edge, (A, d) by position in the scope, or types,
            as integers (E,), (C, A) or (A,) or as ``EdgeTypes``.
        y: Targets of any shape. A batch concatenates them along the first axis, so that targets of variables (N, ...)
            become (ΣN, ...); numbers become (G,).

    Example:
        >>> graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
        >>> Data(graph, torch.zeros(3, 8), edges={"pair": torch.eye(2)}, y=1.5)
        Data(3 variables; pair: 2 factors, arity 2, 4 edges; f (3, 8), edges pair (2, 2), y ())
    """

    graph: FactorGraph
    f: Tensor | None = None
    gs: Mapping[str, Tensor] = field(default_factory=dict)
    edges: Mapping[str, EdgeFeatures] = field(default_factory=dict)
    y: Any = None

    def __post_init__(self) -> None:
        graph: Any = self.graph
        if not isinstance(graph, FactorGraph):
            kind = type(graph).__name__
            raise ValueError(f"Expected a FactorGraph as data.graph (got {kind}); see Data.from_model for models")  # noqa: TRY004
        y = self.y if self.y is None or isinstance(self.y, Tensor) else torch.as_tensor(self.y)
        self.__dict__.update(gs=dict(self.gs), edges=dict(self.edges), y=y)
        groups = self.graph.groups
        for what, named in (("gs", self.gs), ("edges", self.edges)):
            unknown = [name for name in named if name not in groups]
            if unknown:
                raise ValueError(f"Expected data.{what} for the groups {list(groups)} (got {unknown})")
        if self.f is not None:
            _check_rows("data.f", self.f, self.graph.num_variables)
        for name, g in self.gs.items():
            _check_rows(f"data.gs[{name!r}]", g, groups[name].num_factors)
        for name, t in self.edges.items():
            _edge_lead(name, t, groups[name])

    @classmethod
    def from_model(cls, model: GraphicalModel, y: Any = None, **options: Any) -> Data:
        """The sample of a graphical model: its factor graph with its log-potentials as features.

        Args:
            model: Its tables and budgets become groups of factors.
            y: Targets, such as the best assignment.
            options: Of ``fgnn.models.map.featurise``.
        """
        features = featurise(model, **options)
        gs = {name: g[0] for name, g in features.factors.items()}
        return cls(features.graph, features.variables[0], gs, features.edges, y)

    @property
    def inputs(self) -> tuple[FactorGraph, Tensor | None, Mapping[str, Tensor], Mapping[str, EdgeFeatures]]:
        """The arguments of a layer or network: (graph, f, gs, edges)."""
        return self.graph, self.f, self.gs, self.edges

    @property
    def num_graphs(self) -> int:
        """The number of samples in a batch."""
        return self.f.shape[0] if self.f is not None and self.f.dim() == 3 else self.graph.num_graphs

    def map(self, change: Callable[[Tensor], Tensor]) -> Data:
        """The same sample in other tensors."""
        return self._mapped(self.graph.map(change), change)

    def _mapped(self, graph: FactorGraph, change: Callable[[Tensor], Tensor]) -> Data:
        return Data(
            graph,
            None if self.f is None else change(self.f),
            {name: change(g) for name, g in self.gs.items()},
            {name: _map_edges(t, change) for name, t in self.edges.items()},
            None if self.y is None else change(self.y),
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Data:
        """The same sample on another device; samples of equal structure share one graph there."""
        graph = self.graph.to(device, non_blocking)
        return self._mapped(graph, lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Data:
        """The same sample in page-locked memory; ``DataLoader(pin_memory=True)`` calls it."""
        return self.map(Tensor.pin_memory)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that ``stream`` uses all tensors; see ``torch.Tensor.record_stream``."""
        self.graph.record_stream(stream)
        tensors = [self.f, self.y, *self.gs.values()]
        tensors += [t.index if isinstance(t, EdgeTypes) else t for t in self.edges.values()]
        for x in tensors:
            if x is not None:
                x.record_stream(stream)

    def edge_rows(self) -> dict[str, Tensor]:
        """The features (E, d) or types (E,) of the edges by group."""
        return {name: _by_edge(name, t, self.graph.groups[name]) for name, t in self.edges.items()}

    def unbatch(self) -> list[Data]:
        """The samples of a batch; targets with one row for each sample or for each variable are split too."""
        if self.f is not None and self.f.dim() == 3:
            return [self._sample(k) for k in range(self.f.shape[0])]
        graphs = self.graph.unbatch()
        variables = [graph.num_variables for graph in graphs]
        factors = {name: [graph.groups[name].num_factors for graph in graphs] for name in self.graph.groups}
        sizes = {name: [graph.groups[name].num_edges for graph in graphs] for name in self.graph.groups}
        fs = [None] * len(graphs) if self.f is None else torch.split(self.f, variables)
        gs = {name: torch.split(g, factors[name]) for name, g in self.gs.items()}
        edges = {name: torch.split(t, sizes[name]) for name, t in self.edge_rows().items()}
        y: Sequence[Any] = [self.y] * len(graphs)
        if self.y is not None and self.y.dim() and self.y.shape[0] in (len(graphs), sum(variables)):
            y = torch.split(self.y, variables) if self.y.shape[0] == sum(variables) else self.y.unbind()
        return [
            Data(graph, fs[k], {name: parts[k] for name, parts in gs.items()},
                 {name: parts[k] for name, parts in edges.items()}, y[k])
            for k, graph in enumerate(graphs)
        ]  # fmt: skip

    def _sample(self, k: int) -> Data:
        def one(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[k]

        edges = {}
        for name, t in self.edges.items():
            edges[name] = t[k] if isinstance(t, Tensor) and _edge_lead(name, t, self.graph.groups[name])[1] else t
        gs = {name: g[k] if g.dim() == 3 else g for name, g in self.gs.items()}
        return Data(self.graph, one(self.f), gs, edges, one(self.y))

    def to_hetero_data(self) -> Any:
        """PyG ``HeteroData`` with ``x``, ``edge_attr`` and ``y``, which PyG's own loader can batch."""
        from fgnn.graph.convert import to_hetero_data

        data = to_hetero_data(self.graph, self.f, self.gs, self.edge_rows())
        if self.y is not None:
            data.y = self.y
        return data

    @classmethod
    def from_hetero_data(cls, data: Any) -> Data:
        """The inverse of :meth:`to_hetero_data`, also of a batch made by PyG's loader."""
        from fgnn.graph.convert import from_hetero_data, hetero_features

        return cls(from_hetero_data(data), *hetero_features(data), y=getattr(data, "y", None))

    def to_networkx(self) -> Any:
        """A networkx graph with ``x`` at nodes, ``edge_attr`` at edges and ``y`` at the graph."""
        from fgnn.graph.convert import to_networkx

        graph = to_networkx(self.graph, self.f, self.gs, self.edge_rows())
        if self.y is not None:
            graph.graph["y"] = self.y
        return graph

    @classmethod
    def from_networkx(cls, graph: Any) -> Data:
        """The inverse of :meth:`to_networkx`."""
        from fgnn.graph.convert import from_networkx, networkx_features

        return cls(from_networkx(graph), *networkx_features(graph), y=graph.graph.get("y"))

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_data, (self.graph, self.f, self.gs, self.edges, self.y)

    def __repr__(self) -> str:
        parts = [] if self.f is None else [f"f {tuple(self.f.shape)}"]
        parts += [f"gs {name} {tuple(g.shape)}" for name, g in self.gs.items()]
        for name, t in self.edges.items():
            shape = f"{t.num_types} types" if isinstance(t, EdgeTypes) else tuple(t.shape)
            parts.append(f"edges {name} {shape}")
        parts += [] if self.y is None else [f"y {tuple(self.y.shape)}"]
        return f"Data({str(self.graph)[12:-1]}; {', '.join(parts) or 'no features'})"


def collate(samples: Sequence[Data], *, stack: bool = False) -> Data:
    """One batch of several samples, for ``torch.utils.data.DataLoader(dataset, collate_fn=fgnn.collate)``.

    Structures may differ: graphs are joined into one disconnected graph, and features are concatenated, so that f is
    (ΣN, d). ``fgnn.nn.GraphPool`` reduces variables to samples; ``batch.graph.batch_index()`` says which sample each
    variable belongs to.

    Args:
        samples: The samples; a batch among them counts as its samples.
        stack: For samples of one structure, which they then share: f is (B, N, d), and layers compute what depends on
            the structure once instead of B times.
    """
    for k, sample in enumerate(samples):
        if not isinstance(sample, Data):
            raise ValueError(f"Expected fgnn.Data samples (got {type(sample).__name__} as sample {k})")  # noqa: TRY004
    if not samples:
        raise ValueError("Expected at least one sample to collate (got none)")
    if stack:
        return _stacked(samples)
    graph = FactorGraph.concat([sample.graph for sample in samples])
    return Data(
        graph,
        _cat("f", [sample.f for sample in samples]),
        _cat_named("gs", samples, [dict(sample.gs) for sample in samples], graph),
        _cat_edges(samples, graph),
        _cat_targets([sample.y for sample in samples]),
    )


def _stacked(samples: Sequence[Data]) -> Data:
    first = samples[0]
    for k, sample in enumerate(samples):
        same = (
            sample.graph.structure is first.graph.structure or sample.graph.structure.key == first.graph.structure.key
        )
        if not same:
            raise ValueError(f"Expected samples of one structure to stack (got {sample.graph} as sample {k})")
        if set(sample.gs) != set(first.gs) or set(sample.edges) != set(first.edges):
            raise ValueError(f"Expected features of the same groups in all samples (got {sample} as sample {k})")

    edges: dict[str, EdgeFeatures] = {}
    for name, t in first.edges.items():
        shared = all(sample.edges[name] is t or _equal(sample.edges[name], t) for sample in samples)
        edges[name] = t if shared else _stack([sample.edge_rows()[name] for sample in samples], f"edges[{name!r}]")
    return Data(
        first.graph,
        None if first.f is None else _stack([sample.f for sample in samples], "f"),
        {name: _stack([sample.gs[name] for sample in samples], f"gs[{name!r}]") for name in first.gs},
        edges,
        None if first.y is None else _stack([sample.y for sample in samples], "y"),
    )


def _equal(one: EdgeFeatures, other: EdgeFeatures) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return (
        isinstance(one, EdgeTypes)
        and isinstance(other, EdgeTypes)
        and one.num_types == other.num_types
        and torch.equal(one.index, other.index)
    )


def _stack(parts: Sequence[Tensor | None], what: str) -> Tensor:
    shapes = [None if x is None else tuple(x.shape) for x in parts]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"Expected data.{what} {shapes[0]} in all samples (got {shape} in sample {k})")
    return torch.stack([x for x in parts if x is not None])


def _cat(what: str, parts: Sequence[Tensor | None]) -> Tensor | None:
    first = parts[0]
    for k, part in enumerate(parts):
        one, other = (None if x is None else tuple(x.shape[1:]) for x in (first, part))
        if one != other:
            raise ValueError(
                f"Expected data.{what} (·, {_tail(one)}) in all samples (got {_tail(other)} in sample {k})"
            )
    return None if first is None else torch.cat([x for x in parts if x is not None])


def _tail(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else ", ".join(map(str, shape)) or "no width"


def _cat_named(
    what: str, samples: Sequence[Data], values: list[dict[str, Tensor]], graph: FactorGraph
) -> dict[str, Any]:
    """Concatenate by group; samples without factors of a group need no features of it."""
    joined = {}
    for name in graph.groups:
        if not any(name in value for value in values):
            continue
        counts = (sample.graph.groups[name].num_factors if name in sample.graph.groups else 0 for sample in samples)
        parts = [value.get(name) for value, count in zip(values, counts, strict=True) if count or name in value]
        joined[name] = _cat(f"{what}[{name!r}]", parts)
    return joined


def _cat_edges(samples: Sequence[Data], graph: FactorGraph) -> dict[str, EdgeFeatures]:
    rows = _cat_named("edges", samples, [sample.edge_rows() for sample in samples], graph)
    edges: dict[str, EdgeFeatures] = {}
    for name, joined in rows.items():
        given = [sample.edges[name] for sample in samples if name in sample.edges]
        first, group = given[0], graph.groups[name]
        if isinstance(first, EdgeTypes):
            kinds = {t.num_types if isinstance(t, EdgeTypes) else None for t in given}
            if len(kinds) > 1:
                raise ValueError(
                    f"Expected as many edge types of group {name!r} in all samples (got {sorted(map(str, kinds))})"
                )
            edges[name] = EdgeTypes.known(joined, first.num_types, joined.shape[0])
        elif _by_position(name, first, group) and all(t is first or _equal(t, first) for t in given):
            edges[name] = first
        else:
            edges[name] = joined
    return edges


def _cat_targets(targets: list[Tensor | None]) -> Tensor | None:
    scalars = [y for y in targets if y is not None and y.dim() == 0]
    if len(scalars) == len(targets):
        return torch.stack(scalars)
    return _cat("y", [y if y is None or y.dim() else y.reshape(1) for y in targets])


# ---- features of nodes and edges ----------------------------------------------------------------------------------


def _check_rows(what: str, x: Any, count: int) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"Expected {what} as a tensor (got {type(x).__name__})")  # noqa: TRY004
    if x.dim() not in (2, 3) or x.shape[-2] != count:
        raise ValueError(f"Expected {what} of shape ({count}, d), or (B, {count}, d) (got {tuple(x.shape)})")


def _edge_lead(name: str, t: EdgeFeatures, group: FactorGroup) -> tuple[str, bool]:
    """How edge features are given, "edge", "scope" (C, A) or "position", and whether with a leading B."""
    if isinstance(t, EdgeTypes):
        if t.num_edges == group.num_edges:
            return "edge", False
        raise ValueError(f"Expected types of {group.num_edges} edges as data.edges[{name!r}] (got {t.num_edges})")
    lead = tuple(t.shape[:-1] if t.is_floating_point() else t.shape)
    forms: dict[tuple[int, ...], str] = {(group.num_edges,): "edge"}
    if group.arity is not None:
        forms = {(group.arity,): "position", (group.num_factors, group.arity): "scope", **forms}
    for form, kind in forms.items():
        if lead == form or (kind != "position" and lead[1:] == form):
            return kind, lead != form
    shapes = " or ".join(f"({', '.join(map(str, form))}, d)" for form in forms)
    raise ValueError(f"Expected data.edges[{name!r}] of shape {shapes} (got {tuple(t.shape)})")


def _by_position(name: str, t: EdgeFeatures, group: FactorGroup) -> bool:
    """Whether features given for one sample serve all factors of the joined group by position."""
    if isinstance(t, EdgeTypes) or group.arity is None:
        return False
    lead = tuple(t.shape[:-1] if t.is_floating_point() else t.shape)
    return lead == (group.arity,) and lead != (group.num_edges,)


def _by_edge(name: str, t: EdgeFeatures, group: FactorGroup) -> Tensor:
    if isinstance(t, EdgeTypes):
        return t.index
    kind, batched = _edge_lead(name, t, group)
    if batched:
        raise ValueError(f"Expected data.edges[{name!r}] of one sample (got {tuple(t.shape)})")
    tail = t.shape[-1:] if t.is_floating_point() else ()
    if kind == "position":
        return t.expand(group.num_factors, *t.shape).reshape(group.num_edges, *tail)
    return t.reshape(group.num_edges, *tail)


def _map_edges(t: EdgeFeatures, change: Callable[[Tensor], Tensor]) -> EdgeFeatures:
    if not isinstance(t, EdgeTypes):
        return change(t)
    index = change(t.index)
    return t if index is t.index else EdgeTypes.known(index, t.num_types, t.num_edges)


# ---- saved samples, and samples as pytrees ------------------------------------------------------------------------


def restore_data(graph: FactorGraph, f: Any, gs: Any, edges: Any, y: Any) -> Data:
    """A sample from its saved parts."""
    return Data(graph, f, gs, edges, y)


# What torch.load(..., weights_only=True) may call to restore a sample.
torch.serialization.add_safe_globals([restore_data])


def _unflatten(parts: Any, _: None) -> Data:
    data = Data.__new__(Data)  # leaves may be placeholders
    data.__dict__.update(zip(("graph", "f", "gs", "edges", "y"), parts, strict=True))
    return data


register_pytree_node(
    Data,
    lambda data: ([data.graph, data.f, data.gs, data.edges, data.y], None),
    _unflatten,
    serialized_type_name="fgnn.Data",
)
