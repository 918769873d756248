"""Inner loops of `dual`, compiled: sweeps over nodes, the value of the dual, and rounding.

Multipliers δ move numbers between a node n and its parents c without changing any score:

    θ̃_n(s) = θ_n(s) - Σ_c δ_cn(s)        θ̃_c(x) = θ_c(x) + Σ_n δ_cn(x_n)

``theta`` holds the changed numbers, which rounding errors may blur; bounds are computed from θ and δ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NONE = -np.inf


@compiled
def budget_maxima(
    which: int, place: int, theta: Floats, delta: Floats, low: Ints, high: Ints,
    start: Ints, child: Ints, delta_at: Ints, budget_start: Ints, budget_edges: Ints, gains: Floats, out: Floats,
) -> None:  # fmt: skip
    """The largest value of a budget for each state of the variable at edge ``place`` (-1: of none, in ``out[0]``).

    The others' best choice takes every gain that is positive, within the bounds.
    """
    base, forced, count = 0.0, 0, 0
    for k in range(budget_start[which], budget_start[which + 1]):
        e = budget_edges[k]
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
def sweep(
    nodes: Ints, theta: Floats, delta: Floats, weight: Floats, low: Ints, high: Ints,
    start: Ints, parent: Ints, child: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, budget_start: Ints, budget_edges: Ints, maxima: Floats, hat: Floats, gains: Floats,
) -> None:  # fmt: skip
    """Update the multipliers of each node in turn: collect from its parents, then give each its share.

    Afterwards the best states of the node and of its parents agree, so the dual cannot have risen.
    """
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
                budget_maxima(
                    -1 - c, e, theta, delta, low, high, start, child, delta_at, budget_start, budget_edges, gains,
                    maxima[row : row + 2],
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
    theta: Floats, original: Floats, delta: Floats, low: Ints, high: Ints,
    start: Ints, child: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, down_start: Ints, down: Ints, budget_start: Ints, budget_edges: Ints,
    gains: Floats, values: Floats, sizes: Floats,
) -> None:  # fmt: skip
    """The largest changed number of each node, then of each budget, computed from the original numbers.

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
    out = np.empty(2)
    for b in range(len(budget_start) - 1):
        budget_maxima(
            b, -1, theta, delta, low, high, start, child, delta_at, budget_start, budget_edges, gains, out
        )  # fmt: skip
        size = 0.0
        for k in range(budget_start[b], budget_start[b + 1]):
            at = delta_at[budget_edges[k]]
            size += 2 * (abs(delta[at]) + abs(delta[at + 1]))
        values[nodes + b] = out[0]
        sizes[nodes + b] = size * (4 + 2 * (budget_start[b + 1] - budget_start[b]))


@compiled
def round_states(
    order: Ints, theta: Floats, original: Floats, delta: Floats, low: Ints, high: Ints,
    start: Ints, parent: Ints, delta_at: Ints, projection: Ints, projections: Ints,
    up_start: Ints, up: Ints, down_start: Ints, down: Ints, child: Ints, budget_start: Ints, states: Ints, hat: Floats,
) -> None:  # fmt: skip
    """Fix one variable after the other to its best state, given those fixed before and multipliers for the rest."""
    ones = np.zeros(len(budget_start) - 1, np.int64)
    left = np.diff(budget_start)
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
                for s in range(2):
                    if ones[b] + s > high[b] or ones[b] + s + left[b] - 1 < low[b]:
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
                ones[-1 - parent[up[u]]] += chosen
                left[-1 - parent[up[u]]] -= 1
