"""Combine two assignments: the variables in which they differ form components that are chosen one by one."""

from __future__ import annotations

import numpy as np

from fgnn.infer.search.arrays import Arrays, Ints
from fgnn.infer.search.chance import State, uniform
from fgnn.runtime.jit import compiled


@compiled
def cross(m: Arrays, x: Ints, other: Ints, rng: State) -> float:
    """Take over from ``other`` every component of differing variables that raises the score; return the gain.

    Two differing variables are in one component if they share a factor. Components share none, so their gains add up.
    Of components without gain or loss every second one is taken.
    """
    n = len(m.cards)
    root = np.empty(n, np.int64)
    for i in range(n):
        root[i] = i if x[i] != other[i] else -1
    for f in range(len(m.first) - 1):
        _unite(root, m.members, m.first[f], m.first[f + 1])
    for c in range(len(m.count_first) - 1):
        _unite(root, m.counted, m.count_first[c], m.count_first[c + 1])
    gain = np.zeros(n)
    for i in range(n):
        if root[i] >= 0:
            at = m.states[i]
            gain[_find(root, i)] += m.unary[at + other[i]] - m.unary[at + x[i]]
    for f in range(len(m.first) - 1):
        now = then = m.cell[f]
        who = -1
        for a in range(m.first[f], m.first[f + 1]):
            i = m.members[a]
            now += x[i] * m.strides[a]
            then += other[i] * m.strides[a]
            if root[i] >= 0:
                who = i
        if who >= 0:
            gain[_find(root, who)] += m.values[then] - m.values[now]
    for c in range(len(m.count_first) - 1):
        now = then = m.total[c]
        who = -1
        for a in range(m.count_first[c], m.count_first[c + 1]):
            i, w = m.counted[a], m.weight[a]
            now += m.weights[w + x[i]]
            then += m.weights[w + other[i]]
            if root[i] >= 0:
                who = i
        if who >= 0:
            gain[_find(root, who)] += m.sums[then] - m.sums[now]
    total = 0.0
    for i in range(n):
        if root[i] == i:
            if gain[i] == 0.0:
                gain[i] = 1e-300 if uniform(rng) < 0.5 else 0.0
            total += max(0.0, gain[i])
    for i in range(n):
        if root[i] >= 0 and gain[_find(root, i)] > 0.0:
            x[i] = other[i]
    return total


@compiled
def _unite(root: Ints, members: Ints, begin: int, end: int) -> None:
    """Join the components of the differing members of a factor."""
    first = -1
    for a in range(begin, end):
        i = members[a]
        if root[i] < 0:
            continue
        if first < 0:
            first = _find(root, i)
        else:
            other = _find(root, i)
            if other != first:
                root[other] = first


@compiled
def _find(root: Ints, i: int) -> int:
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i
