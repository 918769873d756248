"""Scores in exact rational arithmetic: floats are fractions, which add up without rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

from fgnn import GraphicalModel, Solution

Scores = dict[tuple[int, ...], Fraction | None]

# Tolerance of `optimal`, relative to the optimum or absolute, whichever is larger.
PROOF = Fraction(1, 10**9)


def rational_scores(model: GraphicalModel) -> Scores:
    """The score of every assignment; None where it is forbidden."""
    unaries = [_fractions(model.unary(i)) for i in range(model.num_variables)]
    tables = [(t.scope, t.values.shape, _fractions(t.values.ravel())) for t in model.tables()]
    budgets = list(model.budgets())
    scores: Scores = {}
    for x in itertools.product(*(range(k) for k in model.cardinalities.tolist())):
        terms = [unary[state] for unary, state in zip(unaries, x, strict=True)]
        for scope, shape, values in tables:
            cell = 0
            for place, variable in enumerate(scope):
                cell = cell * shape[place] + x[variable]
            terms.append(values[cell])
        within = all(u.at_least <= sum(x[i] for i in u.scope) <= u.at_most for u in budgets)
        finite = [t for t in terms if t is not None]
        scores[x] = Fraction(model.constant) + sum(finite) if within and len(finite) == len(terms) else None
    return scores


def resolution(model: GraphicalModel) -> Fraction:
    """A bound on the rounding error of float64 sums: sum of the largest entries, times their number / 2^52."""
    rows = [model.unary(i) for i in range(model.num_variables)] + [t.values.ravel() for t in model.tables()]
    sizes = [max((abs(v) for v in _fractions(row) if v is not None), default=Fraction(0)) for row in rows]
    return (sum(sizes) + abs(Fraction(model.constant))) * (len(sizes) + 1) / 2**52


def faults(model: GraphicalModel, scores: Scores, solution: Solution, *, proves: bool = False) -> list[str]:
    """The errors in a solution; none if everything it claims is true.

    Args:
        model: The model.
        scores: Its exact scores.
        solution: To check.
        proves: Whether the method must prove an optimum, or infeasibility.
    """
    feasible = [v for v in scores.values() if v is not None]
    best = max(feasible, default=None)
    rounding = resolution(model)
    x = tuple(int(state) for state in solution.assignment)
    if x not in scores:
        return [f"an assignment that does not exist, {x}"]
    exact = scores[x]
    wrong = []
    if math.isnan(solution.score) or math.isnan(solution.bound):
        wrong.append(f"not a number: score {solution.score}, bound {solution.bound}")
    if solution.feasible != (exact is not None):
        wrong.append(f"feasible is {solution.feasible}")
    if exact is not None and (math.isinf(solution.score) or abs(Fraction(solution.score) - exact) > rounding):
        wrong.append(f"score {solution.score} instead of {float(exact)}")
    if best is None:
        claims_solution = solution.status in ("optimal", "feasible")
        return [*wrong, f"{solution.status}, but the model is infeasible"] if claims_solution else wrong
    slack = max(rounding, PROOF * max(Fraction(1), abs(best)))
    if solution.status == "optimal" and (exact is None or best - exact > slack):
        wrong.append(f"optimal at {solution.score}, but the optimum is {float(best)}")
    if solution.bound == -math.inf:
        wrong.append("infeasible, but there is a solution")
    elif math.isfinite(solution.bound) and Fraction(solution.bound) < best - slack:
        wrong.append(f"bound {solution.bound} below the optimum {float(best)}")
    if proves and solution.status != "optimal":
        wrong.append(f"not proved: {solution.status}")
    return wrong


def _fractions(values: Iterable[float]) -> list[Fraction | None]:
    return [None if v == -math.inf else Fraction(float(v)) for v in values]
