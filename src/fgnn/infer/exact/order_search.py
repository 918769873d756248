"""Many random greedy elimination orders, compiled: worth it where one bit of width halves the work.

Adjacency is kept as bit sets, so that counting missing edges is a few `popcount` instructions a neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import Background, compiled

# Greedy choices are random among the vertices whose score is at most this factor of the lowest, one factor a try.
_SLACK = (1.0, 1.0, 1.1, 1.25)
_WORK = 2e8  # word operations a second
_SLICE = 0.02  # seconds of them between two looks at the clock
_SEEDS = 7919  # from one slice to the next


def search_sequence(
    graph: Sequence[Iterable[int]],
    bits: Sequence[float],
    cost: float,
    *,
    seed: int,
    seconds: float,
    out_of_time: Callable[[], bool] = lambda: False,
) -> list[int] | None:
    """A sequence cheaper than ``cost`` (log2 of the joint states of all steps); None if none was found.

    Args:
        graph: Neighbours of each vertex.
        bits: log2 of the cardinalities.
        cost: What to improve on.
        seed: Of the random choices.
        seconds: Rough time to spend, as a number of operations, so that runs repeat exactly.
        out_of_time: Ends the search when it returns True; asked after every slice of the operations.
    """
    n = len(graph)
    words = np.zeros((n, (n + 63) // 64), dtype=np.uint64)
    for v, near in enumerate(graph):
        for u in near:
            words[v, u // 64] |= np.uint64(1) << np.uint64(u % 64)
    slack, sizes = np.asarray(_SLACK), np.asarray(bits, dtype=np.float64)
    best: list[int] | None = None
    for part in range(max(1, math.ceil(seconds / _SLICE))):
        if out_of_time():
            break
        work = min(_SLICE, seconds - part * _SLICE) * _WORK
        sequence, found = _search(words, sizes, cost, seed + _SEEDS * part, work, slack)
        if found < cost - 1e-9:
            best, cost = sequence.tolist(), found
    return best


@compiled
def _popcount(x: Any) -> Any:  # pragma: no cover (compiled)
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@compiled
def _list(row: Any, out: Any) -> Any:  # pragma: no cover (compiled)
    """The members of a bit set."""
    count = 0
    for w in range(len(row)):
        word = row[w]
        while word != np.uint64(0):
            low = word & (~word + np.uint64(1))
            out[count] = w * 64 + _popcount(low - np.uint64(1))
            count += 1
            word ^= low
    return count


@compiled
def _fill(near: Any, v: Any, bits: Any, weighted: Any, buffer: Any) -> Any:  # pragma: no cover (compiled)
    """Edges that eliminating v adds, or the sum of the products of the bits of their ends; and the members of near."""
    count = _list(near[v], buffer)
    total = 0.0
    for a in range(count):
        u = buffer[a]
        if weighted:
            for b in range(a):
                w = buffer[b]
                if near[u, w // 64] >> np.uint64(w % 64) & np.uint64(1) == np.uint64(0):
                    total += bits[u] * bits[w]
        else:
            missing = 0
            for w in range(near.shape[1]):
                missing += _popcount(near[v, w] & ~near[u, w])
            total += missing - 1  # u itself is not its own neighbour
    return total if weighted else total / 2


@compiled
def _eliminate(near: Any, v: Any, members: Any, count: Any, touched: Any) -> Any:  # pragma: no cover (compiled)
    """Connect the neighbours of v, remove v, and mark the vertices whose fill may have changed."""
    words = near.shape[1]
    for w in range(words):
        touched[w] |= near[v, w]
    for a in range(count):
        u = members[a]
        for w in range(words):
            fresh = near[v, w] & ~near[u, w]
            if w == u // 64:
                fresh &= ~(np.uint64(1) << np.uint64(u % 64))
            if fresh != np.uint64(0):
                for other in range(words):  # common neighbours of u and its new neighbours lose a missing edge
                    touched[other] |= near[u, other]
            near[u, w] |= fresh
        near[u, v // 64] &= ~(np.uint64(1) << np.uint64(v % 64))


@compiled
def _clique_bits(v: Any, members: Any, count: Any, bits: Any) -> Any:  # pragma: no cover (compiled)
    """log2 of the joint states of v and its neighbours."""
    size = bits[v]
    for a in range(count):
        size += bits[members[a]]
    return size


@compiled
def _peel(near: Any, bits: Any, buffer: Any, members: Any, order: Any) -> Any:  # pragma: no cover (compiled)
    """Eliminate vertices whose neighbours are connected; return their number and joint states.

    ``order`` has them first, then the others.
    """
    n = len(near)
    gone, unused = np.zeros(n, np.bool_), np.zeros(near.shape[1], np.uint64)
    done, total, again = 0, 0.0, True
    while again:
        again = False
        for v in range(n):
            if not gone[v] and _fill(near, v, bits, False, buffer) == 0.0:
                count = _list(near[v], members)
                total += 2.0 ** _clique_bits(v, members, count, bits)
                _eliminate(near, v, members, count, unused)
                gone[v] = True
                order[done] = v
                done += 1
                again = True
    at = done
    for v in range(n):
        if not gone[v]:
            order[at] = v
            at += 1
    return done, total


@compiled
def _pick(fill: Any, left: Any, count: Any, factor: Any, luck: Any) -> Any:  # pragma: no cover (compiled)
    """A random one of the vertices left whose fill is at most ``factor`` times the lowest; and the next luck."""
    lowest = np.inf
    for a in range(count):
        lowest = min(lowest, fill[left[a]])
    ties, chosen = 0, 0
    for a in range(count):
        if fill[left[a]] <= lowest * factor + 1e-9:
            ties += 1
            luck ^= luck << np.uint64(13)  # xorshift
            luck ^= luck >> np.uint64(7)
            luck ^= luck << np.uint64(17)
            if (luck >> np.uint64(11)) % np.uint64(ties) == np.uint64(0):
                chosen = a
    return chosen, luck


@compiled
def _search(
    start: Any, bits: Any, cost: Any, seed: Any, work: Any, slack: Any
) -> tuple[NDArray[np.int64], float]:  # pragma: no cover (compiled)
    n, words = start.shape
    luck = np.uint64(2 * seed + 1) * np.uint64(0x9E3779B97F4A7C15)
    best, sequence = np.arange(n), np.empty(n, np.int64)
    buffer, members = np.empty(n, np.int64), np.empty(n, np.int64)
    base, touched = start.copy(), np.zeros(words, np.uint64)
    first, alone = _peel(base, bits, buffer, members, sequence)  # first in every order, at no cost
    rest = sequence[first:].copy()
    core = len(rest)
    fills = np.zeros((2, n))
    for v in rest:
        fills[0, v] = _fill(base, v, bits, False, buffer)
        fills[1, v] = _fill(base, v, bits, True, buffer)
    spent, attempt = 0.0, 0
    while spent < work and core > 0:
        weighted = attempt % 2 == 1
        factor = slack[attempt // 2 % len(slack)]
        attempt += 1
        near, fill, left = base.copy(), fills[1 if weighted else 0].copy(), rest.copy()
        total, done = alone, 0
        limit = 2.0**cost
        spent += core * words
        while done < core and total < limit:
            chosen, luck = _pick(fill, left, core - done, factor, luck)
            v = left[chosen]
            left[chosen] = left[core - done - 1]
            sequence[first + done] = v
            done += 1
            count = _list(near[v], members)
            total += 2.0 ** _clique_bits(v, members, count, bits)
            touched[:] = np.uint64(0)
            _eliminate(near, v, members, count, touched)
            for a in range(core - done):
                u = left[a]
                if touched[u // 64] >> np.uint64(u % 64) & np.uint64(1) != np.uint64(0):
                    fill[u] = _fill(near, u, bits, weighted, buffer)
                    spent += count * words
            spent += core
        if done == core and np.log2(total) < cost - 1e-9:
            cost = np.log2(total)
            best[:] = sequence
    return best, cost


def _warm_up() -> None:
    search_sequence([[1, 3], [0, 2], [1, 3], [2, 0]], [1.0] * 4, 10.0, seed=0, seconds=1e-6)


LOOPS = Background(_warm_up)
