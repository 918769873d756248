"""Solve a subgraph exactly given the other variables, by elimination."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.search.anneal import select_sum
from fgnn.infer.search.arrays import LARGE, Arrays, Floats, Ints
from fgnn.infer.search.ball import random_ball
from fgnn.infer.search.chance import State, uniform
from fgnn.infer.search.subgraph import Workspace, plan_subgraph
from fgnn.runtime.jit import compiled

_DIMS = 64  # no step has more axes: a joint state of 2^64 cells is out of reach
_OVERHEAD = 256  # joint states that take as long as planning one variable


@compiled
def solve_subgraph(
    m: Arrays,
    order: Ints,
    first: Ints,
    scope: Ints,
    x: Ints,
    heat: float,
    rng: State,
    ws: Workspace,
) -> None:
    """Set the variables in ``order`` to a best joint assignment given the rest, ties at random.

    ``heat`` adds Gumbel noise of that scale to every state: a random assignment near the best.
    """
    steps = len(order)
    place, dim, joint, messages, argmax = ws.place, ws.dim, ws.joint, ws.messages, ws.argmax
    for t in range(steps):
        place[order[t]] = t
    _sum_large(m, x, order, ws.large)
    start = np.zeros(steps + 1, np.int64)  # of the message of each step
    child, sibling = np.full(steps, -1, np.int64), np.full(steps, -1, np.int64)
    sizes, strides = np.empty(_DIMS, np.int64), np.zeros(_DIMS, np.int64)
    for t in range(steps):
        i = order[t]
        k = m.cards[i]
        # axes of this step: i itself, then its neighbours, the first of them fastest
        sizes[0] = k
        dim[i] = 0
        dims, cells, parent = 1, 1, steps
        for e in range(first[t], first[t + 1]):
            j = scope[e]
            dim[j] = dims
            sizes[dims] = m.cards[j]
            cells *= m.cards[j]
            dims += 1
            parent = min(parent, place[j])
        base = start[t]
        start[t + 1] = base + cells
        for s in range(k):
            joint[s] = m.unary[m.states[i] + s]
            if heat > 0.0:
                joint[s] -= heat * math.log(-math.log(uniform(rng) + 1e-300))
        _add_alone(m, x, i, place, ws.large, joint)
        for cell in range(1, cells):
            for s in range(k):
                joint[cell * k + s] = joint[s]
        _add_tables(m, x, i, place, dim, dims, sizes, strides, joint)
        _add_counters(m, x, i, place, ws.large, dim, dims, sizes, strides, joint)
        c = child[t]
        while c >= 0:
            step = 1
            for e in range(first[c], first[c + 1]):
                strides[dim[scope[e]]] = step
                step *= m.cards[scope[e]]
            _add(joint, messages, start[c], dims, sizes, strides)
            c = sibling[c]
        _maximise(joint, cells, k, messages[base : base + cells], argmax[base : base + cells], rng)
        if parent < steps:
            sibling[t] = child[parent]
            child[parent] = t
    for t in range(steps - 1, -1, -1):
        at, step = start[t], 1
        for e in range(first[t], first[t + 1]):
            at += x[scope[e]] * step
            step *= m.cards[scope[e]]
        x[order[t]] = argmax[at]
    for t in range(steps):
        place[order[t]] = -1
        for e in range(m.large[order[t]], m.large[order[t] + 1]):
            ws.large[0, m.large_counter[e]] = 0


@compiled
def improve(
    m: Arrays, x: Ints, ws: Workspace, size: float, cells: int, work: int, heat: float, rng: State
) -> tuple[float, int, int]:
    """Solve random subgraphs until ``work`` joint states have been visited.

    A ball of ``size`` variables is grown around a random one. The size adapts, so that elimination within ``cells``
    joint states a step solves about half of them whole. Returns the adapted size, and how many variables were
    freed in all and at most in one subgraph.
    """
    n = len(m.cards)
    freed = most = visited = 0
    while visited < work:
        ball = random_ball(m, ws, int(size), rng)
        order, first, scope, total = plan_subgraph(m, ws, ball, cells, len(ws.messages), rng)
        solve_subgraph(m, order, first, scope, x, heat, rng, ws)
        freed += len(order)
        most = max(most, len(order))
        size = min(size * 1.05 + 0.1, n) if len(order) == len(ball) else max(size * 0.95, 2.0)
        visited += total + _OVERHEAD * len(ball) + 1
        for i in ball:
            for e in range(m.large[i], m.large[i + 1]):
                c = m.large_counter[e]
                visited += 4 * (m.count_first[c + 1] - m.count_first[c]) // len(ball)
    return size, freed, most


@compiled
def _maximise(joint: Floats, cells: int, k: int, message: Floats, argmax: NDArray[np.int32], rng: State) -> None:
    """The maximum over the first axis, ties at random."""
    for cell in range(cells):
        at = cell * k
        top, best, ties = joint[at], 0, 1
        for s in range(1, k):
            value = joint[at + s]
            if value > top:
                top, best, ties = value, s, 1
            elif value == top:
                ties += 1
                if uniform(rng) * ties < 1.0:
                    best = s
        message[cell] = top
        argmax[cell] = best


@compiled
def _fixed_cell(m: Arrays, x: Ints, f: int, i: int, place: Ints) -> tuple[int, int, bool]:
    """Where a table starts given its fixed variables, how many are free, and whether ``i`` is the first of them."""
    at, free, is_first = m.cell[f], 0, True
    for a in range(m.first[f], m.first[f + 1]):
        j = m.members[a]
        if place[j] < 0:
            at += x[j] * m.strides[a]
        else:
            free += 1
            is_first = is_first and place[j] >= place[i]
    return at, free, is_first


@compiled
def _sum_large(m: Arrays, x: Ints, order: Ints, large: Ints) -> None:
    """Sum up the fixed variables of large counters once, rather than for each of their free ones."""
    for t in range(len(order)):
        j = order[t]
        if m.large[j] == m.large[j + 1]:
            continue
        for e in range(m.counters[j], m.counters[j + 1]):
            c = m.counter[e]
            if m.count_first[c + 1] - m.count_first[c] <= LARGE:
                continue
            if large[0, c] == 0:
                large[1, c], large[2, c] = t, select_sum(m, x, c)
            large[0, c] += 1
            large[2, c] -= m.weights[m.own_weight[e] + x[j]]


@compiled
def _fixed_sum(m: Arrays, x: Ints, c: int, i: int, place: Ints, large: Ints) -> tuple[int, int, bool]:
    """As `_fixed_cell`, for a counter."""
    if large[0, c] > 0:
        return large[2, c], large[0, c], large[1, c] == place[i]
    at, free, is_first = m.total[c], 0, True
    for a in range(m.count_first[c], m.count_first[c + 1]):
        j = m.counted[a]
        if place[j] < 0:
            at += m.weights[m.weight[a] + x[j]]
        else:
            free += 1
            is_first = is_first and place[j] >= place[i]
    return at, free, is_first


@compiled
def _add_alone(m: Arrays, x: Ints, i: int, place: Ints, large: Ints, joint: Floats) -> None:
    """Add the factors in which only variable ``i`` is free."""
    k = m.cards[i]
    for e in range(m.tables[i], m.tables[i + 1]):
        at, free, _ = _fixed_cell(m, x, m.table[e], i, place)
        if free == 1:
            for s in range(k):
                joint[s] += m.values[at + s * m.stride[e]]
    for e in range(m.counters[i], m.counters[i + 1]):
        at, free, _ = _fixed_sum(m, x, m.counter[e], i, place, large)
        if free == 1:
            for s in range(k):
                joint[s] += m.sums[at + m.weights[m.own_weight[e] + s]]


@compiled
def _add_tables(
    m: Arrays, x: Ints, i: int, place: Ints, dim: Ints, dims: int, sizes: Ints, strides: Ints, joint: Floats
) -> None:
    """Add the tables of which ``i`` is the first of several free variables to be eliminated."""
    for e in range(m.tables[i], m.tables[i + 1]):
        f = m.table[e]
        at, free, is_first = _fixed_cell(m, x, f, i, place)
        if free > 1 and is_first:
            for a in range(m.first[f], m.first[f + 1]):
                if place[m.members[a]] >= 0:
                    strides[dim[m.members[a]]] = m.strides[a]
            _add(joint, m.values, at, dims, sizes, strides)


@compiled
def _add_counters(
    m: Arrays,
    x: Ints,
    i: int,
    place: Ints,
    large: Ints,
    dim: Ints,
    dims: int,
    sizes: Ints,
    strides: Ints,
    joint: Floats,
) -> None:
    """Add the counters of which ``i`` is the first of several free variables to be eliminated, as small tables."""
    for e in range(m.counters[i], m.counters[i + 1]):
        c = m.counter[e]
        at, free, is_first = _fixed_sum(m, x, c, i, place, large)
        if free < 2 or not is_first:
            continue
        size = 1
        for a in range(m.count_first[c], m.count_first[c + 1]):
            if place[m.counted[a]] >= 0:
                size *= m.cards[m.counted[a]]
        totals = np.empty(size, np.int64)
        totals[0] = at
        block = 1
        for a in range(m.count_first[c], m.count_first[c + 1]):
            j = m.counted[a]
            if place[j] < 0:
                continue
            strides[dim[j]] = block
            w = m.weight[a]
            for s in range(m.cards[j] - 1, -1, -1):
                for cell in range(block):
                    totals[s * block + cell] = totals[cell] + m.weights[w + s]
            block *= m.cards[j]
        table = np.empty(size)
        for cell in range(size):
            table[cell] = m.sums[totals[cell]]
        _add(joint, table, 0, dims, sizes, strides)


@compiled
def _add(joint: Floats, source: Floats, base: int, dims: int, sizes: Ints, strides: Ints) -> None:
    """Add a table with ``strides`` along the axes of ``joint``, 0 where it has no such axis; clear the strides."""
    k, inner = sizes[0], strides[0]
    second = sizes[1] if dims > 1 else 1
    step = strides[1] if dims > 1 else 0
    digits = np.zeros(_DIMS, np.int64)
    at, cell = base, 0
    while True:
        for a in range(second):
            for s in range(k):
                joint[cell + s] += source[at + a * step + s * inner]
            cell += k
        d = 2
        while d < dims:
            digits[d] += 1
            at += strides[d]
            if digits[d] < sizes[d]:
                break
            at -= strides[d] * sizes[d]
            digits[d] = 0
            d += 1
        if d >= dims:
            break
    for d in range(dims):
        strides[d] = 0
