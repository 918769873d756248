"""Max-product as in eq. (max_product), with dictionaries of messages and plain loops."""

from __future__ import annotations

from itertools import product

import numpy as np

from fgnn import GraphicalModel

Beliefs = list[np.ndarray]


def factors_of(model: GraphicalModel) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """All factors as tables, budgets expanded."""
    factors = [(t.scope, t.values) for t in model.tables()]
    for u in model.budgets():
        ones = sum(np.indices((2,) * len(u.scope)))
        factors.append((u.scope, np.where((u.at_least <= ones) & (ones <= u.at_most), 0.0, -np.inf)))
    return factors


def max_product(model: GraphicalModel, iterations: int, variant: str, normalise: bool) -> list[Beliefs]:
    """The beliefs b_i after every iteration: flooding, messages 0 at the start, no damping."""
    factors = factors_of(model)
    unary = [model.unary(i) for i in range(model.num_variables)]
    message = {(c, i): np.zeros(len(unary[i])) for c, (scope, _) in enumerate(factors) for i in scope}
    history = []
    for _ in range(iterations):
        fresh = {}
        for c, (scope, theta) in enumerate(factors):
            incoming = {i: unary[i] + incoming_sum(message, i, c if variant == "standard" else None) for i in scope}
            for place, i in enumerate(scope):
                out = np.full(len(unary[i]), -np.inf)
                for x in product(*map(range, theta.shape)):
                    others = sum(incoming[j][x[a]] for a, j in enumerate(scope) if a != place)
                    out[x[place]] = max(out[x[place]], theta[x] + others)
                if normalise and np.isfinite(out.max()):
                    out = out - out.max()
                fresh[c, i] = out
        message = fresh
        history.append([unary[i] + incoming_sum(message, i, None) for i in range(model.num_variables)])
    return history


def incoming_sum(message: dict[tuple[int, int], np.ndarray], variable: int, but: int | None) -> np.ndarray | float:
    """The sum of the messages to a variable, from all factors or all but one."""
    return sum((m for (c, i), m in message.items() if i == variable and c != but), start=0.0)
