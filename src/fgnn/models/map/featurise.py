"""Models as input of a network: a factor graph with features of variables, factors and edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup, Incidence
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.pgm import BudgetBatch, GraphicalModel, ModelBatch

Positions = Literal["one-hot", "index", "none"]

SINGLE = "single"
BUDGET_FEATURES = ("at_most", "size", "at_most / size", "at_least")


@dataclass(frozen=True, eq=False)
class Features:
    """What a network reads: B models of one structure."""

    graph: FactorGraph
    variables: Tensor  # shape: (B, N, variable_in)
    factors: Mapping[str, Tensor]  # by group, shape: (B, C, factor_in); stride 0 along B where all models share them
    edges: Mapping[str, EdgeFeatures]  # by group: by position (A, edge_in), or by edge (E, edge_in), or types

    @property
    def variable_in(self) -> int:
        """The length of a variable's features."""
        return int(self.variables.shape[-1])

    @property
    def factor_in(self) -> dict[str, int]:
        """The length of a factor's features, by group."""
        return {name: int(g.shape[-1]) for name, g in self.factors.items()}

    @property
    def edge_in(self) -> dict[str, int]:
        """The length of an edge's features or the number of its types, by group."""
        return {n: t.num_types if isinstance(t, EdgeTypes) else int(t.shape[-1]) for n, t in self.edges.items()}


def featurise(
    models: GraphicalModel | ModelBatch,
    *,
    positions: Positions = "one-hot",
    arity: Mapping[str, int] | None = None,
    centre: bool = False,
    fixed: Collection[str] = (),
    masks: bool | None = None,
    window: int | None = None,
    singles: bool = True,
) -> Features:
    """The features of a model or a batch, on its device and in its dtype. The graph is kept with the structure.

    Groups of factors: ``table2x2`` holds all tables of that shape, ``budget`` all budgets. Features are

    - of a variable: its unaries, one entry per state; with ``centre`` less that of state 0, which is left out;
    - of a table: its entries in order;
    - of a budget: k = at_most, its size, their ratio, and at_least;
    - of a structured factor, in a group of the name of its kind: the log-potentials that it selects from;
    - of a group in ``fixed``: the constant 1, since a network need not read what never changes;
    - of the group ``single``: the constant 1. It holds a factor for every variable that is in no other, since an FGNN
      layer drops the features of a variable without edges;
    - of an edge: its position in the scope, one-hot or as a type (for one learned matrix per position).

    An entry -inf (or a state a variable does not have) becomes -10; with ``masks``, 1 for each such entry and 0 for the
    others is appended.

    Args:
        models: A model, or a batch of one structure.
        positions: ``one-hot``, ``index``, or ``none`` for edges without features.
        arity: The largest arity that positions allow for, by group; by default the largest of the group.
        centre: Whether unaries are taken relative to state 0.
        fixed: Groups whose numbers are the same in all models; see `constant_groups`.
        masks: Whether to mark -inf entries; by default in the groups of this batch that have any.
        window: Read budgets as factors over all runs of this many neighbours in their scopes; they must be fixed.
        singles: Whether variables in no factor get one of their own.

    Example:
        >>> m = GraphicalModel([2, 2, 2])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> m.add_budget((0, 1, 2), at_most=2)
        >>> features = featurise(m, centre=True)
        >>> features.variable_in, features.factor_in, features.edge_in
        (1, {'table2x2': 4, 'budget': 4}, {'table2x2': 2, 'budget': 3})
    """
    batch = models if isinstance(models, ModelBatch) else ModelBatch.stack([models])
    tables, structured, names = _table_names(batch), _structured_names(batch), group_names(batch)
    unknown = sorted(set(fixed) - set(names))
    if unknown:
        raise ValueError(f"Expected fixed groups among {', '.join(names)} (got {unknown[0]!r})")
    if window is not None and "budget" not in fixed:
        raise ValueError("Expected a window only where budgets are fixed (got budgets that vary)")
    graph = batch.structure.derived(("features", window, singles), lambda: _graph(batch, window, singles))
    one = batch.unary.new_ones(1, 1, 1)
    factors = {}
    for name, group in graph.groups.items():
        if name in fixed or name == SINGLE:
            factors[name] = one.expand(len(batch), group.num_factors, 1)
        elif name in tables:
            entries = batch.tables[tables[name]].distinct("values").flatten(2)
            factors[name] = _finite(entries, masks).expand(len(batch), -1, -1)
        elif name in structured:
            theta = batch.structured[structured[name]].potentials(batch.dtype)
            factors[name] = _finite(theta, masks).expand(len(batch), -1, -1)
        else:
            parts = [_budget(u, batch.dtype) for u in batch.budgets]
            factors[name] = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    edges = _edges(graph, positions, arity or {}, batch.dtype)
    return Features(graph, _finite(batch.unary, masks, centre), factors, edges)


def group_names(batch: ModelBatch) -> list[str]:
    """The groups of factors that a batch's models have."""
    return [*_table_names(batch), *(["budget"] if batch.budgets else []), *_structured_names(batch)]


def constant_groups(batch: ModelBatch) -> frozenset[str]:
    """The groups whose factors all have the same numbers in all models of a batch: candidates for ``fixed``."""
    constant = {name for name, at in _table_names(batch).items() if _constant(batch.tables[at].values)}
    if len(batch.budgets) == 1 and _constant(torch.stack([batch.budgets[0].at_least, batch.budgets[0].at_most], -1)):
        constant.add("budget")
    return frozenset(constant)


def sub_windows(scopes: Tensor, size: int) -> Tensor:
    """All distinct runs of ``size`` neighbours in the scopes, sorted.  # shape: (C, A) -> (·, size)"""
    if size > scopes.shape[1]:
        raise ValueError(f"Expected a factor_size of at most the budgets' {scopes.shape[1]} variables (got {size})")
    runs: Tensor = torch.unique(scopes.unfold(1, size, 1).reshape(-1, size), dim=0)
    return runs


# ---- numbers ------------------------------------------------------------------------------------------------------


def _finite(theta: Tensor, masks: bool | None, centre: bool = False) -> Tensor:
    """Log-potentials with -10 for -inf, and where masked with a 1 for each such entry.  # shape: (B, ·, K)"""
    forbidden = theta == -torch.inf
    masked = bool(forbidden.any()) if masks is None else masks
    theta = theta.masked_fill(forbidden, -10.0)
    if centre:
        theta = theta[..., 1:] - theta[..., :1]
    return torch.cat([theta, forbidden.to(theta.dtype)], -1) if masked else theta


def _budget(budget: BudgetBatch, dtype: torch.dtype) -> Tensor:
    """The features of budgets over the same number of variables.  # shape: (B, C, 4)"""
    size = budget.scopes.shape[1]
    low, high = budget.distinct("at_least").to(dtype), budget.distinct("at_most").to(dtype)
    models = max(len(low), len(high))
    low, high = low.expand(models, -1), high.expand(models, -1)
    features = torch.stack([high, torch.full_like(high, size), high / size, low], -1)
    return features.expand(len(budget.at_least), -1, -1)


def _constant(values: Tensor) -> bool:
    return bool((values == values[:1, :1]).all())


# ---- structure ----------------------------------------------------------------------------------------------------


def _table_names(batch: ModelBatch) -> dict[str, int]:
    """The index of each group of tables in ``batch.tables``."""
    names: dict[str, int] = {}
    for at, table in enumerate(batch.tables):
        name = "table" + "x".join(map(str, table.shape))
        names[name if name not in names else f"{name}#{at}"] = at
    return names


def _structured_names(batch: ModelBatch) -> dict[str, int]:
    """The index of each group in ``batch.structured``."""
    names: dict[str, int] = {}
    for at, f in enumerate(batch.structured):
        names[f.kind.name if f.kind.name not in names else f"{f.kind.name}#{at}"] = at
    return names


def _graph(batch: ModelBatch, window: int | None, singles: bool) -> FactorGraph:
    groups = {name: FactorGroup(batch.tables[at].scopes) for name, at in _table_names(batch).items()}
    if batch.budgets:
        groups["budget"] = _join([u.scopes if window is None else sub_windows(u.scopes, window) for u in batch.budgets])
    groups |= {name: FactorGroup(batch.structured[at].scopes) for name, at in _structured_names(batch).items()}
    isolated = batch.structure.isolated()
    if singles and isolated is not None:
        groups[SINGLE] = FactorGroup(isolated.nonzero())
    return FactorGraph(batch.num_variables, groups).prepare()


def _join(scopes: list[Tensor]) -> FactorGroup:
    """Scopes of several sizes as one group."""
    if len(scopes) == 1:
        return FactorGroup(scopes[0])
    sizes = torch.cat([s.new_full((len(s),), s.shape[1]) for s in scopes])
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup.ragged(torch.cat([s.reshape(-1) for s in scopes]), offsets)


def _edges(
    graph: FactorGraph, positions: Positions, arity: Mapping[str, int], dtype: torch.dtype
) -> dict[str, EdgeFeatures]:
    """The position of each edge in its scope, kept with the graph."""
    if positions not in ("one-hot", "index", "none"):
        raise ValueError(f"Expected positions among one-hot, index, none (got {positions!r})")
    if positions == "none":
        return {}
    edges = {}
    for name in graph.groups:
        incidence = graph.incidence(name)
        width = arity.get(name, incidence.positions.num_types)
        make = partial(_positions, incidence, positions, width, dtype)
        edges[name] = incidence.derived(("positions", positions, width, dtype), make)
    return edges


def _positions(incidence: Incidence, positions: Positions, width: int, dtype: torch.dtype) -> EdgeFeatures:
    types = incidence.positions
    if positions == "index":
        return types if width == types.num_types else EdgeTypes(types.index, width).prepare()
    index = types.index
    if incidence.arity is not None:  # the same for every factor
        index = torch.arange(incidence.arity, device=index.device)
    return torch.nn.functional.one_hot(index, width).to(dtype)
