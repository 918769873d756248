"""The factor graph: variables, factors of several types, and the edges between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fgnn.drawing import Sketch, States
from fgnn.graph.given import groups_by_name, number_of_variables
from fgnn.graph.group import FactorGroup, segment_index
from fgnn.graph.incidence import Hints, Incidence
from fgnn.graph.structure import Structure

if TYPE_CHECKING:
    from fgnn.graph.matching import Matching


# Copies of graphs on other devices that are in use, by content: the batches of a loader share one.
_COPIES: WeakValueDictionary[Any, FactorGraph] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class FactorGraph:
    r"""A bipartite graph :math:`\mathcal{G} = (\mathcal{V}, \mathcal{C}, \mathcal{E})` of variables and factors.

    It holds no features; these are separate tensors: variables f (N, d) or (B, N, d), factors g (C, d) or (B, C, d) by
    group name. With a leading B, all B samples share this structure. :meth:`concat` joins graphs that differ.

    Args:
        num_variables: N; a variable may be in no scope at all.
        groups: Factors by type; each type has its own layer parameters.
        variable_ptr: (G + 1,) where each of G concatenated graphs begins among the variables; None for one graph.
        factor_ptr: The same among the factors of each group.
        validate: Check indices and repeats; pass False to save time if the scopes are known to be valid.
        graph_size: The variables of each concatenated graph, where all have as many; None where they differ.
        hints: What is known about the edges of a group beforehand, so that nothing is read back from the device.

    Example:
        >>> g = FactorGraph(3, {"pair": FactorGroup([[0, 1], [1, 2]]), "all": FactorGroup([[0, 1, 2]])})
        >>> g.num_edges
        7
    """

    num_variables: int
    groups: Mapping[str, FactorGroup]
    variable_ptr: Tensor | None = None
    factor_ptr: Mapping[str, Tensor] | None = None
    graph_size: int | None = None
    validate: InitVar[bool] = True
    hints: InitVar[Mapping[str, Hints] | None] = None
    structure: Structure = field(init=False, repr=False)

    def __post_init__(self, validate: bool, hints: Mapping[str, Hints] | None) -> None:
        object.__setattr__(self, "num_variables", number_of_variables(self.num_variables))
        object.__setattr__(self, "groups", groups_by_name(self.groups))
        for name, group in self.groups.items():
            if validate:
                group.check(self.num_variables, name)
        object.__setattr__(self, "structure", Structure(self.num_variables, self.groups, hints=hints or {}))

    @property
    def num_edges(self) -> int:
        """The number of edges over all groups."""
        return sum(group.num_edges for group in self.groups.values())

    @property
    def num_factors(self) -> int:
        """The number of factors over all groups."""
        return sum(group.num_factors for group in self.groups.values())

    @property
    def num_graphs(self) -> int:
        """The number of concatenated graphs."""
        return 1 if self.variable_ptr is None else int(self.variable_ptr.shape[0]) - 1

    @property
    def device(self) -> torch.device:
        """Where the scopes are."""
        return next((group.device for group in self.groups.values()), torch.device("cpu"))

    def incidence(self, name: str) -> Incidence:
        """The edges of one group as index tensors, made on first use and kept."""
        return self.structure.incidence(name)

    def variable_degree(self) -> Tensor:
        """How many edges each variable has over all groups.  # shape: (N,)"""
        return self.structure.variable_degree()

    def isolated(self) -> Tensor | None:
        """True for variables in no scope; None where there is no such variable.  # shape: (N,)"""
        return self.structure.isolated()

    def members(self) -> Incidence:
        """Each concatenated graph as a factor over its own variables, for pooling by graph."""
        return self.structure.derived("members", self._members)

    def _members(self) -> Incidence:
        everything = torch.arange(self.num_variables, device=self.device)
        ends = torch.tensor([0, self.num_variables], device=self.device)
        ptr = ends if self.variable_ptr is None else self.variable_ptr
        return Incidence.of(FactorGroup.ragged(everything, ptr), self.num_variables)

    def prepare(self) -> FactorGraph:
        """Compute all derived index tensors now, before compiling or recording a network."""
        for name in self.groups:
            self.incidence(name).prepare()
        self.isolated()
        if self.variable_ptr is not None and self.graph_size is None:
            self.members().blocks("factor")
        return self

    def batch_index(self) -> Tensor:
        """The number of the concatenated graph that each variable belongs to.  # shape: (N,)"""
        return self._graph_of(self.variable_ptr, self.num_variables)

    def factor_batch_index(self, name: str) -> Tensor:
        """The same for the factors of a group.  # shape: (C,)"""
        ptr = None if self.factor_ptr is None else self.factor_ptr[name]
        return self._graph_of(ptr, self.groups[name].num_factors)

    def _graph_of(self, ptr: Tensor | None, count: int) -> Tensor:
        if ptr is None:
            return torch.zeros(count, dtype=torch.long, device=self.device)
        return segment_index(ptr, count)

    def map(self, change: Callable[[Tensor], Tensor]) -> FactorGraph:
        """The same graph in other tensors, such as copies on another device."""
        return FactorGraph(
            self.num_variables,
            {name: group.map(change) for name, group in self.groups.items()},
            variable_ptr=None if self.variable_ptr is None else change(self.variable_ptr),
            factor_ptr=None if self.factor_ptr is None else {k: change(p) for k, p in self.factor_ptr.items()},
            graph_size=self.graph_size,
            validate=False,
            hints=self.structure.hints,
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FactorGraph:
        """The same graph on another device; equal graphs share one copy there, and what is compiled from it."""
        target = torch.empty(0, device=device).device  # "cuda" names the current device
        if target == self.device:
            return self

        def moved() -> FactorGraph:
            return self.map(lambda x: x.to(target, non_blocking=non_blocking))

        if self.device.type != "cpu" or self.variable_ptr is not None:
            return moved()
        hints = tuple((name, h.max_degree, h.covers_all) for name, h in self.structure.hints.items())
        key = self.structure.key, hints, target
        copy = _COPIES.get(key)
        if copy is None:
            copy = _COPIES[key] = moved()
        return copy

    def pin_memory(self) -> FactorGraph:
        """The same graph in page-locked memory, from which copies to a GPU do not block."""
        return self.map(Tensor.pin_memory)

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that ``stream`` uses the graph's tensors; see ``torch.Tensor.record_stream``."""
        for x in graph_tensors(self):
            x.record_stream(stream)

    def __reduce__(self) -> tuple[Any, ...]:
        ptrs = self.variable_ptr, self.factor_ptr, self.graph_size
        hints = {name: (h.max_degree, h.covers_all) for name, h in self.structure.hints.items()}
        groups = {name: (group.scopes, group.offsets) for name, group in self.groups.items()}
        return restore_graph, (self.num_variables, groups, ptrs, hints)

    @classmethod
    def concat(cls, graphs: Sequence[FactorGraph]) -> FactorGraph:
        """Join graphs into one: variables and factors are renumbered in order, groups matched by name.

        A group that a graph lacks is empty there. Concatenate features along the node axis.
        """
        flat = [piece for graph in _listed(graphs) for piece in graph.unbatch()]
        device = next((graph.device for graph in flat if graph.groups), torch.device("cpu"))
        variable_ptr = _ptr([graph.num_variables for graph in flat], device)
        starts = variable_ptr.tolist()
        groups, factor_ptr = {}, {}
        for name in dict.fromkeys(name for graph in flat for name in graph.groups):
            pieces = [(graph.groups[name], at) for graph, at in zip(flat, starts, strict=False) if name in graph.groups]
            groups[name] = _join([group.shifted(at) for group, at in pieces])
            counts = [graph.groups[name].num_factors if name in graph.groups else 0 for graph in flat]
            factor_ptr[name] = _ptr(counts, device)
        sizes = {graph.num_variables for graph in flat}
        size = sizes.pop() if len(sizes) == 1 else None
        return cls(starts[-1], groups, variable_ptr, factor_ptr, size, validate=False)

    def unbatch(self) -> list[FactorGraph]:
        """The graphs that were concatenated; any other graph is returned as it is."""
        if self.variable_ptr is None or self.factor_ptr is None:
            return [self]
        variables = self.variable_ptr.tolist()
        factors = {name: ptr.tolist() for name, ptr in self.factor_ptr.items()}
        return [
            FactorGraph(
                variables[k + 1] - variables[k],
                {
                    name: _cut(group, factors[name][k], factors[name][k + 1]).shifted(-variables[k])
                    for name, group in self.groups.items()
                },
                validate=False,
            )
            for k in range(self.num_graphs)
        ]

    def perfect_matching(self, group: str) -> Matching:
        """A factor h(i) of the group for every variable i, or the reason why there is none."""
        from fgnn.graph.matching import perfect_matching

        return perfect_matching(self.groups[group], self.num_variables)

    def to_networkx(self) -> Any:
        """A networkx graph with nodes ("variable", i) and (group, c)."""
        from fgnn.graph.convert import to_networkx

        return to_networkx(self)

    @classmethod
    def from_networkx(cls, graph: Any) -> FactorGraph:
        """The inverse of :meth:`to_networkx`."""
        from fgnn.graph.convert import from_networkx

        return from_networkx(graph)

    def to_hetero_data(self) -> Any:
        """A PyG ``HeteroData`` with node types "variable" and one per group; concatenated graphs are PyG's batch."""
        from fgnn.graph.convert import hetero_batch, to_hetero_data

        graphs = self.unbatch()
        return to_hetero_data(self) if graphs[0] is self else hetero_batch(graphs)

    @classmethod
    def from_hetero_data(cls, data: Any) -> FactorGraph:
        """The inverse of :meth:`to_hetero_data`."""
        from fgnn.graph.convert import from_hetero_data

        return from_hetero_data(data)

    def _sketch_(self, states: States) -> Sketch:
        from fgnn.graph.sketch import sketch_graph

        return sketch_graph(self, states)

    def _repr_html_(self) -> str:
        from fgnn.graph.sketch import graph_html

        return graph_html(self)

    def __repr__(self) -> str:
        parts = []
        for name, group in self.groups.items():
            scope = f"arity {group.arity}" if group.arity is not None else "ragged"
            parts.append(f"{name}: {group.num_factors} factors, {scope}, {group.num_edges} edges")
        batch = f"{self.num_graphs} graphs, " if self.variable_ptr is not None else ""
        return f"FactorGraph({batch}{self.num_variables} variables; {'; '.join(parts) or 'no factors'})"


def graph_tensors(graph: FactorGraph) -> list[Tensor]:
    """All tensors that a graph holds, not those derived from them."""
    groups = [x for group in graph.groups.values() for x in (group.scopes, group.offsets)]
    return [x for x in (*groups, graph.variable_ptr, *(graph.factor_ptr or {}).values()) if x is not None]


def restore_graph(
    num_variables: int, groups: dict[str, Any], ptrs: tuple[Any, ...], hints: dict[str, Any]
) -> FactorGraph:
    """A graph from its saved parts. Scopes are checked: kernels index memory by them."""
    made = {}
    for name, (scopes, offsets) in groups.items():
        made[name] = FactorGroup(scopes, offsets)
        low, high = (int(v) for v in scopes.aminmax()) if scopes.numel() else (0, 0)
        if scopes.numel() and not 0 <= low <= high < num_variables:
            raise ValueError(f"Expected variables 0 to {num_variables - 1} in group {name!r} (got {low} to {high})")
    known = {name: Hints(*values) for name, values in hints.items()}
    variable_ptr, factor_ptr, size = ptrs
    return FactorGraph(num_variables, made, variable_ptr, factor_ptr, size, validate=False, hints=known)


# What torch.load(..., weights_only=True) may call to restore a graph.
torch.serialization.add_safe_globals([restore_graph])


def _listed(given: Any) -> list[FactorGraph]:
    """Graphs to concatenate, at least one."""
    if not isinstance(given, Iterable):
        raise ValueError(f"Expected a list of graphs to concatenate (got {type(given).__name__})")  # noqa: TRY004
    graphs = list(given)
    for k, graph in enumerate(graphs):
        if not isinstance(graph, FactorGraph):
            kind = type(graph).__name__
            raise ValueError(f"Expected a FactorGraph as graph {k} (got {kind}); fgnn.collate joins samples")  # noqa: TRY004
    if not graphs:
        raise ValueError("Expected at least one graph to concatenate (got none)")
    return graphs


def _join(groups: list[FactorGroup]) -> FactorGroup:
    """Concatenate groups; the result is uniform if all non-empty groups have the same arity."""
    some = [group for group in groups if group.num_factors] or groups[:1]
    arities = {group.arity for group in some}
    if len(arities) == 1 and None not in arities:
        return FactorGroup.known(torch.cat([group.scopes for group in some]))
    sizes = torch.cat([group.factor_ptr().diff() for group in some])
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup.known(torch.cat([group.scopes.reshape(-1) for group in some]), offsets)


def _cut(group: FactorGroup, start: int, stop: int) -> FactorGroup:
    if group.offsets is None:
        return FactorGroup.known(group.scopes[start:stop])
    ptr = group.offsets[start : stop + 1]
    return FactorGroup.known(group.scopes[int(ptr[0]) : int(ptr[-1])], ptr - ptr[0])


def _ptr(counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *counts], device=device).cumsum(0)
