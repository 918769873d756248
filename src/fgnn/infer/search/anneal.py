"""Moves of one variable at a time: its score in every state is kept up to date as others move."""

from __future__ import annotations

import math

import numpy as np

from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, below, uniform
from fgnn.runtime.jit import compiled

_FAR = 16.0  # exp(-16) is practically never


@compiled
def best_alone(m: Arrays) -> Ints:
    """The best state of every variable by its unary alone."""
    x = np.zeros(len(m.cards), np.int64)
    for i in range(len(x)):
        for s in range(1, m.cards[i]):
            if m.unary[m.states[i] + s] > m.unary[m.states[i] + x[i]]:
                x[i] = s
    return x


@compiled
def _cell(m: Arrays, x: Ints, f: int) -> int:
    """The entry of a table that ``x`` selects."""
    at = m.cell[f]
    for a in range(m.first[f], m.first[f + 1]):
        at += x[m.members[a]] * m.strides[a]
    return int(at)


@compiled
def select_sum(m: Arrays, x: Ints, c: int) -> int:
    """The entry of a counter that ``x`` selects."""
    total = m.total[c]
    for a in range(m.count_first[c], m.count_first[c + 1]):
        total += m.weights[m.weight[a] + x[m.counted[a]]]
    return int(total)


@compiled
def fill_field(m: Arrays, x: Ints, field: Floats, sums: Ints) -> float:
    """Set ``field``, what each state of each variable scores given the others, and the counters' sums.

    Returns the score of ``x``.
    """
    field[:] = m.unary
    score = 0.0
    for i in range(len(m.cards)):
        score += m.unary[m.states[i] + x[i]]
    for f in range(len(m.first) - 1):
        at = _cell(m, x, f)
        score += m.values[at]
        for a in range(m.first[f], m.first[f + 1]):
            i, stride = m.members[a], m.strides[a]
            base = at - x[i] * stride
            for s in range(m.cards[i]):
                field[m.states[i] + s] += m.values[base + s * stride]
    for c in range(len(m.count_first) - 1):
        total = select_sum(m, x, c)
        sums[c] = total
        score += m.sums[total]
        for a in range(m.count_first[c], m.count_first[c + 1]):
            i, w = m.counted[a], m.weight[a]
            rest = total - m.weights[w + x[i]]
            for s in range(m.cards[i]):
                field[m.states[i] + s] += m.sums[rest + m.weights[w + s]]
    return score


@compiled
def move(m: Arrays, x: Ints, field: Floats, sums: Ints, i: int, state: int) -> None:
    """Set variable ``i`` to ``state`` and update the field of its neighbours."""
    old = x[i]
    for e in range(m.tables[i], m.tables[i + 1]):
        f = m.table[e]
        step = (state - old) * m.stride[e]
        at = _cell(m, x, f)
        for a in range(m.first[f], m.first[f + 1]):
            j = m.members[a]
            if j == i:
                continue
            stride = m.strides[a]
            before = at - x[j] * stride
            for s in range(m.cards[j]):
                cell = before + s * stride
                field[m.states[j] + s] += m.values[cell + step] - m.values[cell]
    for e in range(m.counters[i], m.counters[i + 1]):
        c, w = m.counter[e], m.own_weight[e]
        before = sums[c]
        after = before + m.weights[w + state] - m.weights[w + old]
        if after == before:
            continue
        sums[c] = after
        for a in range(m.count_first[c], m.count_first[c + 1]):
            j = m.counted[a]
            if j == i:
                continue
            w = m.weight[a]
            own = m.weights[w + x[j]]
            for s in range(m.cards[j]):
                shift = m.weights[w + s] - own
                field[m.states[j] + s] += m.sums[after + shift] - m.sums[before + shift]
    x[i] = state


@compiled
def anneal(
    m: Arrays,
    x: Ints,
    field: Floats,
    sums: Ints,
    hot: float,
    ratio: float,
    sweeps: int,
    work: int,
    rng: State,
    best: Ints,
) -> tuple[float, int]:
    """Sweep over all variables at temperatures hot, hot · ratio, hot · ratio², ...

    Ends after ``sweeps`` sweeps, or after the first at which ``work`` states have been weighed. Returns what the best
    assignment seen after a sweep, left in ``best``, gains on ``x`` as given, and the number of sweeps.
    """
    n = len(m.cards)
    gain = top = 0.0
    best[:] = x
    temperature = hot
    done = spent = 0
    while done < sweeps and spent < work:
        for i in range(n):
            k, at = m.cards[i], m.states[i]
            now = field[at + x[i]]
            s = x[i]
            if k == 2:
                d = field[at + 1 - s] - now
                if d > 0 or (d > -_FAR * temperature and uniform(rng) < math.exp(d / temperature)):
                    s = 1 - s
            elif k > 2:
                s = _draw(field, at, k, s, temperature, rng)
            if s != x[i]:
                gain += field[at + s] - now
                move(m, x, field, sums, i, s)
                spent += 4 * (m.tables[i + 1] - m.tables[i])
                for e in range(m.counters[i], m.counters[i + 1]):
                    spent += 4 * (m.count_first[m.counter[e] + 1] - m.count_first[m.counter[e]])
        if gain > top + 1e-12:
            top = gain
            best[:] = x
        temperature *= ratio
        spent += m.states[n]
        done += 1
    return top, done


@compiled
def _draw(field: Floats, at: int, k: int, x: int, temperature: float, rng: State) -> int:
    """A state with probability in proportion to exp(score / temperature)."""
    peak, best, second = field[at], 0, -np.inf
    for s in range(1, k):
        value = field[at + s]
        if value > peak:
            second, peak, best = peak, value, s
        elif value > second:
            second = value
    if peak - second >= _FAR * temperature:  # nothing else has a chance; at temperature 0 ties stay
        return x if field[at + x] == peak else best
    lowest = peak - _FAR * temperature
    total = 0.0
    for s in range(k):
        if field[at + s] > lowest:
            total += math.exp((field[at + s] - peak) / temperature)
    left = uniform(rng) * total
    last = best
    for s in range(k):
        if field[at + s] > lowest:
            left -= math.exp((field[at + s] - peak) / temperature)
            last = s
            if left < 0.0:
                break
    return last


@compiled
def descend(m: Arrays, x: Ints, field: Floats, sums: Ints, least: float, most: int, rng: State) -> float:
    """Set variables to their best state until none gains more than ``least``, in at most ``most`` sweeps."""
    n = len(m.cards)
    gain = 0.0
    start = below(rng, n) if n else 0
    for _ in range(most):
        changed = False
        for t in range(n):
            i = t + start if t + start < n else t + start - n
            at = m.states[i]
            best = x[i]
            for s in range(m.cards[i]):
                if field[at + s] > field[at + best] + least:
                    best = s
            if best != x[i]:
                gain += field[at + best] - field[at + x[i]]
                move(m, x, field, sums, i, best)
                changed = True
        if not changed:
            break
    return gain


@compiled
def evaluate(m: Arrays, x: Ints, far_values: Floats, far_sums: Floats) -> tuple[float, float]:
    """The penalised score of ``x`` and how far it is from feasible."""
    score = far = 0.0
    for i in range(len(m.cards)):
        score += m.unary[m.states[i] + x[i]]
    for f in range(len(m.first) - 1):
        at = _cell(m, x, f)
        score += m.values[at]
        far += far_values[at]
    for c in range(len(m.count_first) - 1):
        total = select_sum(m, x, c)
        score += m.sums[total]
        far += far_sums[total]
    return score, far


@compiled
def energy_gaps(m: Arrays, x: Ints, field: Floats) -> Floats:
    """What each variable loses by leaving its state for the best other one; NaN for variables of one state."""
    gaps = np.empty(len(m.cards))
    for i in range(len(m.cards)):
        gaps[i] = np.nan
        for s in range(m.cards[i]):
            if s != x[i]:
                d = field[m.states[i] + x[i]] - field[m.states[i] + s]
                if not gaps[i] <= d:
                    gaps[i] = d
    return gaps
