"""Tabu search: always the best move, even if it loses, but not back to a state just left."""

from __future__ import annotations

import numpy as np

from fgnn.infer.jit import compiled
from fgnn.infer.search.anneal import move
from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, uniform


@compiled
def tabu(
    m: Arrays,
    x: Ints,
    field: Floats,
    sums: Ints,
    until: Ints,
    clock: int,
    tenure: float,
    work: int,
    rng: State,
    best: Ints,
) -> tuple[float, int]:
    """Make best moves until ``work`` states have been weighed; ties at random.

    A state that a variable leaves at step t is forbidden to it until step ``until``, t + tenure · (1/2 to 3/2), unless
    it leads to the best score of this call. Returns what ``best`` gains on ``x`` as given, and the clock.
    """
    n = len(m.cards)
    gain = top = 0.0
    best[:] = x
    spent = 0
    while spent < work:
        choice, state, value, ties = -1, 0, -np.inf, 0
        for i in range(n):
            at = m.states[i]
            now = field[at + x[i]]
            for s in range(m.cards[i]):
                d = field[at + s] - now
                if d < value or s == x[i] or (until[at + s] > clock and gain + d <= top):
                    continue
                if d > value:
                    choice, state, value, ties = i, s, d, 1
                else:
                    ties += 1
                    if uniform(rng) * ties < 1.0:
                        choice, state = i, s
        spent += m.states[n]
        clock += 1
        if choice < 0:
            continue
        until[m.states[choice] + x[choice]] = clock + int(tenure * (0.5 + uniform(rng)))
        move(m, x, field, sums, choice, state)
        spent += 4 * (m.tables[choice + 1] - m.tables[choice] + 8 * (m.counters[choice + 1] - m.counters[choice]))
        gain += value
        if gain > top + 1e-12:
            top = gain
            best[:] = x
    return top, clock
