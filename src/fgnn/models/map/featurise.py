"""Models as input of a network: a factor graph with features of variables, factors and edges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.pgm import BudgetBatch, GraphicalModel, ModelBatch, TableBatch

Positions = Literal["one-hot", "index", "none"]
BudgetGroups = Literal["together", "by-size"]

SINGLE = "single"
BUDGET_FEATURES = ("at_most", "size", "at_most / size", "at_least")


@dataclass(frozen=True, eq=False)
class Features:
    """What a network reads: B models of one structure."""

    graph: FactorGraph
    variables: Tensor  # shape: (B, N, variable_in)
    factors: Mapping[str, Tensor]  # by group, shape: (B, C, factor_in); stride 0 along B where all models share them
    edges: Mapping[str, Tensor]  # by group, by place (A, edge_in) or (A,); ragged groups by edge (E, edge_in) or (E,)


class Featuriser:
    """Turns models of one structure into `Features`; the structure is read once, the numbers at every call.

    Groups of factors are named by what they are: ``table2x2`` holds all tables of that shape, ``budget`` all budgets
    (or ``budget8`` those over 8 variables). Features are

    - of a variable: its unaries, one entry per state; with ``centre``, less that of state 0, which is left out, so
      that a binary variable has the one feature θ_i(1) - θ_i(0);
    - of a table: its entries in order;
    - of a budget: k = at_most, its size, their ratio, and at_least;
    - of a group named in ``fixed``: the constant 1, since a network need not read what never changes;
    - of the group ``single``: the constant 1. It holds a factor for every variable that is in no other, since in a
      layer a variable without edges would lose its features;
    - of an edge: its place in the scope, one-hot or as an integer (an edge type, for a learned matrix per place).

    An entry -inf (or a state a variable does not have) becomes ``marker``; with ``masks``, 1 for each such entry and 0
    for the others is appended.

    Args:
        example: A model or a batch of the structure; it also says whether masks are needed.
        positions: ``one-hot``, ``index``, or ``none`` for edges without features.
        centre: Whether unaries are taken relative to state 0.
        fixed: Names of groups whose numbers are the same in all models; see `constant_groups`.
        budgets: Whether budgets of different sizes form one (ragged) group or one each.
        masks: Whether to mark -inf entries; by default, where the example has any, group by group.
        marker: What stands for -inf.

    Example:
        >>> m = GraphicalModel([2, 2, 2])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> m.add_budget((0, 1, 2), at_most=2)
        >>> reader = Featuriser(m, centre=True)
        >>> reader.variable_in, reader.factor_in, reader.edge_in
        (1, {'table2x2': 4, 'budget': 4}, {'table2x2': 2, 'budget': 3})
    """

    def __init__(
        self,
        example: GraphicalModel | ModelBatch,
        *,
        positions: Positions = "one-hot",
        centre: bool = False,
        fixed: Collection[str] = (),
        budgets: BudgetGroups = "together",
        masks: bool | None = None,
        marker: float = -10.0,
    ) -> None:
        if positions not in ("one-hot", "index", "none"):
            raise ValueError(f"Expected positions among one-hot, index, none (got {positions!r})")
        if budgets not in ("together", "by-size"):
            raise ValueError(f"Expected budgets together or by-size (got {budgets!r})")
        batch = _batch(example)
        self.centre, self.marker, self.positions = centre, marker, positions
        self.cardinalities = batch.cardinalities
        self._tables = _table_names(batch)
        self._budgets = _budget_names(batch, budgets)
        names = [*self._tables, *self._budgets]
        unknown = sorted(set(fixed) - set(names))
        if unknown:
            raise ValueError(f"Expected fixed groups among {', '.join(names)} (got {unknown[0]!r})")
        self.fixed = frozenset(fixed)
        self._masked = {
            name: _any_banned(batch.tables[at].values) if masks is None else masks for name, at in self._tables.items()
        }
        self._mask_variables = _any_banned(batch.unary) if masks is None else masks
        self._scopes = {name: batch.tables[at].scopes for name, at in self._tables.items()}
        self._budget_scopes = tuple(u.scopes for u in batch.budgets)
        self._single = self._without_factor()
        self._made: dict[tuple[torch.device, torch.dtype], tuple[FactorGraph, dict[str, Tensor]]] = {}
        graph, _ = self._structure(batch)
        self.groups = tuple(graph.groups)

    # ---- sizes --------------------------------------------------------------------------------------------

    @property
    def variable_in(self) -> int:
        """The length of a variable's features."""
        states = int(self.cardinalities.max()) if self.cardinalities.numel() else 1
        return states - self.centre + (states if self._mask_variables else 0)

    @property
    def factor_in(self) -> dict[str, int]:
        """The length of a factor's features, by group."""
        return {name: self._factor_width(name) for name in self.groups}

    @property
    def edge_in(self) -> dict[str, int]:
        """The length of an edge's one-hot features or the number of its types, by group; 0 without."""
        if self.positions == "none":
            return dict.fromkeys(self.groups, 0)
        return {name: self._arity(name) for name in self.groups}

    # ---- reading models -----------------------------------------------------------------------------------

    def __call__(self, models: GraphicalModel | ModelBatch) -> Features:
        """The features of models of this structure, on their device, in their floating-point type."""
        batch = _batch(models)
        self._check(batch)
        graph, edges = self._structure(batch)
        factors: dict[str, Tensor] = {}
        for name, at in self._tables.items():
            if name in self.fixed:
                factors[name] = _ones(batch, len(self._scopes[name]))
            else:
                features = self._table(batch.tables[at].distinct("values"), self._masked[name])
                factors[name] = features.expand(len(batch), -1, -1)
        for name, members in self._budgets.items():
            parts = [batch.budgets[at] for at in members]
            if name in self.fixed:
                factors[name] = _ones(batch, sum(len(u.scopes) for u in parts))
            else:
                made = [_budget(u, batch.dtype) for u in parts]
                factors[name] = made[0] if len(made) == 1 else torch.cat(made, 1)
        if len(self._single):
            factors[SINGLE] = _ones(batch, len(self._single))
        return Features(graph, self._unary(batch.unary), factors, edges)

    def _unary(self, unary: Tensor) -> Tensor:
        banned = unary == -torch.inf
        theta = unary.masked_fill(banned, self.marker)
        if self.centre:
            theta = theta[..., 1:] - theta[..., :1]
        return torch.cat([theta, banned.to(theta.dtype)], -1) if self._mask_variables else theta

    def _table(self, values: Tensor, masked: bool) -> Tensor:
        flat = values.flatten(2)
        banned = flat == -torch.inf
        theta = flat.masked_fill(banned, self.marker)
        return torch.cat([theta, banned.to(theta.dtype)], -1) if masked else theta

    # ---- structure ----------------------------------------------------------------------------------------

    def _without_factor(self) -> Tensor:
        """The variables in no scope.  # shape: (S, 1)"""
        free = torch.ones_like(self.cardinalities, dtype=torch.bool)
        for scopes in (*self._scopes.values(), *self._budget_scopes):
            free[scopes.reshape(-1)] = False
        return free.nonzero()

    def _arity(self, name: str) -> int:
        if name == SINGLE:
            return 1
        if name in self._tables:
            return int(self._scopes[name].shape[1])
        return max(int(self._budget_scopes[at].shape[1]) for at in self._budgets[name])

    def _factor_width(self, name: str) -> int:
        if name in self.fixed or name == SINGLE:
            return 1
        if name in self._budgets:
            return len(BUDGET_FEATURES)
        states = self.cardinalities[self._scopes[name][0]]
        return int(states.prod()) * (2 if self._masked[name] else 1)

    def _structure(self, batch: ModelBatch) -> tuple[FactorGraph, dict[str, Tensor]]:
        """Graph and edge features, made once for each device and floating-point type."""
        device, dtype = batch.device, batch.dtype
        if (device, dtype) not in self._made:
            groups = {name: FactorGroup(scopes.to(device)) for name, scopes in self._scopes.items()}
            for name, members in self._budgets.items():
                groups[name] = _join([self._budget_scopes[at].to(device) for at in members])
            if len(self._single):
                groups[SINGLE] = FactorGroup(self._single.to(device))
            graph = FactorGraph(int(self.cardinalities.shape[0]), groups).prepare()
            edges = (
                {} if self.positions == "none" else {name: self._places(name, groups[name], dtype) for name in groups}
            )
            self._made[device, dtype] = (graph, edges)
        return self._made[device, dtype]

    def _places(self, name: str, group: FactorGroup, dtype: torch.dtype) -> Tensor:
        width = self._arity(name)
        if group.arity is not None:
            places = torch.arange(width, device=group.device)
        else:
            starts = group.factor_ptr()[:-1]
            places = torch.arange(group.num_edges, device=group.device) - starts[group.factor_index()]
        if self.positions == "index":
            return places
        return torch.nn.functional.one_hot(places, width).to(dtype)

    def _check(self, batch: ModelBatch) -> None:
        tables = list(self._scopes.values())
        same = (
            batch.num_variables == self.cardinalities.shape[0]
            and len(batch.tables) == len(tables)
            and len(batch.budgets) == len(self._budget_scopes)
            and all(_same(t.scopes, mine) for t, mine in zip(batch.tables, tables, strict=True))
            and all(_same(u.scopes, mine) for u, mine in zip(batch.budgets, self._budget_scopes, strict=True))
        )
        if not same:
            raise ValueError(f"Expected models of the structure this featuriser was made for (got {batch!r})")


def featurise(models: GraphicalModel | ModelBatch, **options: Any) -> Features:
    """The features of a model or a batch, in one call; for many batches of one structure keep a `Featuriser`."""
    return Featuriser(models, **options)(models)


def constant_groups(batch: ModelBatch, budgets: BudgetGroups = "together") -> frozenset[str]:
    """The groups whose factors all have the same numbers in all models of a batch: candidates for ``fixed``."""
    found = {name for name, at in _table_names(batch).items() if _constant(batch.tables[at].values)}
    for name, members in _budget_names(batch, budgets).items():
        bounds = [torch.stack([batch.budgets[at].at_least, batch.budgets[at].at_most], -1) for at in members]
        if len(members) == 1 and _constant(bounds[0]):
            found.add(name)
    return frozenset(found)


def _batch(models: GraphicalModel | ModelBatch) -> ModelBatch:
    return models if isinstance(models, ModelBatch) else ModelBatch.stack([models])


def _table_names(batch: ModelBatch) -> dict[str, int]:
    names: dict[str, int] = {}
    for at, table in enumerate(batch.tables):
        name = _table_name(table)
        names[name if name not in names else f"{name}#{at}"] = at
    return names


def _table_name(table: TableBatch) -> str:
    return "table" + "x".join(map(str, table.shape))


def _budget_names(batch: ModelBatch, grouping: BudgetGroups) -> dict[str, list[int]]:
    if grouping == "together":
        return {"budget": list(range(len(batch.budgets)))} if batch.budgets else {}
    return {f"budget{u.scopes.shape[1]}": [at] for at, u in enumerate(batch.budgets)}


def _budget(budget: BudgetBatch, dtype: torch.dtype) -> Tensor:
    size = budget.scopes.shape[1]

    low, high = budget.distinct("at_least").to(dtype), budget.distinct("at_most").to(dtype)
    low, high = low + torch.zeros_like(high), high + torch.zeros_like(low)
    features = torch.stack([high, torch.full_like(high, size), high / size, low], -1)
    return features.expand(budget.at_least.shape[0], -1, -1)


def _join(scopes: list[Tensor]) -> FactorGroup:
    """Scopes of several sizes as one group."""
    if len(scopes) == 1:
        return FactorGroup(scopes[0])
    sizes = torch.cat([s.new_full((len(s),), s.shape[1]) for s in scopes])
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup.ragged(torch.cat([s.reshape(-1) for s in scopes]), offsets)


def _ones(batch: ModelBatch, count: int) -> Tensor:
    return batch.unary.new_ones(1, 1, 1).expand(len(batch), count, 1)


def _any_banned(values: Tensor) -> bool:
    return bool((values == -torch.inf).any())


def _constant(values: Tensor) -> bool:
    return bool((values == values[:1, :1]).all())


def _same(scopes: Tensor, mine: Tensor) -> bool:
    # Generators hand out the same tensor again and again; only another one is compared.
    return scopes is mine or (scopes.shape == mine.shape and torch.equal(scopes.to(mine.device), mine))
