"""A model's factors grouped into kinds that share weights, and the slot of every edge."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm import GraphicalModel
from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, decompose
from fgnn.theory.layout import FactorKind, Pattern, VariableLayout


class _Factor(NamedTuple):
    scope: tuple[int, ...]
    boxes: Decomposition
    source: int | None = None  # index of its table group
    row: int = 0  # its row there


def sort_factors(model: GraphicalModel, *, merge: bool = True) -> tuple[list[FactorKind], VariableLayout]:
    """Decompose every factor, group factors with the same boxes, and lay out the variables' features.

    A variable without factors gets a constant one, since a node without edges loses its features.
    """
    members_of: dict[tuple[int | None, tuple[int, ...], Pattern], list[_Factor]] = {}
    for factor in _factors(model, merge):
        members_of.setdefault((factor.source, factor.boxes.shape, factor.boxes.pattern), []).append(factor)
    degree = np.zeros(model.num_variables, dtype=np.int64)
    kinds: list[FactorKind] = []
    for (source, shape, pattern), members in members_of.items():
        scopes = np.array([factor.scope for factor in members], dtype=np.int64).reshape(len(members), len(shape))
        name = f"{'x'.join(map(str, shape))}:{len(pattern)}"
        same = sum(kind.name.split("#")[0] == name for kind in kinds)
        kinds.append(
            FactorKind(
                name=f"{name}#{same}" if same else name,
                shape=shape,
                terms=pattern,
                scopes=torch.from_numpy(scopes),
                slots=torch.from_numpy(_slots(scopes, degree)),
                source=source,
                rows=torch.tensor([factor.row for factor in members]),
            )
        )
    layout = VariableLayout(
        states=int(model.cardinalities.max()) if model.num_variables else 1,
        slots=int(degree.max()) if degree.size else 0,
        forbids=bool(np.isneginf(model.unaries).any()) or any(map(_can_forbid, kinds)),
    )
    return kinds, layout


def _factors(model: GraphicalModel, merge: bool) -> list[_Factor]:
    factors: list[_Factor] = []
    isolated = np.ones(model.num_variables, dtype=bool)
    for g, group in enumerate(model.table_groups):
        boxes: dict[bytes, Decomposition] = {}  # tables often repeat
        for row, (scope, table) in enumerate(zip(group.scopes, group.values, strict=True)):
            key = table.tobytes()
            if key not in boxes:
                boxes[key] = decompose(table, merge=merge)
            factors.append(_Factor(tuple(scope.tolist()), boxes[key], g, row))
        isolated[group.scopes] = False
    budget_boxes = cache(decompose_budget)
    for budgets in model.budget_groups:
        for scope, low, high in zip(budgets.scopes, budgets.at_least.tolist(), budgets.at_most.tolist(), strict=True):
            factors.append(_Factor(tuple(scope.tolist()), budget_boxes(len(scope), low, high)))
        isolated[budgets.scopes] = False
    for i in np.flatnonzero(isolated).tolist():
        factors.append(_Factor((i,), decompose(np.zeros(int(model.cardinalities[i])))))
    return factors


def _slots(scopes: NDArray[np.int64], degree: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next free slot of each variable, counted up in ``degree``."""
    slots = np.empty_like(scopes)
    for edge, i in np.ndenumerate(scopes):
        slots[edge] = degree[i]
        degree[i] += 1
    return slots


def _can_forbid(kind: FactorKind) -> bool:
    """Whether a factor forbids a state of one variable for all states of the others."""
    return any(len({x for term in kind.terms for x in term[a]}) < states for a, states in enumerate(kind.shape))
