"""Inner loops of `dual`, compiled: sweeps over nodes, the value of the dual, and rounding.

Multipliers δ move numbers between a node n and its parents c without changing any score:

    θ̃_n(s) = θ_n(s) - Σ_c δ_cn(s)        θ̃_c(x) = θ_c(x) + Σ_n δ_cn(x_n)

``theta`` holds the changed numbers, which rounding errors may blur; bounds are computed from θ and δ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.dual.counters import Counters
from fgnn.runtime.jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NONE = -np.inf


@compiled
def ones_maxima(
    which: int, place: int, theta: Floats, delta: Floats, low: Ints, high: Ints,
    start: Ints, child: Ints, delta_at: Ints, count_start: Ints, count_edges: Ints, gains: Floats, out: Floats,
) -> None:  # fmt: skip
    """The largest value of bounds on a number of ones, for each state of the variable at edge ``place``.

    With ``place`` -1, of no variable, in ``out[0]``. The others take every gain that is positive, within the bounds.
    """
    base, forced, count = 0.0, 0, 0
    for k in range(count_start[which], count_start[which + 1]):
        e = count_edges[k]
        if e == place:
            continue
        n = start[child[e]]
        zero, one = theta[n] > NONE, theta[n + 1] > NONE
        if one and not zero:
            forced += 1
            base += delta[delta_at[e] + 1]
        elif zero:
            base += delta[delta_at[e]]
            if one:
                gain = delta[delta_at[e] + 1] - delta[delta_at[e]]
                at = count
                while at > 0 and gains[at - 1] < gain:  # insert in decreasing order
                    gains[at] = gains[at - 1]
                    at -= 1
                gains[at] = gain
                count += 1
        else:
            out[0] = NONE
            out[1] = NONE
            return
    for s in range(2):
        own = forced + (s if place >= 0 else 0)
        least, most = max(0, low[which] - own), high[which] - own
        if most < 0 or least > count or least > most:
            out[s] = NONE
            continue
        total = base
        for k in range(min(most, count)):
            if k >= least and gains[k] <= 0:
                break
            total += gains[k]
        out[s] = total
    if place >= 0:
        for s in range(2):
            out[s] += delta[delta_at[place] + s]


@compiled
def fill_ahead(
    which: int, forward: bool, theta: Floats, delta: Floats, start: Ints, child: Ints, delta_at: Ints,
    counters: Counters,
) -> float:  # fmt: skip
    """The best value that the variables from each position onwards can add to a given sum so far, including the score
    of the final sum.

    Row m of the counter's room is for those from the m-th on, in the order of a sweep. Returns the value of them all.
    """
    sums, modulus, edges = counters.sums[which], counters.modulus[which], counters.start[which + 1] - 1
    n, at = counters.start[which + 1] - counters.start[which], counters.room_at[which]
    room = counters.room
    for t in range(sums):
        room[at + n * sums + t] = counters.scores[counters.scores_at[which] + t]
    for m in range(n - 1, -1, -1):
        e = counters.edges[counters.start[which] + m] if forward else counters.edges[edges - m]
        node, here, after = child[e], at + m * sums, at + (m + 1) * sums
        for t in range(sums):
            room[here + t] = NONE
        for s in range(start[node + 1] - start[node]):
            if theta[start[node] + s] == NONE:
                continue
            w, d = counters.weights[counters.weight[e] + s], delta[delta_at[e] + s]
            for t in range(sums if modulus else sums - w):
                to = t + w
                if to >= sums:
                    to -= sums
                room[here + t] = max(room[here + t], room[after + to] + d)
    return float(room[at])


@compiled
def sum_maxima(
    which: int, e: int, forward: bool, theta: Floats, delta: Floats, start: Ints, child: Ints, delta_at: Ints,
    counters: Counters, out: Floats,
) -> None:  # fmt: skip
    """The largest value of a counter for each state of the variable at edge ``e``.

    A sweep visits the variables of a counter in order, so sums over those before are extended, and sums over those
    after are computed once.
    """
    sums, modulus = counters.sums[which], counters.modulus[which]
    first, n = counters.start[which], counters.start[which + 1] - counters.start[which]
    at, room = counters.room_at[which], counters.room
    m = counters.place[e] if forward else n - 1 - counters.place[e]
    now = at + (n + 1 + m % 2) * sums  # the best value of each sum of those before
    for t in range(sums):
        room[now + t] = NONE
    if m == 0:
        fill_ahead(which, forward, theta, delta, start, child, delta_at, counters)
        room[now] = 0.0
    else:
        last = counters.edges[first + m - 1] if forward else counters.edges[first + n - m]
        node, before = child[last], at + (n + 1 + (m - 1) % 2) * sums
        for s in range(start[node + 1] - start[node]):
            if theta[start[node] + s] == NONE:
                continue
            w, d = counters.weights[counters.weight[last] + s], delta[delta_at[last] + s]
            for t in range(sums if modulus else sums - w):
                to = t + w
                if to >= sums:
                    to -= sums
                room[now + to] = max(room[now + to], room[before + t] + d)
    ahead = at + (m + 1) * sums
    for s in range(len(out)):
        w, best = counters.weights[counters.weight[e] + s], NONE
        for t in range(sums if modulus else sums - w):
            to = t + w
            if to >= sums:
                to -= sums
            best = max(best, room[now + t] + room[ahead + to])
        out[s] = best + delta[delta_at[e] + s]


@compiled
def sweep(
    nodes: Ints, forward: bool, theta: Floats, delta: Floats, weight: Floats,
    start: Ints, parent: Ints, child: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, counters: Counters, maxima: Floats, hat: Floats, gains: Floats,
) -> None:  # fmt: skip
    """Update the multipliers of each node in turn: collect from its parents, then give each its share.

    Afterwards the best states of the node and of its parents agree, so the dual cannot have risen.
    """
    low, high, count_start, count_edges = counters.low, counters.high, counters.start, counters.edges
    for node in nodes:
        at, k = start[node], start[node + 1] - start[node]
        for s in range(k):
            hat[s] = theta[at + s]
        for u in range(up_start[node], up_start[node + 1]):
            e, row = up[u], (u - up_start[node]) * k
            c = parent[e]
            for s in range(k):
                maxima[row + s] = NONE
            if c < 0:
                out = maxima[row : row + k]
                if counters.sums[-1 - c]:
                    sum_maxima(-1 - c, e, forward, theta, delta, start, child, delta_at, counters, out)
                else:
                    ones_maxima(
                        -1 - c, e, theta, delta, low, high, start, child, delta_at, count_start, count_edges, gains, out
                    )  # fmt: skip
            else:
                p = projection[e]
                for x in range(start[c + 1] - start[c]):
                    s = projections[p + x]
                    maxima[row + s] = max(maxima[row + s], theta[start[c] + x])
            top = NONE
            for s in range(k):
                top = max(top, maxima[row + s])
            for s in range(k):
                if maxima[row + s] == NONE or hat[s] == NONE:
                    hat[s] = NONE  # no completion: the state is impossible
                else:
                    maxima[row + s] -= top  # constants stay where they are
                    hat[s] += maxima[row + s]
        top = NONE
        for s in range(k):
            top = max(top, hat[s])
        given = 0.0
        for u in range(up_start[node], up_start[node + 1]):
            e, row = up[u], (u - up_start[node]) * k
            c, w = parent[e], weight[e]
            given += w
            for s in range(k):
                change = NONE if hat[s] == NONE else w * (hat[s] - top) - maxima[row + s]
                maxima[row + s] = change
                if change > NONE:
                    delta[delta_at[e] + s] += change
            if c >= 0:
                p = projection[e]
                for x in range(start[c + 1] - start[c]):
                    theta[start[c] + x] += maxima[row + projections[p + x]]
        for s in range(k):
            if hat[s] > NONE:
                theta[at + s] = hat[s] - given * (hat[s] - top)
            else:
                theta[at + s] = NONE


@compiled
def node_bounds(
    theta: Floats, original: Floats, delta: Floats,
    start: Ints, child: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, down_start: Ints, down: Ints, values: Floats, sizes: Floats,
) -> None:  # fmt: skip
    """The largest changed number of each node, computed from the original numbers.

    ``sizes`` are the largest sums of absolute values, which bound the rounding errors. Impossible states, at ``-inf``
    in ``theta``, are left out.
    """
    nodes = len(start) - 1
    for n in range(nodes):
        best, size = NONE, 0.0
        for x in range(start[n + 1] - start[n]):
            if theta[start[n] + x] == NONE:
                continue
            value = original[start[n] + x]
            total = abs(value)
            for u in range(up_start[n], up_start[n + 1]):
                d = delta[delta_at[up[u]] + x]
                value -= d
                total += abs(d)
            for u in range(down_start[n], down_start[n + 1]):
                e = down[u]
                d = delta[delta_at[e] + projections[projection[e] + x]]
                value += d
                total += abs(d)
            best, size = max(best, value), max(size, total)
        values[n] = best
        sizes[n] = size * (4 + up_start[n + 1] - up_start[n] + down_start[n + 1] - down_start[n])


@compiled
def counter_bounds(
    first: int, last: int, theta: Floats, delta: Floats, start: Ints, child: Ints, delta_at: Ints, counters: Counters,
    gains: Floats, values: Floats, sizes: Floats,
) -> None:  # fmt: skip
    """As `node_bounds`, for some of the counters, which come after the nodes."""
    nodes = len(start) - 1
    low, high, count_start, count_edges = counters.low, counters.high, counters.start, counters.edges
    out = np.empty(2)
    for c in range(first, last):
        size = 0.0
        if counters.sums[c]:
            out[0] = fill_ahead(c, True, theta, delta, start, child, delta_at, counters)
            for t in range(counters.scores_at[c], counters.scores_at[c] + counters.sums[c]):
                if counters.scores[t] > NONE:
                    size = max(size, abs(counters.scores[t]))
        else:
            ones_maxima(
                c, -1, theta, delta, low, high, start, child, delta_at, count_start, count_edges, gains, out
            )  # fmt: skip
        for k in range(counters.start[c], counters.start[c + 1]):
            e, largest = counters.edges[k], 0.0
            for s in range(start[child[e] + 1] - start[child[e]]):
                largest += abs(delta[delta_at[e] + s])
            size += 2 * largest
        values[nodes + c] = out[0]
        sizes[nodes + c] = size * (4 + 2 * (counters.start[c + 1] - counters.start[c]))


@compiled
def fill_some(
    first: int, last: int, forward: bool, theta: Floats, delta: Floats, start: Ints, child: Ints, delta_at: Ints,
    counters: Counters,
) -> None:  # fmt: skip
    """Fill the room of some counters, as `round_states` needs it."""
    for c in range(first, last):
        if counters.sums[c]:
            fill_ahead(c, forward, theta, delta, start, child, delta_at, counters)


@compiled
def round_states(
    order: Ints, forward: bool, theta: Floats, original: Floats, delta: Floats,
    start: Ints, parent: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, down_start: Ints, down: Ints, child: Ints, counters: Counters, states: Ints, hat: Floats,
) -> None:  # fmt: skip
    """Fix one variable after the other to its best state, given those fixed before and multipliers for the rest."""
    total = np.zeros(len(counters.sums), np.int64)  # of the variables fixed so far
    left = np.diff(counters.start)
    states[:] = -1
    for i in order:
        at, k = start[i], start[i + 1] - start[i]
        for s in range(k):
            hat[s] = original[at + s] if theta[at + s] > NONE else NONE
        for u in range(up_start[i], up_start[i + 1]):
            e = up[u]
            c = parent[e]
            if c < 0:
                b = -1 - c
                for s in range(k):
                    now = total[b] + counters.weights[counters.weight[e] + s]
                    if counters.sums[b]:
                        m = counters.start[b + 1] - counters.start[b] - left[b] + 1
                        now = now % counters.modulus[b] if counters.modulus[b] else now
                        hat[s] += counters.room[counters.room_at[b] + m * counters.sums[b] + now]
                    elif now > counters.high[b] or now + left[b] - 1 < counters.low[b]:
                        hat[s] = NONE
                    else:
                        hat[s] -= delta[delta_at[e] + s]
                continue
            best = np.full(k, NONE)
            for x in range(start[c + 1] - start[c]):
                value = original[start[c] + x]
                if value == NONE or theta[start[c] + x] == NONE:
                    continue
                mine = 0
                for d in range(down_start[c], down_start[c + 1]):
                    other = down[d]
                    s = projections[projection[other] + x]
                    if other == e:
                        mine = s
                    elif states[child[other]] < 0:
                        value += delta[delta_at[other] + s]
                    elif states[child[other]] != s:
                        value = NONE
                        break
                best[mine] = max(best[mine], value)
            for s in range(k):
                hat[s] += best[s]
        chosen = 0
        for s in range(k):
            if hat[s] > hat[chosen]:
                chosen = s
        states[i] = chosen
        for u in range(up_start[i], up_start[i + 1]):
            if parent[up[u]] < 0:
                total[-1 - parent[up[u]]] += counters.weights[counters.weight[up[u]] + chosen]
                left[-1 - parent[up[u]]] -= 1
