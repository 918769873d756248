"""Starts that respect constraints: variables are set one by one, and what follows from each is drawn at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, below, uniform
from fgnn.runtime.jit import compiled

Flags = NDArray[np.bool_]


class _Domains(NamedTuple):
    """What is still possible."""

    alive: Flags  # shape: (sum of cards,), states that no constraint excludes
    left: Ints  # shape: (N,), how many of them each variable has; 0 once it is set
    stack: Ints  # shape: (N,), variables with one state left
    top: Ints  # shape: (1,), how many
    first: Ints  # shape: (C,), the least sum of each counter that is allowed
    last: Ints  # shape: (C,), the largest


@compiled
def propagate(m: Arrays, soft: Floats, rng: State) -> Ints:
    """A random assignment of constraints ``m``, whose entries are negative where forbidden and otherwise 0.

    Variables are set in random order to the best state by ``soft``, what each state scores alone, that is left. A table
    with one variable to set excludes states of that one, a counter states with which its sum cannot be right any more;
    a variable with one state left is set next. Without any state left it takes the best one, which violates something.
    """
    n = len(m.cards)
    x = np.full(n, -1, np.int64)
    first, last = _allowed_ranges(m)
    d = _Domains(m.unary >= 0.0, np.zeros(n, np.int64), np.empty(n, np.int64), np.zeros(1, np.int64), first, last)
    for i in range(n):
        for s in range(m.cards[i]):
            d.left[i] += d.alive[m.states[i] + s]
    order = np.arange(n)
    for t in range(n):
        swap = t + below(rng, n - t)
        order[t], order[swap] = order[swap], order[t]
    for f in range(len(m.count_first) - 1):
        _exclude_by_sum(m, x, f, d)
    for t in range(n):
        _set(m, soft, x, order[t], d, rng)
        while d.top[0] > 0:
            d.top[0] -= 1
            _set(m, soft, x, d.stack[d.top[0]], d, rng)
    return x


@compiled
def _set(m: Arrays, soft: Floats, x: Ints, i: int, d: _Domains, rng: State) -> None:
    """Set a variable to its best state that is left, ties at random, and exclude what cannot be any more."""
    if x[i] >= 0:
        return
    at, best, ties = m.states[i], -1, 0
    for s in range(m.cards[i]):
        if d.left[i] > 0 and not d.alive[at + s]:
            continue
        ties = ties + 1 if best >= 0 and soft[at + s] == soft[at + best] else 1
        if best < 0 or soft[at + s] > soft[at + best] or (ties > 1 and uniform(rng) * ties < 1.0):
            best = s
    x[i] = best
    d.left[i] = 0
    for e in range(m.tables[i], m.tables[i + 1]):
        _exclude_by_table(m, x, m.table[e], d)
    for e in range(m.counters[i], m.counters[i + 1]):
        _exclude_by_sum(m, x, m.counter[e], d)


@compiled
def _exclude_by_table(m: Arrays, x: Ints, f: int, d: _Domains) -> None:
    """Exclude states of the only variable of a table that is not set."""
    at, last = m.cell[f], -1
    for a in range(m.first[f], m.first[f + 1]):
        j = m.members[a]
        if x[j] >= 0:
            at += x[j] * m.strides[a]
        elif last < 0:
            last = a
        else:
            return
    if last >= 0:
        j = m.members[last]
        for s in range(m.cards[j]):
            if m.values[at + s * m.strides[last]] < 0.0:
                _exclude(m, j, s, d)


@compiled
def _allowed_ranges(m: Arrays) -> tuple[Ints, Ints]:
    """The least and the largest allowed sum of every counter."""
    size = np.diff(m.total)
    first, last = np.zeros(len(size), np.int64), size - 1
    for c in range(len(size)):
        while first[c] < size[c] and m.sums[m.total[c] + first[c]] < 0.0:
            first[c] += 1
        while last[c] >= 0 and m.sums[m.total[c] + last[c]] < 0.0:
            last[c] -= 1
    return first, last


@compiled
def _exclude_by_sum(m: Arrays, x: Ints, c: int, d: _Domains) -> None:
    """Exclude states with which the sum of a counter cannot be right, whatever the others do."""
    begin, end = m.count_first[c], m.count_first[c + 1]
    low = high = 0
    for a in range(begin, end):
        least, most = _range(m, x, a, d)
        low, high = low + least, high + most
    for a in range(begin, end):
        j = m.counted[a]
        if x[j] >= 0:
            continue
        least, most = _range(m, x, a, d)
        alone = low - least == high - most  # the sum of the others is known
        for s in range(m.cards[j]):
            w = m.weights[m.weight[a] + s]
            outside = low - least + w > d.last[c] or high - most + w < d.first[c]
            if outside or (alone and m.sums[m.total[c] + low - least + w] < 0.0):
                _exclude(m, j, s, d)


@compiled
def _range(m: Arrays, x: Ints, a: int, d: _Domains) -> tuple[int, int]:
    """The least and the largest weight that a member of a counter can still have."""
    j, w = m.counted[a], m.weight[a]
    if x[j] >= 0:
        return m.weights[w + x[j]], m.weights[w + x[j]]
    least, most = 1 << 40, -(1 << 40)
    for s in range(m.cards[j]):
        if d.left[j] == 0 or d.alive[m.states[j] + s]:
            least, most = min(least, m.weights[w + s]), max(most, m.weights[w + s])
    return least, most


@compiled
def _exclude(m: Arrays, j: int, s: int, d: _Domains) -> None:
    """Exclude a state; a variable with one left is set next."""
    if d.alive[m.states[j] + s] and d.left[j] > 0:
        d.alive[m.states[j] + s] = False
        d.left[j] -= 1
        if d.left[j] == 1:
            d.stack[d.top[0]] = j
            d.top[0] += 1
