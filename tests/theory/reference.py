"""Max-product and sum-product as in eq. (max_product), with dictionaries of messages and plain loops."""

from __future__ import annotations

from itertools import product

import numpy as np

from fgnn import GraphicalModel

Beliefs = list[np.ndarray]
Messages = dict[tuple[int, int], np.ndarray]


def factors_of(model: GraphicalModel) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """All factors as tables, budgets expanded."""
    factors = [(t.scope, t.values) for t in model.tables()]
    for u in model.budgets():
        ones = sum(np.indices((2,) * len(u.scope)))
        factors.append((u.scope, np.where((u.at_least <= ones) & (ones <= u.at_most), 0.0, -np.inf)))
    return factors


def max_product(
    model: GraphicalModel, iterations: int, variant: str = "standard", normalise: bool = False
) -> tuple[list[Beliefs], list[Beliefs]]:
    """The beliefs b_i after every iteration: flooding, messages 0 at the start, no damping.

    The second list has, for every entry, the sum of the absolute values of all numbers that are added up to it. If an
    implementation adds in another order, the entry may differ by rounding errors of that size, and by no more.
    """
    factors = factors_of(model)
    unary = [model.unary(i) for i in range(model.num_variables)]
    message: Messages = {(c, i): np.zeros(len(unary[i])) for c, (scope, _) in enumerate(factors) for i in scope}
    size: Messages = dict(message)
    history, sizes = [], []
    for _ in range(iterations):
        fresh: Messages = {}
        grown: Messages = {}
        for c, (scope, theta) in enumerate(factors):
            but = c if variant == "standard" else None
            incoming = {i: unary[i] + incoming_sum(message, i, but) for i in scope}
            weight = {i: np.abs(unary[i]) + incoming_sum(size, i, but) for i in scope}
            for place, i in enumerate(scope):
                best, worst = np.full(len(unary[i]), -np.inf), np.zeros(len(unary[i]))
                for x in product(*map(range, theta.shape)):
                    at, others = x[place], [(j, x[a]) for a, j in enumerate(scope) if a != place]
                    value = theta[x] + sum(incoming[j][y] for j, y in others)
                    absolute = abs(theta[x]) + sum(weight[j][y] for j, y in others)
                    if np.isneginf(value):
                        continue
                    near = abs(value - best[at]) <= 1e-12 * max(absolute, worst[at])  # either may win
                    worst[at] = max(absolute, worst[at]) if near else absolute if value > best[at] else worst[at]
                    best[at] = max(best[at], value)
                if normalise and np.isfinite(best.max()):
                    best, worst = best - best.max(), worst + worst[best.argmax()]
                fresh[c, i], grown[c, i] = best, worst
        message, size = fresh, grown
        history.append([unary[i] + incoming_sum(message, i) for i in range(model.num_variables)])
        sizes.append([np.abs(unary[i]) + incoming_sum(size, i) for i in range(model.num_variables)])
    return history, sizes


def sum_product(model: GraphicalModel, iterations: int, variant: str = "standard") -> list[Beliefs]:
    """The log-beliefs after every iteration: max-product with log-sum-exp for the maximum."""
    factors = factors_of(model)
    unary = [model.unary(i) for i in range(model.num_variables)]
    message: Messages = {(c, i): np.zeros(len(unary[i])) for c, (scope, _) in enumerate(factors) for i in scope}
    history = []
    for _ in range(iterations):
        fresh: Messages = {}
        for c, (scope, theta) in enumerate(factors):
            incoming = [unary[i] + incoming_sum(message, i, c if variant == "standard" else None) for i in scope]
            for place, i in enumerate(scope):
                total = theta
                for a, b in enumerate(incoming):
                    if a != place:
                        total = total + b.reshape([-1 if axis == a else 1 for axis in range(theta.ndim)])
                fresh[c, i] = np.logaddexp.reduce(np.moveaxis(total, place, 0).reshape(len(unary[i]), -1), axis=1)
        message = fresh
        history.append([unary[i] + incoming_sum(message, i) for i in range(model.num_variables)])
    return history


def incoming_sum(message: Messages, variable: int, but: int | None = None) -> np.ndarray | float:
    """The sum of the messages to a variable, from all factors or all but one."""
    return sum((m for (c, i), m in message.items() if i == variable and c != but), start=0.0)
