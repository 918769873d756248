"""One sample: a factor graph with its features and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from fgnn.data_sample.edge_forms import by_edge, by_sample, check_edges, map_edges, split_edges
from fgnn.data_sample.stacked import count_stacked, stacked_shapes
from fgnn.data_sample.targets import as_targets, map_targets, split_targets, targets_text
from fgnn.graph import EdgeTypes, FactorGraph
from fgnn.models.map.featurise import featurise
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.inputs import kind_of
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
        y: Targets of any shape, or several as a dict by name. A batch concatenates them along the first axis, so that
            targets of variables (N, ...) become (ΣN, ...); numbers become (G,).
        y_rows: In a joined batch, the rows of ``y`` that each sample has (None: a number), a list or a dict of them by
            name; ``collate`` sets it. It is not used for targets of another length.

    Example:
        >>> from fgnn import FactorGroup
        >>> graph = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]])})
        >>> Data(graph, torch.zeros(3, 8), edges={"pair": torch.eye(2)}, y=1.5)
        Data(3 variables; pair: 2 factors, arity 2, 4 edges; f (3, 8), edges pair (2, 2), y ())
    """

    graph: FactorGraph
    f: Tensor | None = None
    gs: Mapping[str, Tensor] = field(default_factory=dict)
    edges: Mapping[str, EdgeFeatures] = field(default_factory=dict)
    y: Any = None
    y_rows: Any = None

    def __post_init__(self) -> None:
        graph: Any = self.graph
        if not isinstance(graph, FactorGraph):
            kind = type(graph).__name__
            raise ValueError(f"Expected a FactorGraph as data.graph (got {kind}); see Data.from_model for models")  # noqa: TRY004
        for what, named in (("gs", self.gs), ("edges", self.edges)):
            if not isinstance(named, Mapping):
                raise ValueError(f"Expected data.{what} as a dict by group (got {kind_of(named)})")  # noqa: TRY004
        self.__dict__.update(gs=dict(self.gs), edges=dict(self.edges), y=as_targets(self.y))
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
            check_edges(name, t, groups[name])
        count_stacked(stacked_shapes(*self.inputs))

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
        return self.graph.num_graphs if self.stacked is None else self.stacked

    @property
    def stacked(self) -> int | None:
        """B, the number of samples that share the structure, where features are (B, ...); else None."""
        return count_stacked(stacked_shapes(*self.inputs))

    def map(self, change: Callable[[Tensor], Tensor]) -> Data:
        """The same sample in other tensors."""
        return self._mapped(self.graph.map(change), change)

    def _mapped(self, graph: FactorGraph, change: Callable[[Tensor], Tensor]) -> Data:
        return Data(
            graph,
            None if self.f is None else change(self.f),
            {name: change(g) for name, g in self.gs.items()},
            {name: map_edges(t, change) for name, t in self.edges.items()},
            map_targets(self.y, change),
            self.y_rows,
        )

    def to(self, *args: Any, **kwargs: Any) -> Data:
        """The same sample on another device, or with its floating-point tensors in another dtype.

        Called as ``torch.nn.Module.to``: ``to(device, dtype, non_blocking)``, all of them optional, or ``to(dtype)``.
        Samples of equal structure share one graph on a device.
        """
        if len(args) == 2 and isinstance(args[1], bool):  # to(device, non_blocking)
            args = (args[0], None, args[1])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"Expected a floating-point dtype for features and targets (got {dtype})")

        def moved(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None, non_blocking=non_blocking)

        return self._mapped(self.graph if device is None else self.graph.to(device, non_blocking), moved)

    def cpu(self) -> Data:
        """The same sample on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Data:
        """The same sample on a GPU, by default the current one."""
        return self.to("cuda" if device is None else torch.device(device), non_blocking=non_blocking)

    def clone(self) -> Data:
        """The same sample with copies of its features and targets."""
        return self._mapped(self.graph, Tensor.clone)

    def detach(self) -> Data:
        """The same sample with features and targets that record no gradients."""
        return self._mapped(self.graph, Tensor.detach)

    def pin_memory(self) -> Data:
        """The same sample in page-locked memory; ``DataLoader(pin_memory=True)`` calls it."""
        return self.map(Tensor.pin_memory)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that ``stream`` uses all tensors; see ``torch.Tensor.record_stream``."""
        self.graph.record_stream(stream)
        tensors = [*self.gs.values(), *(t.index if isinstance(t, EdgeTypes) else t for t in self.edges.values())]
        for x in tensors if self.f is None else [self.f, *tensors]:
            x.record_stream(stream)
        map_targets(self.y, lambda y: y.record_stream(stream))

    def edge_rows(self) -> dict[str, Tensor]:
        """The features (E, d) or types (E,) of the edges by group."""
        return {name: by_edge(name, t, self.graph.groups[name]) for name, t in self.edges.items()}

    def unbatch(self) -> list[Data]:
        """The samples of a batch.

        Targets are split by ``y_rows``; in a batch that :func:`collate` did not make, they have one row for each
        variable or for each sample.
        """
        if self.stacked is not None:
            return [self._sample(k) for k in range(self.stacked)]
        graphs = self.graph.unbatch()
        if graphs[0] is self.graph:
            return [self]
        variables = [graph.num_variables for graph in graphs]
        fs = [None] * len(graphs) if self.f is None else torch.split(self.f, variables)
        gs = {name: torch.split(g, [graph.groups[name].num_factors for graph in graphs]) for name, g in self.gs.items()}
        edges = {}
        for name, t in self.edges.items():
            sizes = [graph.groups[name].num_edges for graph in graphs]
            edges[name] = split_edges(name, t, self.graph.groups[name], sizes)
        y = split_targets(self.y, self.y_rows, variables)
        return [
            Data(graph, fs[k], {name: parts[k] for name, parts in gs.items()},
                 {name: parts[k] for name, parts in edges.items()}, y[k])
            for k, graph in enumerate(graphs)
        ]  # fmt: skip

    def _sample(self, k: int) -> Data:
        def target(y: Tensor) -> Tensor:
            if not y.dim() or y.shape[0] != self.stacked:
                raise ValueError(f"Expected data.y of shape ({self.stacked}, ...) to unbatch (got {tuple(y.shape)})")
            return y[k]

        def own(x: Tensor) -> Tensor:
            return x[k if x.shape[0] > 1 else 0]

        edges = {}
        for name, t in self.edges.items():
            edges[name] = own(t) if isinstance(t, Tensor) and by_sample(name, t, self.graph.groups[name]) else t
        f = own(self.f) if self.f is not None and self.f.dim() == 3 else self.f
        gs = {name: own(g) if g.dim() == 3 else g for name, g in self.gs.items()}
        return Data(self.graph, f, gs, edges, map_targets(self.y, target), self.y_rows)

    def to_hetero_data(self) -> Any:
        """PyG ``HeteroData`` with ``x``, ``edge_attr`` and ``y``, for PyG's loader; a batch is PyG's batch."""
        from fgnn.graph.convert import hetero_batch, to_hetero_data

        self._check_joined()
        samples = self.unbatch()
        if samples[0] is not self:
            return hetero_batch(samples)
        data = to_hetero_data(self.graph, self.f, self.gs, self.edge_rows())
        if self.y is not None:
            data.y = self.y
        return data

    @classmethod
    def from_hetero_data(cls, data: Any) -> Data:
        """The inverse of :meth:`to_hetero_data`, also of a batch made by PyG's loader, where numbers are rows."""
        from fgnn.graph.convert import from_hetero_data, hetero_features, target_rows

        graph = from_hetero_data(data)
        return cls(graph, *hetero_features(data), y=getattr(data, "y", None), y_rows=target_rows(data))

    def _check_joined(self) -> None:
        if self.stacked is not None:
            got = f"{self.stacked} stacked ones"
            raise ValueError(f"Expected one sample or joined samples to convert (got {got}); convert data.unbatch()")

    def to_networkx(self) -> Any:
        """A networkx graph with ``x`` at nodes, ``edge_attr`` at edges and ``y`` at the graph; a batch is one graph."""
        from fgnn.graph.convert import to_networkx

        self._check_joined()
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
        return Data, (self.graph, self.f, self.gs, self.edges, self.y, self.y_rows)

    def __repr__(self) -> str:
        parts = [] if self.f is None else [f"f {tuple(self.f.shape)}"]
        parts += [f"gs {name} {tuple(g.shape)}" for name, g in self.gs.items()]
        for name, t in self.edges.items():
            shape = f"{t.num_types} types" if isinstance(t, EdgeTypes) else tuple(t.shape)
            parts.append(f"edges {name} {shape}")
        parts += targets_text(self.y)
        return f"Data({str(self.graph)[12:-1]}; {', '.join(parts) or 'no features'})"


def _check_rows(what: str, x: Any, count: int) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"Expected {what} as a tensor (got {type(x).__name__})")  # noqa: TRY004
    if x.dim() not in (2, 3) or x.shape[-2] != count:
        raise ValueError(f"Expected {what} of shape ({count}, d), or (B, {count}, d) (got {tuple(x.shape)})")


# torch.load(..., weights_only=True) may construct samples: the constructor checks what it is given.
torch.serialization.add_safe_globals([Data])


_PARTS = ("graph", "f", "gs", "edges", "y")


def _unflatten(parts: Any, y_rows: Any) -> Data:
    data = Data.__new__(Data)  # leaves may be placeholders
    data.__dict__.update(zip(_PARTS, parts, strict=True), y_rows=y_rows)
    return data


register_pytree_node(
    Data,
    lambda data: ([getattr(data, name) for name in _PARTS], data.y_rows),
    _unflatten,
    serialized_type_name="fgnn.Data",
    flatten_with_keys_fn=lambda data: ([(GetAttrKey(name), getattr(data, name)) for name in _PARTS], data.y_rows),
)
