"""Tabu search among the variables in conflict: for models in which most factors can be satisfied at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fgnn.infer.search.anneal import move
from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, below, uniform
from fgnn.runtime.jit import compiled

_LEAST = 1e-9  # a smaller loss is none
_TENURE, _PER_CONFLICT = 10, 0.6  # steps that a state is forbidden: a random number below the first, and a share
_OVERHEAD = 32  # entries of a step besides those it reads


class Tabu(NamedTuple):
    """What a run of tabu search remembers."""

    until: Ints  # shape: (sum of cards,), the step up to which a variable may not return to a state
    conflicts: Ints  # shape: (N,), the variables in conflict come first
    place: Ints  # shape: (N,), where each variable is among them, or -1
    counts: Ints  # shape: (2,), variables in conflict, and steps made


def tabu_memory(m: Arrays) -> Tabu:
    """An empty memory."""
    n = len(m.cards)
    return Tabu(np.zeros(len(m.unary), np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(2, np.int64))


@compiled
def share_in_conflict(m: Arrays, x: Ints, field: Floats) -> float:
    """The share of variables whose own factors score less than they could at most."""
    count = 0
    for i in range(len(x)):
        count += field[m.states[i] + x[i]] < -_LEAST
    return count / max(1, len(x))


@compiled
def tabu_search(
    m: Arrays, x: Ints, field: Floats, sums: Ints, memory: Tabu, lead: float, work: int, rng: State, best: Ints
) -> tuple[float, int]:
    """Make the best allowed move of a variable in conflict, whether it gains or loses, again and again.

    A variable is in conflict if its own factors score less than they could at most. A state that a variable has left is
    forbidden for a while, unless it gives the best score so far. Ends after ``work`` entries have been read, or without
    conflicts. ``lead`` is how much better than ``x`` the best assignment so far is. Returns the lead of the best one
    now, left in ``best`` if it is new, and the steps since.
    """
    place, counts = memory.place, memory.counts
    counts[0] = 0
    for i in range(len(m.cards)):
        place[i] = -1
        _note(m, x, field, memory, i)
    gain, top = 0.0, lead
    spent = since = 0
    while spent < work and counts[0] > 0:
        i, s, d = _choose(m, x, field, memory, top - gain, rng)
        spent += counts[0] * 2 + _OVERHEAD
        old = x[i]
        memory.until[m.states[i] + old] = counts[1] + below(rng, _TENURE) + int(_PER_CONFLICT * counts[0])
        counts[1] += 1
        since += 1
        gain += d
        move(m, x, field, sums, i, s)
        _note(m, x, field, memory, i)
        for e in range(m.neighbours[i], m.neighbours[i + 1]):
            _note(m, x, field, memory, m.neighbour[e])
        spent += 4 * (m.neighbours[i + 1] - m.neighbours[i])
        for e in range(m.large[i], m.large[i + 1]):
            c = m.large_counter[e]
            for a in range(m.count_first[c], m.count_first[c + 1]):
                _note(m, x, field, memory, m.counted[a])
            spent += 4 * (m.count_first[c + 1] - m.count_first[c])
        if gain > top + _LEAST:
            top, since = gain, 0
            best[:] = x
    return top, since


@compiled
def _choose(m: Arrays, x: Ints, field: Floats, memory: Tabu, wanted: float, rng: State) -> tuple[int, int, float]:
    """The best allowed move of a variable in conflict: the variable, its new state and the gain; ties at random."""
    count, step = memory.counts[0], memory.counts[1]
    who = state = -1
    top, ties = -np.inf, 0
    for a in range(count):
        i = memory.conflicts[a]
        at = m.states[i]
        now = field[at + x[i]]
        for s in range(m.cards[i]):
            d = field[at + s] - now
            if s == x[i] or d < top or (memory.until[at + s] > step and d <= wanted + _LEAST):
                continue
            ties = ties + 1 if d == top else 1
            if d > top or uniform(rng) * ties < 1.0:
                who, state, top = i, s, d
    if who < 0:  # all are forbidden
        who = memory.conflicts[below(rng, count)]
        state = (x[who] + 1 + below(rng, m.cards[who] - 1)) % m.cards[who]
        top = field[m.states[who] + state] - field[m.states[who] + x[who]]
    return who, state, top


@compiled
def _note(m: Arrays, x: Ints, field: Floats, memory: Tabu, i: int) -> None:
    """Put a variable among those in conflict, or take it out."""
    conflicts, place, counts = memory.conflicts, memory.place, memory.counts
    conflict = m.cards[i] > 1 and field[m.states[i] + x[i]] < -_LEAST
    if conflict and place[i] < 0:
        place[i] = counts[0]
        conflicts[counts[0]] = i
        counts[0] += 1
    elif not conflict and place[i] >= 0:
        counts[0] -= 1
        last = conflicts[counts[0]]
        conflicts[place[i]] = last
        place[last] = place[i]
        place[i] = -1
