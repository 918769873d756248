"""The size of a model, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fgnn.pgm.arrays import counted

if TYPE_CHECKING:
    from fgnn.pgm.model import GraphicalModel


class Size(NamedTuple):
    """How large the parts of a model are; 0 for what it does not have."""

    fewest_states: int
    most_states: int
    arity: int  # of the widest table
    budget: int  # variables of the widest budget
    kinds: Counter[str]  # structured factors by the name of their kind


def size_of(model: GraphicalModel) -> Size:
    """The largest and smallest parts of a model, and its structured factors by kind."""
    arities, budgets = (
        [int(group.scopes.shape[1]) for group in groups] for groups in (model.table_groups, model.budget_groups)
    )
    kinds: Counter[str] = Counter()
    for group in model.structured_groups:
        kinds[group.kind.name] += len(group.scopes)
    cards = model.cardinalities.tolist()
    return Size(min(cards, default=0), max(cards, default=0), max(arities, default=0), max(budgets, default=0), kinds)


def describe(model: GraphicalModel) -> str:
    """One line, such as "3 variables of 2 states, 2 tables of arity <= 2, 1 parity"."""
    size = size_of(model)
    states = "-".join(map(str, sorted({size.fewest_states, size.most_states}))) if model.num_variables else "no"
    parts = [f"{counted(model.num_variables, 'variable')} of {states} state{'' if states == '1' else 's'}"]
    if model.num_tables:
        parts.append(f"{counted(model.num_tables, 'table')} of arity <= {size.arity}")
    if model.num_budgets:
        parts.append(f"{counted(model.num_budgets, 'budget')} over <= {counted(size.budget, 'variable')}")
    return ", ".join(parts + [f"{count} {name}" for name, count in size.kinds.items()])
