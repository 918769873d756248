"""A model's factors grouped into kinds that share weights, and the slot of every edge."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel
from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, Pattern, Slopes, decompositions
from fgnn.theory.layout import FactorKind, VariableLayout

# few: the terms that need the fewest comparisons; single: one per configuration, found beforehand; tables: one per
# configuration, with all θ_ic as features, which Prop. 2's layer computes
Terms = Literal["few", "single", "tables"]


class _Factor(NamedTuple):
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    terms: Pattern
    slopes: Slopes
    source: int | None = None  # index of its table group
    row: int = 0  # its row there
    table: NDArray[np.float64] | None = None  # a fixed table


def sort_factors(
    model: GraphicalModel, terms: Terms = "few", *, separate: bool = False
) -> tuple[list[FactorKind], VariableLayout]:
    """Decompose every factor, group factors with the same boxes, and lay out the variables' features.

    A variable without factors gets a constant one, since a node without edges loses its features.

    Args:
        model: The model.
        terms: How to decompose tables.
        separate: Whether M takes every maximum towards a factor once for each slot, as the standard variant does.
    """
    members_of: dict[tuple[object, ...], list[_Factor]] = {}
    for factor in _factors(model, terms, _degree(model) if separate else 1):
        members_of.setdefault((factor.source, factor.shape, factor.terms, factor.slopes), []).append(factor)
    degree = np.zeros(model.num_variables, dtype=np.int64)
    kinds: list[FactorKind] = []
    for members in members_of.values():
        first = members[0]
        scopes = np.array([factor.scope for factor in members], dtype=np.int64).reshape(len(members), -1)
        name = f"{'x'.join(map(str, first.shape))}:{len(first.terms)}"
        same = sum(kind.name.split("#")[0] == name for kind in kinds)
        fixed = [torch.from_numpy(factor.table).reshape(-1) for factor in members if factor.table is not None]
        kinds.append(
            FactorKind(
                name=f"{name}#{same}" if same else name,
                shape=first.shape,
                terms=first.terms,
                slopes=first.slopes,
                scopes=torch.from_numpy(scopes),
                slots=torch.from_numpy(_slots(scopes, degree)),
                source=first.source,
                rows=torch.tensor([factor.row for factor in members]),
                fixed=torch.stack(fixed) if fixed else None,
            )
        )
    states = int(model.cardinalities.max()) if model.num_variables else 1
    return kinds, VariableLayout(states=states, slots=int(degree.max()) if degree.size else 0)


def _factors(model: GraphicalModel, terms: Terms, repeats: int) -> list[_Factor]:
    factors: list[_Factor] = []
    isolated = np.ones(model.num_variables, dtype=bool)
    for g, group in enumerate(model.table_groups):
        found: dict[bytes, tuple[Pattern, Slopes]] = {}  # tables often repeat
        for row, (scope, table) in enumerate(zip(group.scopes, group.values, strict=True)):
            key = b"" if terms == "tables" else table.tobytes()
            if key not in found:
                found[key] = _every(table.shape) if terms == "tables" else _boxes(_cheapest(table, terms, repeats))
            factors.append(_Factor(tuple(scope.tolist()), table.shape, *found[key], g, row))
        isolated[group.scopes] = False
    budget_boxes = cache(lambda *bounds: _boxes(decompose_budget(*bounds)))
    for budgets in model.budget_groups:
        for scope, low, high in zip(budgets.scopes, budgets.at_least.tolist(), budgets.at_most.tolist(), strict=True):
            shape = (2,) * len(scope)
            if terms == "tables":
                ones = np.indices(shape).sum(0)
                table = np.where((low <= ones) & (ones <= high), 0.0, -np.inf)
                factors.append(_Factor(tuple(scope.tolist()), shape, *_every(shape), table=table))
            else:
                factors.append(_Factor(tuple(scope.tolist()), shape, *budget_boxes(len(scope), low, high)))
        isolated[budgets.scopes] = False
    for i in np.flatnonzero(isolated).tolist():
        shape = (int(model.cardinalities[i]),)
        if terms == "tables":
            factors.append(_Factor((i,), shape, *_every(shape), table=np.zeros(shape)))
        else:
            factors.append(_Factor((i,), shape, ((tuple(range(*shape)),),), ((),)))
    return factors


def _degree(model: GraphicalModel) -> int:
    """The largest number of factors that share a variable."""
    scopes = [group.scopes.reshape(-1) for group in model.table_groups]
    scopes += [group.scopes.reshape(-1) for group in model.budget_groups]
    return int(np.bincount(np.concatenate(scopes)).max(initial=1)) if scopes else 1


def _cheapest(table: NDArray[np.float64], terms: Terms, repeats: int) -> Decomposition:
    def cost(d: Decomposition) -> tuple[int, int, int]:
        to_factor, to_variables = d.comparisons
        return repeats * to_factor + to_variables, to_factor, d.num_terms

    return min(decompositions(table, merge=terms == "few"), key=cost)


def _boxes(d: Decomposition) -> tuple[Pattern, Slopes]:
    return d.pattern, d.slopes or ((),) * d.num_terms


def _every(shape: tuple[int, ...]) -> tuple[Pattern, Slopes]:
    """One term per configuration with full sides and offsets everywhere: θ_ic(x_i, z) itself, as in Prop. 2."""
    sides = tuple(tuple(range(k)) for k in shape)
    return (sides,) * prod(shape), (tuple(range(len(shape))),) * prod(shape)


def _slots(scopes: NDArray[np.int64], degree: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next free slot of each variable, counted up in ``degree``."""
    slots = np.empty_like(scopes)
    for edge, i in np.ndenumerate(scopes):
        slots[edge] = degree[i]
        degree[i] += 1
    return slots
