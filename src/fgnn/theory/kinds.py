"""A model's factors sorted into kinds that share weights, each edge with the slot it owns at its variable."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel
from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, decompose
from fgnn.theory.layout import FactorKind, Pattern, VariableLayout

# (scope, boxes, the table group it comes from or None, its row there)
_Factor = tuple[tuple[int, ...], Decomposition, int | None, int]


def sort_factors(model: GraphicalModel, *, merge: bool = True) -> tuple[list[FactorKind], VariableLayout]:
    """Decompose every factor and group those with the same boxes; say how the variables' features are laid out.

    A variable without a factor gets a constant one, since a node without edges keeps nothing.
    """
    factors = _factors(model, merge)
    kinds: dict[tuple[int | None, tuple[int, ...], Pattern], list[_Factor]] = {}
    for factor in factors:
        kinds.setdefault((factor[2], factor[1].shape, factor[1].pattern), []).append(factor)
    degree = np.zeros(model.num_variables, dtype=np.int64)
    sorted_kinds: list[FactorKind] = []
    for (source, shape, pattern), members in kinds.items():
        scopes = np.array([scope for scope, _, _, _ in members], dtype=np.int64).reshape(len(members), len(shape))
        name = f"{'x'.join(map(str, shape))}:{len(pattern)}"
        taken = sum(kind.name.split("#")[0] == name for kind in sorted_kinds)
        sorted_kinds.append(
            FactorKind(
                name=f"{name}#{taken}" if taken else name,
                shape=shape,
                terms=pattern,
                scopes=torch.from_numpy(scopes),
                slots=torch.from_numpy(_slots(scopes, degree)),
                source=source,
                rows=torch.tensor([row for _, _, _, row in members]),
            )
        )
    layout = VariableLayout(
        states=int(model.cardinalities.max()) if model.num_variables else 1,
        slots=int(degree.max()) if degree.size else 0,
        bans=bool(np.isneginf(model.unaries).any()) or any(map(_can_ban, sorted_kinds)),
    )
    return sorted_kinds, layout


def _factors(model: GraphicalModel, merge: bool) -> list[_Factor]:
    factors: list[_Factor] = []
    free = np.ones(model.num_variables, dtype=bool)
    for g, group in enumerate(model.table_groups):
        known: dict[bytes, Decomposition] = {}  # models repeat their tables
        for row, (scope, table) in enumerate(zip(group.scopes, group.values, strict=True)):
            key = table.tobytes()
            if key not in known:
                known[key] = decompose(table, merge=merge)
            factors.append((tuple(scope.tolist()), known[key], g, row))
        free[group.scopes] = False
    for budgets in model.budget_groups:
        made: dict[tuple[int, int], Decomposition] = {}
        bounds = zip(budgets.at_least.tolist(), budgets.at_most.tolist(), strict=True)
        for scope, pair in zip(budgets.scopes, bounds, strict=True):
            if pair not in made:
                made[pair] = decompose_budget(budgets.scopes.shape[1], *pair)
            factors.append((tuple(scope.tolist()), made[pair], None, 0))
        free[budgets.scopes] = False
    for i in np.nonzero(free)[0].tolist():
        factors.append(((i,), decompose(np.zeros(int(model.cardinalities[i]))), None, 0))
    return factors


def _slots(scopes: NDArray[np.int64], degree: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next free slot of each variable, counted up in ``degree``."""
    slots = np.empty_like(scopes)
    for place, i in np.ndenumerate(scopes):
        slots[place] = degree[i]
        degree[i] += 1
    return slots


def _can_ban(kind: FactorKind) -> bool:
    """Whether a factor forbids a state whatever the others do."""
    return any(len({x for term in kind.terms for x in term[a]}) < states for a, states in enumerate(kind.shape))
