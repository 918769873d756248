"""A model as a sketch to draw, and as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fgnn.drawing import Drawing, FactorMark, Sketch, States
from fgnn.drawing.fragment import figure_and_facts
from fgnn.drawing.sketch import BROKEN_COLOUR, CONSTRAINT_COLOUR, INLINE_NODES, check_nodes
from fgnn.pgm.describe import size_of
from fgnn.pgm.factors.budgets import Budget
from fgnn.pgm.factors.kind import StructuredFactor
from fgnn.pgm.factors.tables import Table

if TYPE_CHECKING:
    from fgnn.pgm.model import GraphicalModel

_States = NDArray[np.int64] | None


def num_nodes(model: GraphicalModel) -> int:
    return model.num_variables + model.num_tables + model.num_budgets + model.num_structured


def sketch_model(model: GraphicalModel, states: States) -> Sketch:
    """Tables as grey squares, constraints as yellow ones; those that the assignment violates are red."""
    check_nodes(num_nodes(model))
    states.check(model.cardinalities, model.num_variables)
    x = states.assignment
    factors = [_table_mark(table, x) for table in model.tables()]
    factors += [_budget_mark(budget, x) for budget in model.budgets()]
    factors += [_structured_mark(factor, x) for factor in model.structured()]
    details = (f"variable {i} of {k} states" for i, k in enumerate(model.cardinalities.tolist()))
    return Sketch(model.num_variables, tuple(factors), states, tuple(details))


def _table_mark(table: Table, x: _States) -> FactorMark:
    if x is not None and table.values[tuple(x[list(table.scope)])] == -np.inf:
        return FactorMark(table.scope, "violated", BROKEN_COLOUR)
    return FactorMark(table.scope)


def _budget_mark(budget: Budget, x: _States) -> FactorMark:
    label = f"{budget.at_least}–{budget.at_most}" if budget.at_least else f"≤{budget.at_most}"
    detail = f"between {budget.at_least} and {budget.at_most} of {', '.join(map(str, budget.scope))}"
    if x is None:
        return FactorMark(budget.scope, "budget", CONSTRAINT_COLOUR, label, detail)
    ones = int(x[list(budget.scope)].sum())
    label = f"{ones} of {label}" if budget.at_least else f"{ones}{label}"
    return _constraint(budget.scope, "budget", label, detail, budget.at_least <= ones <= budget.at_most)


def _structured_mark(factor: StructuredFactor, x: _States) -> FactorMark:
    name = factor.kind.name
    detail = f"{name} over {', '.join(map(str, factor.scope))}"
    kept = x is None or factor.score(x[list(factor.scope)]) > -np.inf
    return _constraint(factor.scope, name, name if len(name) <= 12 else f"{name[:11]}…", detail, bool(kept))


def _constraint(scope: tuple[int, ...], kind: str, label: str, detail: str, kept: bool) -> FactorMark:
    kind, colour = (kind, CONSTRAINT_COLOUR) if kept else ("violated", BROKEN_COLOUR)
    return FactorMark(scope, kind, colour, label, detail)


def model_html(model: GraphicalModel) -> str:
    """The size of a model, and a drawing of a small one."""
    size = size_of(model)
    facts = [("variables", f"{model.num_variables:,}")]
    if model.num_variables:
        low, high = size.fewest_states, size.most_states
        facts.append(("states", str(low) if low == high else f"{low} to {high}"))
    if model.num_tables:
        facts.append(("tables", f"{model.num_tables:,} over at most {size.arity} variables"))
    if model.num_budgets:
        facts.append(("budgets", f"{model.num_budgets:,} over at most {size.budget} variables"))
    facts += [(name, f"{count:,}") for name, count in size.kinds.items()]
    small = 0 < num_nodes(model) <= INLINE_NODES
    picture = Drawing(sketch_model(model, States()))._repr_html_() if small else ""
    return figure_and_facts("GraphicalModel", facts, picture)
