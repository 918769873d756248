"""The elimination of a subgraph as flat arrays, which ``sampling.cu`` follows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.search.arrays import Arrays, Ints
from fgnn.runtime.jit import compiled

STEP, SOURCE = 12, 8  # fields of a step and of a source

Words = NDArray[np.uint16]


class SamplingPlan(NamedTuple):
    """Steps by level, and what they add; ``sampling.cu`` explains the fields."""

    steps: Ints  # shape: (S, STEP)
    sources: Ints  # shape: (Q, SOURCE)
    alone: Ints  # shape: (A, SOURCE)
    fixed: Ints  # shape: (F, 2)
    scope: Ints
    strides: Ints
    levels: Ints
    owners: Words
    rows: Words
    room: int  # items of a level at most
    given: int  # states of all free variables


@compiled
def levels_of(m: Arrays, order: Ints, first: Ints, scope: Ints) -> tuple[Ints, Ints, Ints]:
    """The steps by level, where each level starts, and the step that reads each message (-1: none does).

    A message is read at the level after its own. So only two levels of messages are kept at a time.
    """
    steps = len(order)
    place = np.full(len(m.cards), -1, np.int64)
    for t in range(steps):
        place[order[t]] = t
    reader, depth = np.full(steps, -1, np.int64), np.zeros(steps, np.int64)
    deepest = 0
    for t in range(steps - 1, -1, -1):
        for e in range(first[t], first[t + 1]):
            if reader[t] < 0 or place[scope[e]] < reader[t]:
                reader[t] = place[scope[e]]
        if reader[t] >= 0:
            depth[t] = depth[reader[t]] + 1
        deepest = max(deepest, depth[t])
    starts = np.zeros(deepest + 2, np.int64)
    for t in range(steps):
        starts[deepest - depth[t] + 1] += 1
    starts = np.cumsum(starts)
    fill, by_level = starts.copy(), np.empty(steps, np.int64)
    for t in range(steps):
        level = deepest - depth[t]
        by_level[fill[level]] = t
        fill[level] += 1
    return by_level, starts, reader


@compiled
def _steps(
    m: Arrays, order: Ints, first: Ints, scope: Ints, by_level: Ints, levels: Ints
) -> tuple[Ints, Ints, Ints, Words]:
    """The steps without their sources, the variables beside each and their strides, and the steps of the items."""
    steps = np.zeros((len(order), STEP), np.int64)
    others, strides = np.empty(len(scope), np.int64), np.empty(len(scope), np.int64)
    owners = np.empty(1 << 12, np.uint16)
    items = given = width = 0
    for level in range(len(levels) - 1):
        for p in range(levels[level], levels[level + 1]):
            t, size, begin = by_level[p], 1, width
            i = order[t]
            for e in range(first[t], first[t + 1]):
                others[width], strides[width] = scope[e], size
                size *= m.cards[scope[e]]
                width += 1
            steps[p, 0], steps[p, 2], steps[p, 3], steps[p, 4], steps[p, 5] = (
                items,
                given,
                m.cards[i] << 16,
                i,
                m.states[i],
            )
            steps[p, 8], steps[p, 9] = begin, width - begin
            if items + size > len(owners):
                owners = _longer(owners, items + size)
            owners[items : items + size] = p - levels[level]
            items += size
            given += m.cards[i]
    return steps, others, strides, owners[:items]


@compiled
def _longer(array: Words, least: int) -> Words:
    longer = np.empty(2 * least, np.uint16)
    longer[: len(array)] = array
    return longer


@compiled
def _tables(m: Arrays, place: Ints, p: int, i: int, tables: Ints, fixed: Ints, count: int, f: int) -> tuple[int, int]:
    """Append the tables of step ``p`` to ``tables`` as (free variables, table, stride, fixed ...); return the ends."""
    for e in range(m.tables[i], m.tables[i + 1]):
        t = m.table[e]
        free, begin, earliest = 0, f, True
        for k in range(m.first[t], m.first[t + 1]):
            at = place[m.members[k]]
            if at < 0:
                fixed[f, 0], fixed[f, 1] = m.members[k], m.strides[k]
                f += 1
            else:
                free += 1
                earliest = earliest and at >= p
        if not earliest:  # an earlier step has it
            f = begin
            continue
        tables[count, 0], tables[count, 1], tables[count, 2] = free, t, m.stride[e]
        tables[count, 3], tables[count, 4] = begin, f - begin
        count += 1
    return count, f


@compiled
def _add_row(m: Arrays, others: Ints, size: int, step: Ints, rows: Words, r: int) -> Words:
    """Append where a source is read for each item of a step, from what a state of each variable adds."""
    if r + size > len(rows):
        rows = _longer(rows, r + size)
    rows[r] = 0
    done = 1
    for j in others:
        for state in range(1, m.cards[j]):
            for cell in range(done):
                rows[r + state * done + cell] = rows[r + cell] + state * step[j]
        done *= m.cards[j]
    return rows


@compiled
def lay_out(m: Arrays, order: Ints, first: Ints, scope: Ints) -> SamplingPlan:
    """Lay out an elimination order with the neighbours of each variable (`plan_subgraph`)."""
    by_level, levels, reader = levels_of(m, order, first, scope)
    steps, others, strides, owners = _steps(m, order, first, scope, by_level, levels)
    count, n = len(order), len(m.cards)
    place, run = np.full(n, -1, np.int64), np.empty(count, np.int64)
    for p in range(count):
        place[steps[p, 4]] = p
        run[by_level[p]] = p
    ends = np.append(steps[:, 0], len(owners))
    sources, alone = np.zeros((len(m.table) + count, SOURCE), np.int64), np.zeros((len(m.table), SOURCE), np.int64)
    fixed, tables = np.zeros((len(m.members), 2), np.int64), np.empty((len(m.table), 5), np.int64)
    child, sibling = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    rows, step = np.empty(1 << 14, np.uint16), np.zeros(n, np.int64)
    q = a = f = r = room = 0
    for level in range(len(levels) - 1):
        room = max(room, ends[levels[level + 1]] - ends[levels[level]])
        for p in range(levels[level], levels[level + 1]):
            mine, size = others[steps[p, 8] : steps[p, 8] + steps[p, 9]], ends[p + 1] - ends[p]
            i = steps[p, 4]
            steps[p, 1], steps[p, 6] = q, a
            found, f = _tables(m, place, p, i, tables, fixed, 0, f)
            for k in range(found):
                t, stride, begin, width = tables[k, 1], tables[k, 2], tables[k, 3], tables[k, 4]
                if tables[k, 0] == 1:
                    alone[a] = np.array([-1, 0, stride, m.cell[t], begin, width, 0, 0])
                    a += 1
                    continue
                for e in range(m.first[t], m.first[t + 1]):
                    step[m.members[e]] = m.strides[e]
                sources[q] = np.array([-2 if width else -1, r, stride, m.cell[t], begin, width, 0, 0])
                rows = _add_row(m, mine, size, step, rows, r)
                q, r = q + 1, r + size
                step[m.members[m.first[t] : m.first[t + 1]]] = 0
            c = child[p]
            while c >= 0:
                theirs = slice(steps[c, 8], steps[c, 8] + steps[c, 9])
                step[others[theirs]] = strides[theirs]
                sources[q] = np.array([ends[c] - ends[levels[level - 1]], r, step[i], 0, 0, 0, 0, 0])
                rows = _add_row(m, mine, size, step, rows, r)
                q, r = q + 1, r + size
                step[others[theirs]] = 0
                c = sibling[c]
            steps[p, 3] += q - steps[p, 1]
            steps[p, 7] = a - steps[p, 6]
            if reader[by_level[p]] >= 0:
                up = run[reader[by_level[p]]]
                sibling[p], child[up] = child[up], p
    given = int(steps[count - 1, 2] + m.cards[steps[count - 1, 4]]) if count else 0
    return SamplingPlan(
        steps, sources[:q], alone[:a], fixed[:f], others, strides, levels, owners, rows[:r], room, given
    )
