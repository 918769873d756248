"""Choose variables to free at once: a random induced subgraph that elimination solves within a size.

Variables are eliminated in order of their degree, ties at random. Where even the smallest clique would exceed the size,
one of its variables is fixed instead. With tables of two variables this gives an induced forest; larger sizes leave
fewer variables fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, uniform
from fgnn.runtime.jit import compiled

Status = NDArray[np.int8]

_BUCKETS = 64
_OUT, _FREE, _DONE = 0, 1, 2
_HUGE = 1 << 61


class Workspace(NamedTuple):
    """Arrays that subgraph moves reuse. Those of N entries are as they were made whenever no move runs."""

    status: Status  # zeros
    degree: Ints
    after: Ints
    before: Ints
    fill_head: Ints  # -1
    mark: Ints  # zeros
    clique: Ints
    place: Ints  # -1
    dim: Ints
    queue: Ints
    taken: Ints  # shape: (C,), zeros; of large counters: variables of a ball
    large: Ints  # shape: (3, C), zeros; their free variables, the first to be eliminated, and the sum of the others
    doubt: Floats  # shape: (N,), running sums of the weights by which balls are placed; all of them alike where 0
    # of one step, and of all steps
    joint: Floats
    messages: Floats
    argmax: NDArray[np.int32]


def workspace(m: Arrays, cells: int, most: int) -> Workspace:
    """Room for steps of at most ``cells`` joint states, and ``most`` of all steps together."""
    n = len(m.cards)
    minus, zeros, none = np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(len(m.count_first) - 1, np.int64)
    return Workspace(
        status=np.zeros(n, np.int8), degree=zeros.copy(), after=minus.copy(), before=minus.copy(),
        fill_head=minus.copy(), mark=zeros.copy(), clique=zeros.copy(), place=minus.copy(), dim=zeros.copy(),
        queue=zeros.copy(), taken=none, large=np.zeros((3, len(none)), np.int64), doubt=np.zeros(n),
        joint=np.empty(cells), messages=np.empty(most), argmax=np.empty(most, np.int32),
    )  # fmt: skip


@compiled
def plan_subgraph(
    m: Arrays, ws: Workspace, ball: Ints, cells: int, most: int, rng: State
) -> tuple[Ints, Ints, Ints, int]:
    """An elimination order of an induced subgraph of ``ball`` with at most ``cells`` joint states in a step.

    Returns the order, where the neighbours of each variable at its elimination start, the neighbours, and the total
    number of joint states, at most ``most``.
    """
    status, clique = ws.status, ws.clique
    head = _begin(m, ws, ball)
    # edges that eliminations add, as linked lists
    fill_next, fill_to = np.empty(8 * len(ball) + 64, np.int64), np.empty(8 * len(ball) + 64, np.int64)
    order, first = np.empty(len(ball), np.int64), np.zeros(len(ball) + 1, np.int64)
    scope = np.empty(8 * len(ball) + 64, np.int64)
    done = total = low = 0
    left = len(ball)
    fills, stamp, fill_next, fill_to = _join_large(m, ws, ball, head, fill_next, fill_to)
    while left > 0:
        while head[low] < 0:
            low += 1
        i = head[low]
        width, size = _live_neighbours(m, i, status, ws.fill_head, fill_next, fill_to, clique)
        if size > cells:
            out = _busiest(ws.degree, i, clique[:width], rng)
            low = min(low, _remove(m, ws, out, _OUT, head, fill_next, fill_to))
            left -= 1
            continue
        if total + size > most:
            break
        low = min(low, _remove(m, ws, i, _DONE, head, fill_next, fill_to))
        left -= 1
        wanted = fills + width * width
        fill_next, fill_to = _grown(fill_next, wanted), _grown(fill_to, wanted)
        fills = _connect(m, ws, clique[:width], head, fill_next, fill_to, fills, stamp)
        stamp += width
        scope = _grown(scope, first[done] + width)
        scope[first[done] : first[done] + width] = clique[:width]
        order[done] = i
        done += 1
        first[done] = first[done - 1] + width
        total += size
    order, first, scope = _without_fixed(order[:done], first[: done + 1], scope, status)
    _end(m, ws, ball)
    return order, first, scope, total


@compiled
def _begin(m: Arrays, ws: Workspace, ball: Ints) -> Ints:
    """Free the variables of a ball; return where the doubly linked list of each degree starts."""
    for i in ball:
        ws.status[i] = _FREE
    for i in ball:
        ws.degree[i] = 0
        for e in range(m.neighbours[i], m.neighbours[i + 1]):
            ws.degree[i] += ws.status[m.neighbour[e]] == _FREE
    head = np.full(_BUCKETS + 1, -1, np.int64)
    for i in ball:
        _insert(head, ws.after, ws.before, i, min(ws.degree[i], _BUCKETS))
    return head


@compiled
def _join_large(
    m: Arrays, ws: Workspace, ball: Ints, head: Ints, fill_next: Ints, fill_to: Ints
) -> tuple[int, int, Ints, Ints]:
    """Make the variables of a ball that share a large counter a clique; return the edges and the last mark."""
    count = fills = stamp = 0
    for i in ball:
        count += m.large[i + 1] - m.large[i]
    if count == 0:
        return fills, stamp, fill_next, fill_to
    member, following = np.empty(count, np.int64), np.empty(count, np.int64)  # linked lists, by counter
    count = 0
    for i in ball:
        for e in range(m.large[i], m.large[i + 1]):
            member[count], following[count] = i, ws.taken[m.large_counter[e]]
            count += 1
            ws.taken[m.large_counter[e]] = count
    for i in ball:
        for e in range(m.large[i], m.large[i + 1]):
            at, width = ws.taken[m.large_counter[e]], 0
            ws.taken[m.large_counter[e]] = 0
            while at > 0:
                ws.clique[width] = member[at - 1]
                at = following[at - 1]
                width += 1
            if width > 1:
                most = fills + width * width
                fill_next, fill_to = _grown(fill_next, most), _grown(fill_to, most)
                fills = _connect(m, ws, ws.clique[:width], head, fill_next, fill_to, fills, stamp)
                stamp += width
    return fills, stamp, fill_next, fill_to


@compiled
def _end(m: Arrays, ws: Workspace, ball: Ints) -> None:
    """Leave the workspace as it was."""
    for i in ball:
        ws.status[i] = _OUT
        ws.fill_head[i] = -1
        ws.mark[i] = 0
        for e in range(m.neighbours[i], m.neighbours[i + 1]):
            ws.mark[m.neighbour[e]] = 0


@compiled
def _busiest(degree: Ints, i: int, clique: Ints, rng: State) -> int:
    """The variable of highest degree among a variable and its neighbours, give or take a little."""
    out, top = i, degree[i] * (1.0 + 0.1 * uniform(rng))
    for j in clique:
        key = degree[j] * (1.0 + 0.1 * uniform(rng))
        if key > top:
            out, top = j, key
    return int(out)


@compiled
def _connect(
    m: Arrays, ws: Workspace, clique: Ints, head: Ints, fill_next: Ints, fill_to: Ints, fills: int, stamp: int
) -> int:
    """Add the edges that make variables a clique; return the number of edges added so far."""
    for j in clique:
        stamp += 1
        _mark(m, j, stamp, ws.mark, ws.fill_head, fill_next, fill_to)
        before = fills
        for k in clique:
            if ws.mark[k] != stamp:
                fill_to[fills], fill_next[fills] = k, ws.fill_head[j]
                ws.fill_head[j] = fills
                fills += 1
        if fills > before:
            _take_out(head, ws.after, ws.before, j, min(ws.degree[j], _BUCKETS))
            ws.degree[j] += fills - before
            _insert(head, ws.after, ws.before, j, min(ws.degree[j], _BUCKETS))
    return fills


@compiled
def _live_neighbours(
    m: Arrays, i: int, status: Status, fill_head: Ints, fill_next: Ints, fill_to: Ints, clique: Ints
) -> tuple[int, int]:
    """Put the free neighbours of a variable into ``clique``; return their number and all their joint states."""
    size, width = m.cards[i], 0
    for e in range(m.neighbours[i], m.neighbours[i + 1]):
        j = m.neighbour[e]
        if status[j] == _FREE:
            clique[width] = j
            width += 1
            size = size * m.cards[j] if size <= _HUGE // m.cards[j] else _HUGE
    e = fill_head[i]
    while e >= 0:
        j = fill_to[e]
        if status[j] == _FREE:
            clique[width] = j
            width += 1
            size = size * m.cards[j] if size <= _HUGE // m.cards[j] else _HUGE
        e = fill_next[e]
    return width, size


@compiled
def _mark(m: Arrays, j: int, stamp: int, mark: Ints, fill_head: Ints, fill_next: Ints, fill_to: Ints) -> None:
    """Mark a variable and its neighbours."""
    mark[j] = stamp
    for e in range(m.neighbours[j], m.neighbours[j + 1]):
        mark[m.neighbour[e]] = stamp
    e = fill_head[j]
    while e >= 0:
        mark[fill_to[e]] = stamp
        e = fill_next[e]


@compiled
def _without_fixed(order: Ints, first: Ints, scope: Ints, status: Status) -> tuple[Ints, Ints, Ints]:
    """Drop neighbours that were fixed after a variable's elimination."""
    kept = np.zeros_like(first)
    count = 0
    for t in range(len(order)):
        for e in range(first[t], first[t + 1]):
            if status[scope[e]] == _DONE:
                scope[count] = scope[e]
                count += 1
        kept[t + 1] = count
    return order, kept, scope[:count]


@compiled
def _grown(array: Ints, least: int) -> Ints:
    """An array of at least so many entries."""
    if least <= len(array):
        return array
    grown = np.empty(2 * least, np.int64)
    grown[: len(array)] = array
    return grown


@compiled
def _insert(head: Ints, after: Ints, before: Ints, i: int, bucket: int) -> None:
    after[i] = head[bucket]
    before[i] = -1
    if head[bucket] >= 0:
        before[head[bucket]] = i
    head[bucket] = i


@compiled
def _take_out(head: Ints, after: Ints, before: Ints, i: int, bucket: int) -> None:
    if before[i] >= 0:
        after[before[i]] = after[i]
    else:
        head[bucket] = after[i]
    if after[i] >= 0:
        before[after[i]] = before[i]


@compiled
def _remove(m: Arrays, ws: Workspace, i: int, why: int, head: Ints, fill_next: Ints, fill_to: Ints) -> int:
    """Take a variable out of the graph; return the lowest degree that a neighbour then has."""
    status, degree, after, before = ws.status, ws.degree, ws.after, ws.before
    status[i] = why
    _take_out(head, after, before, i, min(degree[i], _BUCKETS))
    low = _BUCKETS
    for e in range(m.neighbours[i], m.neighbours[i + 1]):
        j = m.neighbour[e]
        if status[j] == _FREE:
            low = min(low, _lose(head, after, before, degree, j))
    e = ws.fill_head[i]
    while e >= 0:
        j = fill_to[e]
        if status[j] == _FREE:
            low = min(low, _lose(head, after, before, degree, j))
        e = fill_next[e]
    return low


@compiled
def _lose(head: Ints, after: Ints, before: Ints, degree: Ints, j: int) -> int:
    """One neighbour less."""
    _take_out(head, after, before, j, min(degree[j], _BUCKETS))
    degree[j] -= 1
    _insert(head, after, before, j, min(degree[j], _BUCKETS))
    return int(min(degree[j], _BUCKETS))
