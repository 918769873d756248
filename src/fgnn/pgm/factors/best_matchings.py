"""The best way to give variables distinct states, by shortest augmenting paths, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.runtime.jit import compiled


@compiled
def best_matchings(shape: Any, nu: Any, value: Any, x: Any) -> None:  # pragma: no cover (compiled)
    """Into ``value`` (P,) and ``x`` (P, n): the largest Σ ν_i(x_i) over distinct states, from ν (P, n, K).

    The Hungarian method: variables are matched one after another, each along a shortest path by reduced costs, so one
    problem takes O(n² K). Impossible states cost more than all others together; ``value`` is -inf if one is needed.
    """
    n, k = len(shape), nu.shape[2]
    for c in range(len(nu)):
        least, most = np.inf, -np.inf
        for i in range(n):
            for s in range(shape[i]):
                if nu[c, i, s] > -np.inf:
                    least, most = min(least, nu[c, i, s]), max(most, nu[c, i, s])
        if n > k or least == np.inf:
            value[c] = -np.inf
            continue
        cost = np.full((n, k), 1.0 + (n + 1) * (most - least))
        for i in range(n):
            for s in range(shape[i]):
                if nu[c, i, s] > -np.inf:
                    cost[i, s] = most - nu[c, i, s]
        owner = _matched(cost)
        total = 0.0
        for s in range(k):
            if owner[s] >= 0:
                total += nu[c, owner[s], s] if s < shape[owner[s]] else -np.inf
                x[c, owner[s]] = s
        value[c] = total


@compiled
def _matched(cost: Any) -> Any:  # pragma: no cover (compiled)
    """The row of every column in a cheapest matching of all rows, -1 for none; (n, k) with n <= k."""
    n, k = cost.shape
    price_row, price = np.zeros(n + 1), np.zeros(k + 1)
    owner, before = np.full(k + 1, -1), np.zeros(k + 1, np.int64)  # column k stands for the start of a path
    for row in range(n):
        owner[k] = row
        column = k
        distance, done = np.full(k + 1, np.inf), np.zeros(k + 1, np.bool_)
        while owner[column] >= 0:
            done[column] = True
            here, step, nearest = owner[column], np.inf, -1
            for s in range(k):
                if done[s]:
                    continue
                reduced = cost[here, s] - price_row[here] - price[s]
                if reduced < distance[s]:
                    distance[s] = reduced
                    before[s] = column
                if distance[s] < step:
                    step, nearest = distance[s], s
            for s in range(k + 1):
                if done[s]:
                    price_row[owner[s]] += step
                    price[s] -= step
                else:
                    distance[s] -= step
            column = nearest
        while column != k:
            owner[column] = owner[before[column]]
            column = before[column]
    return owner[:k]
