"""Choose variables around a random one, from which a subgraph is then taken."""

from __future__ import annotations

import numpy as np

from fgnn.infer.search.arrays import Arrays, Floats, Ints
from fgnn.infer.search.chance import State, below, uniform
from fgnn.infer.search.subgraph import Workspace
from fgnn.runtime.jit import compiled

_FEW = 18  # members of a large counter: with two states each, as many as the largest step of an elimination has


@compiled
def random_ball(m: Arrays, ws: Workspace, size: int, rng: State) -> Ints:
    """About ``size`` variables around a random one, in breadth-first order; ``ws.doubt`` says where.

    At most a few variables of each large counter are among them.
    """
    n = len(m.cards)
    queue, seen = ws.queue, ws.mark
    count = head = tail = tries = 0
    while count < size and head < n:
        if head == tail:
            i = _centre(ws.doubt, rng)
            tries += 1
            while seen[i] != 0 and tries < 64:
                i = _centre(ws.doubt, rng)
                tries += 1
            if seen[i] != 0:  # nearly all are taken
                i = 0
                while seen[i] != 0:
                    i += 1
            seen[i] = 1
            queue[tail] = i
            tail += 1
        i = queue[head]
        head += 1
        blocked = m.cards[i] < 2
        for e in range(m.large[i], m.large[i + 1]):
            blocked = blocked or ws.taken[m.large_counter[e]] == _FEW
        if not blocked:
            for e in range(m.large[i], m.large[i + 1]):
                ws.taken[m.large_counter[e]] += 1
            ws.clique[count] = i
            count += 1
        begin, end = m.neighbours[i], m.neighbours[i + 1]
        shift = below(rng, end - begin) if end > begin else 0
        for e in range(begin, end):
            at = e + shift
            j = m.neighbour[at if at < end else at - (end - begin)]
            if seen[j] == 0:
                seen[j] = 1
                queue[tail] = j
                tail += 1
    for a in range(tail):
        i = queue[a]
        seen[i] = 0
        for e in range(m.large[i], m.large[i + 1]):
            ws.taken[m.large_counter[e]] = 0
    return ws.clique[:count].copy()


@compiled
def _centre(doubt: Floats, rng: State) -> int:
    """A random variable, by its weight."""
    n = len(doubt)
    if doubt[n - 1] <= 0.0:
        return below(rng, n)
    return min(n - 1, int(np.searchsorted(doubt, uniform(rng) * doubt[n - 1], side="right")))
