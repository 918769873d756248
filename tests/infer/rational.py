"""Scores in exact rational arithmetic: floats are fractions, which add up without rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

from fgnn import GraphicalModel, Solution

Scores = dict[tuple[int, ...], Fraction | None]


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


def proof_tolerance(model: GraphicalModel, score: Fraction) -> Fraction:
    """The largest gap of an optimal assignment: 1e-13 per factor of what it gives up against every factor's maximum."""
    rows = [model.unary(i) for i in range(model.num_variables)] + [t.values.ravel() for t in model.tables()]
    peaks = [max(v for v in _fractions(row) if v is not None) for row in rows]
    loss = sum(peaks) + Fraction(model.constant) - score
    return min(Fraction(1, 10**9), Fraction(len(rows) + 1, 10**13)) * loss


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
    if exact is not None and math.isfinite(solution.gap) and best - exact > Fraction(solution.gap):
        wrong.append(f"a gap of {solution.gap}, but {float(best - exact)} more is reachable")
    if solution.status == "optimal" and (exact is None or Fraction(solution.gap) > proof_tolerance(model, exact)):
        wrong.append(f"optimal at {solution.score} with a gap of {solution.gap}")
    if solution.bound == -math.inf:
        wrong.append("infeasible, but there is a solution")
    elif math.isfinite(solution.bound) and Fraction(solution.bound) < best - rounding:
        wrong.append(f"bound {solution.bound} below the optimum {float(best)}")
    if proves and solution.status != "optimal":
        wrong.append(f"not proved: {solution.status}")
    return wrong


def _fractions(values: Iterable[float]) -> list[Fraction | None]:
    return [None if v == -math.inf else Fraction(float(v)) for v in values]
