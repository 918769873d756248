"""Scores in exact rational arithmetic: floats are fractions, and fractions add up without rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

from fgnn import GraphicalModel, Solution

Scores = dict[tuple[int, ...], Fraction | None]

# `optimal` is promised to this, relative to the optimum and at least absolutely.
PROOF = Fraction(1, 10**9)


def rational_scores(model: GraphicalModel) -> Scores:
    """The score of every assignment; None where it is forbidden."""
    unaries = [_fractions(model.unary(i)) for i in range(model.num_variables)]
    tables = [(t.scope, t.values.shape, _fractions(t.values.ravel())) for t in model.tables()]
    budgets = list(model.budgets())
    found: Scores = {}
    for x in itertools.product(*(range(k) for k in model.cardinalities.tolist())):
        parts = [own[state] for own, state in zip(unaries, x, strict=True)]
        for scope, shape, values in tables:
            cell = 0
            for place, variable in enumerate(scope):
                cell = cell * shape[place] + x[variable]
            parts.append(values[cell])
        kept = all(u.at_least <= sum(x[i] for i in u.scope) <= u.at_most for u in budgets)
        allowed = [p for p in parts if p is not None]
        found[x] = Fraction(model.constant) + sum(allowed) if kept and len(allowed) == len(parts) else None
    return found


def resolution(model: GraphicalModel) -> Fraction:
    """What float64 may lose in any order of summation: the factors' largest entries, by their number, by 2^-52."""
    rows = [model.unary(i) for i in range(model.num_variables)] + [t.values.ravel() for t in model.tables()]
    sizes = [max((abs(v) for v in _fractions(row) if v is not None), default=Fraction(0)) for row in rows]
    return (sum(sizes) + abs(Fraction(model.constant))) * (len(sizes) + 1) / 2**52


def faults(model: GraphicalModel, scores: Scores, found: Solution, *, proves: bool = False) -> list[str]:
    """What is wrong about a solution; nothing, if all it says is true.

    Args:
        proves: Whether the method must settle the model: an optimum, or that there is none.
    """
    feasible = [v for v in scores.values() if v is not None]
    best = max(feasible, default=None)
    lost = resolution(model)
    x = tuple(int(state) for state in found.assignment)
    if x not in scores:
        return [f"an assignment that does not exist, {x}"]
    own = scores[x]
    wrong = []
    if math.isnan(found.score) or math.isnan(found.bound):
        wrong.append(f"not a number: score {found.score}, bound {found.bound}")
    if found.feasible != (own is not None):
        wrong.append(f"feasible is {found.feasible}")
    if own is not None and (math.isinf(found.score) or abs(Fraction(found.score) - own) > lost):
        wrong.append(f"a score of {found.score}, which is {float(own)}")
    if best is None:
        return wrong + ([f"{found.status}, but nothing is allowed"] if found.status in ("optimal", "feasible") else [])
    slack = max(lost, PROOF * max(Fraction(1), abs(best)))
    if found.status == "optimal" and (own is None or best - own > slack):
        wrong.append(f"optimal at {found.score}, where {float(best)} is possible")
    if found.bound == -math.inf:
        wrong.append("said to have no solution")
    elif math.isfinite(found.bound) and Fraction(found.bound) < best - slack:
        wrong.append(f"a bound of {found.bound} below the optimum {float(best)}")
    if proves and found.status != "optimal":
        wrong.append(f"not settled: {found.status}")
    return wrong


def _fractions(values: Iterable[float]) -> list[Fraction | None]:
    return [None if v == -math.inf else Fraction(float(v)) for v in values]
