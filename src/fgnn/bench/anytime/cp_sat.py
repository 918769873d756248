"""CP-SAT of OR-Tools as a peer: a model as literals, clauses and a linear objective in integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import need
from fgnn.pgm import GraphicalModel

_UNITS = 2**46  # the objective's largest total in integer units
_SPARSE = 0.25  # a table with at most this share of cells off its commonest value becomes clauses
OnSolution = Callable[[float, list[int]], None]  # seconds since the search began, assignment


def solve_cp_sat(
    model: GraphicalModel, time_limit: float, threads: int, seed: int, found: OnSolution
) -> tuple[list[int] | None, float, bool]:
    """Return CP-SAT's best assignment, the seconds of its search, and whether it claims a proof.

    A binary variable is one literal, another one literal per state. A pair of binary variables becomes the product of
    its literals; a table with few cells off its commonest value one clause per such cell; any other table one literal
    per cell, linked to the states as in the local polytope. Building the model is not counted.
    """
    cp = need("ortools.sat.python.cp_model")
    builder = _Builder(cp, model)
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    start = time.perf_counter()

    class Listener(cp.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            found(time.perf_counter() - start, builder.read(self.value))

    status = solver.solve(builder.cp_model, Listener())
    took = time.perf_counter() - start
    has_answer = status in (cp.OPTIMAL, cp.FEASIBLE)
    return builder.read(solver.value) if has_answer else None, took, status == cp.OPTIMAL


class _Builder:
    """The model's literals and objective."""

    def __init__(self, cp: Any, model: GraphicalModel) -> None:
        if model.structured_groups:
            raise ValueError("Expected tables and budgets only (got a structured factor)")
        self.cp_model = cp.CpModel()
        self.cards = [int(k) for k in model.cardinalities]
        self._literals = [self._states(k) for k in self.cards]
        self._terms: list[Any] = []
        self._worth: list[float] = []
        at = 0
        for i, k in enumerate(self.cards):
            for s, value in enumerate(model.unaries[at : at + k].tolist()):
                self._score([self._literals[i][s]], value)
            at += k
        for group in model.table_groups:
            for scope, values in zip(group.scopes.tolist(), group.values, strict=True):
                self._add_table(scope, values)
        for budget in model.budget_groups:
            for scope, low, high in zip(
                budget.scopes.tolist(), budget.at_least.tolist(), budget.at_most.tolist(), strict=True
            ):
                self.cp_model.add_linear_constraint(sum(self._literals[i][1] for i in scope), low, high)
        total = float(np.abs(self._worth).sum()) or 1.0
        weights = [round(w * _UNITS / total) for w in self._worth]
        self.cp_model.maximize(cp.LinearExpr.weighted_sum(self._terms, weights))

    def read(self, value: Callable[[Any], Any]) -> list[int]:
        """The assignment of a solution."""
        return [next((s for s, x in enumerate(literals) if value(x)), 0) for literals in self._literals]

    def _states(self, k: int) -> list[Any]:
        if k == 1:
            return [self.cp_model.new_constant(1)]
        if k == 2:
            one = self.cp_model.new_bool_var("")
            return [one.negated(), one]
        literals = [self.cp_model.new_bool_var("") for _ in range(k)]
        self.cp_model.add_exactly_one(literals)
        return literals

    def _score(self, literals: Sequence[Any], value: float) -> None:
        """Add ``value`` to the objective where all literals hold; minus infinity forbids that."""
        if value == -np.inf:
            self.cp_model.add_bool_or([x.negated() for x in literals])
            return
        if value == 0:
            return
        if len(literals) == 1:
            self._gain(literals[0], value)
            return
        all_hold = self.cp_model.new_bool_var("")
        if value > 0:  # the maximum pushes it up, so it needs to imply the literals
            for x in literals:
                self.cp_model.add_implication(all_hold, x)
        else:
            self.cp_model.add_bool_or([all_hold, *(x.negated() for x in literals)])
        self._gain(all_hold, value)

    def _gain(self, literal: Any, value: float) -> None:
        self._terms.append(literal)
        self._worth.append(value)

    def _add_table(self, scope: list[int], values: NDArray[np.float64]) -> None:
        axes = [self._literals[i] for i in scope]
        finite = bool(np.isfinite(values).all())
        if values.shape == (2, 2) and finite:
            self._score([axes[0][1]], float(values[1, 0] - values[0, 0]))
            self._score([axes[1][1]], float(values[0, 1] - values[0, 0]))
            self._score([axes[0][1], axes[1][1]], float(values[1, 1] - values[1, 0] - values[0, 1] + values[0, 0]))
            return
        levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
        base = float(levels[counts.argmax()]) if len(levels) else 0.0
        if (values != base).sum() <= max(1.0, _SPARSE * values.size):
            for cell in zip(*np.nonzero(values != base), strict=True):
                self._score([axis[s] for axis, s in zip(axes, cell, strict=True)], float(values[cell]) - base)
            return
        cells = {c: self.cp_model.new_bool_var("") for c in product(*map(range, values.shape)) if values[c] > -np.inf}
        for axis, literals in enumerate(axes):
            for s, literal in enumerate(literals):
                self.cp_model.add(sum(x for c, x in cells.items() if c[axis] == s) == literal)
        for c, x in cells.items():
            self._gain(x, float(values[c]))
