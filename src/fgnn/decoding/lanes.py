"""Belief propagation on a CPU: shots side by side, one in each lane of the vector unit.

A lane whose shot is finished takes the next one at once, so no lane waits for the slowest. The loops over lanes are the
innermost ones and have no branches, which lets LLVM turn them into vector instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

Array = NDArray[Any]

# A check of one bit is certain about it; a larger value would lose the fraction of other messages in float32.
CERTAIN = 1e4
# Several vectors' worth, so that the start of a loop costs little beside it; not a power of two, which would put the
# rows that a check reads into the same few sets of the cache.
_MOST_LANES = 48
_FEWEST_LANES = 8


class Graph(NamedTuple):
    """The edges by check and by bit; see `Code`."""

    starts: Array
    bits: Array
    bit_starts: Array
    bit_edges: Array


class Task(NamedTuple):
    """What all shots have in common, and the shots; see `Schedule` for the meaning."""

    llr: Array  # shape: (1 or B, bits)
    syndromes: Array  # shape: (B, checks), or (0, checks) for zeros
    gammas: Array  # shape: (legs, 1 or bits)
    lengths: Array  # shape: (legs,)
    sums: bool  # sum-product instead of min-sum
    scale: float
    offset: float
    solutions: int
    layered: bool
    most: float  # the largest product of tanh; 1 would be infinite
    stop: Array  # another thread sets its first entry to end early


class Results(NamedTuple):
    """What is written for every shot; see `Beliefs`."""

    words: Array
    posterior: Array
    iterations: Array
    converged: Array


class Lanes(NamedTuple):
    """The state of every lane, in the last dimension."""

    post: Array  # shape: (bits, lanes), the posteriors M
    base: Array  # shape: (bits, lanes), the priors
    gamma: Array  # shape: (bits, lanes)
    r: Array  # shape: (edges, lanes), the messages from checks
    hard: Array  # shape: (bits, lanes)
    best: Array  # shape: (bits, lanes), the cheapest word so far
    syndrome: Array  # shape: (checks, lanes)
    wrong: Array  # whether the word violates a check
    parity: Array
    scale: Array
    sign: Array
    least: Array
    second: Array
    before: Array  # shape: (largest check, lanes), products of tanh over the edges before
    tanh: Array  # shape: (largest check, lanes)
    shot: Array  # -1 if idle
    leg: Array
    step: Array
    total: Array
    found: Array
    cost: Array


def make_lanes(graph: Graph, task: Task, shots: int) -> Lanes:
    """Idle lanes: as many as there are shots, but no more than pay."""
    lanes = min(_MOST_LANES, max(_FEWEST_LANES, -(-shots // 8) * 8))
    n, m, kind = len(graph.bit_starts) - 1, len(graph.starts) - 1, task.llr.dtype
    degree = int(np.diff(graph.starts).max(initial=1)) if task.sums else 1

    def reals(*shape: int) -> Array:
        return np.zeros((*shape, lanes), kind)

    def bits(*shape: int) -> Array:
        return np.zeros((*shape, lanes), np.uint8)

    def counts() -> Array:
        return np.zeros(lanes, np.int64)

    return Lanes(
        reals(n), reals(n), reals(n), reals(len(graph.bits)), bits(n), bits(n), bits(m), bits(), bits(), reals(),
        reals(), reals(), reals(), reals(degree), reals(degree), counts() - 1, counts(), counts(), counts(), counts(),
        np.zeros(lanes),
    )  # fmt: skip


@compiled
def _min_sum(graph: Graph, lanes: Lanes, c: int, offset: float, layered: bool) -> None:
    """Update the messages of one check; each is the smallest of the others, with the sign of their product.

    ``r`` holds the messages from the check and, between the two loops, those towards it.
    """
    post, r, sign, least, second, scale = lanes.post, lanes.r, lanes.sign, lanes.least, lanes.second, lanes.scale
    width = r.shape[1]
    for k in range(width):
        least[k] = CERTAIN
        second[k] = CERTAIN
        sign[k] = 1 - 2 * r.dtype.type(lanes.syndrome[c, k])
    for e in range(graph.starts[c], graph.starts[c + 1]):
        v = graph.bits[e]
        for k in range(width):
            q = post[v, k] - r[e, k]
            r[e, k] = q
            size = abs(q)
            second[k] = min(second[k], max(least[k], size))
            least[k] = min(least[k], size)
            sign[k] = -sign[k] if q < 0 else sign[k]
    for e in range(graph.starts[c], graph.starts[c + 1]):
        v = graph.bits[e]
        for k in range(width):
            q = r[e, k]
            size = second[k] if abs(q) == least[k] else least[k]
            size = scale[k] * max(size - offset, r.dtype.type(0))
            negative = (q < 0) != (sign[k] < 0)
            message = -size if negative else size
            r[e, k] = message
            if layered:
                post[v, k] = q + message


@compiled
def _sum_product(graph: Graph, lanes: Lanes, c: int, most: float, layered: bool) -> None:
    """Update the messages of one check; tanh(r/2) is the product of tanh(q/2) over the others."""
    post, r, before, tanh, after = lanes.post, lanes.r, lanes.before, lanes.tanh, lanes.least
    width, first = r.shape[1], graph.starts[c]
    one, two = r.dtype.type(1), r.dtype.type(2)
    for k in range(width):
        after[k] = one - 2 * lanes.syndrome[c, k]
    for e in range(first, graph.starts[c + 1]):
        v = graph.bits[e]
        for k in range(width):
            q = post[v, k] - r[e, k]
            before[e - first, k] = after[k]
            r[e, k] = q
            tanh[e - first, k] = one - two / (np.exp(q) + one)  # tanh(q / 2); exp is the fastest of these functions
            after[k] *= tanh[e - first, k]
    for k in range(width):
        after[k] = one
    for e in range(graph.starts[c + 1] - 1, first - 1, -1):
        v = graph.bits[e]
        for k in range(width):
            q = r[e, k]
            p = min(max(before[e - first, k] * after[k], -most), most)
            message = np.log((one + p) / (one - p))
            after[k] *= tanh[e - first, k]
            r[e, k] = message
            if layered:
                post[v, k] = q + message


@compiled
def _posteriors(graph: Graph, lanes: Lanes, layered: bool) -> None:
    """Posterior and hard decision of every bit: its (remembered) prior and the messages of its checks."""
    post, base, gamma, r, hard, total = lanes.post, lanes.base, lanes.gamma, lanes.r, lanes.hard, lanes.second
    width = r.shape[1]
    for v in range(len(graph.bit_starts) - 1):
        if not layered:
            for k in range(width):
                total[k] = base[v, k] + gamma[v, k] * (post[v, k] - base[v, k])
            for i in range(graph.bit_starts[v], graph.bit_starts[v + 1]):
                e = graph.bit_edges[i]
                for k in range(width):
                    total[k] += r[e, k]
            for k in range(width):
                post[v, k] = total[k]
        for k in range(width):
            hard[v, k] = post[v, k] < 0


@compiled
def _mark_wrong(graph: Graph, lanes: Lanes) -> None:
    """Mark the lanes whose word violates a check."""
    hard, wrong, parity = lanes.hard, lanes.wrong, lanes.parity
    width = hard.shape[1]
    wrong[:] = 0
    for c in range(len(graph.starts) - 1):
        for k in range(width):
            parity[k] = lanes.syndrome[c, k]
        for e in range(graph.starts[c], graph.starts[c + 1]):
            v = graph.bits[e]
            for k in range(width):
                parity[k] ^= hard[v, k]
        every = 1
        for k in range(width):
            wrong[k] |= parity[k]
            every &= wrong[k]
        if every:
            return


@compiled
def _take(graph: Graph, task: Task, lanes: Lanes, k: int, shot: int) -> None:
    """Give a shot to an idle lane."""
    lanes.shot[k], lanes.leg[k], lanes.step[k], lanes.total[k], lanes.found[k] = shot, 0, 0, 0, 0
    row, each = shot if len(task.llr) > 1 else 0, task.gammas.shape[1] > 1
    for v in range(len(lanes.post)):
        lanes.base[v, k] = task.llr[row, v]
        lanes.post[v, k] = task.llr[row, v]
        lanes.gamma[v, k] = task.gammas[0, v if each else 0]
    for e in range(len(graph.bits)):
        lanes.r[e, k] = 0
    if len(task.syndromes) > 0:
        for c in range(len(lanes.syndrome)):
            lanes.syndrome[c, k] = task.syndromes[shot, c]


@compiled
def _keep_word(lanes: Lanes, k: int) -> None:
    """Count a word that satisfies the checks, and keep it if it is the cheapest."""
    cost = 0.0
    for v in range(len(lanes.hard)):
        if lanes.hard[v, k]:
            cost += lanes.base[v, k]
    if lanes.found[k] == 0 or cost < lanes.cost[k]:
        lanes.cost[k] = cost
        for v in range(len(lanes.hard)):
            lanes.best[v, k] = lanes.hard[v, k]
    lanes.found[k] += 1


@compiled
def _next_leg(graph: Graph, task: Task, lanes: Lanes, k: int) -> None:
    """Start the messages anew from the prior; the posteriors of the leg that ended are remembered."""
    lanes.leg[k] += 1
    lanes.step[k] = 0
    for e in range(len(graph.bits)):
        v = graph.bits[e]
        lanes.r[e, k] = lanes.post[v, k] - lanes.base[v, k]
    each = task.gammas.shape[1] > 1
    for v in range(len(lanes.post)):
        lanes.gamma[v, k] = task.gammas[lanes.leg[k], v if each else 0]


@compiled
def _write(lanes: Lanes, k: int, results: Results) -> None:
    """Write the results of a finished shot, and leave its lane idle."""
    shot, found = lanes.shot[k], lanes.found[k] > 0
    for v in range(len(lanes.post)):
        results.words[shot, v] = lanes.best[v, k] if found else lanes.hard[v, k]
    if len(results.posterior) > 0:
        for v in range(len(lanes.post)):
            results.posterior[shot, v] = lanes.post[v, k]
    results.iterations[shot], results.converged[shot] = lanes.total[k], found
    lanes.shot[k] = -1


def decode_shots(graph: Graph, task: Task, results: Results, first: int, last: int) -> None:
    """Decode the shots ``first`` to ``last``."""
    lanes = make_lanes(graph, task, last - first)
    while _decode_lanes(graph, task, lanes, results, first, last):
        # the slowest shots are left: go on without the idle lanes
        busy, first = np.argsort(lanes.shot < 0, kind="stable"), last
        keep = busy[: max(_FEWEST_LANES, -(-np.count_nonzero(lanes.shot >= 0) // 8) * 8)]
        lanes = Lanes(*(np.ascontiguousarray(state[..., keep]) for state in lanes))


@compiled
def _decode_lanes(graph: Graph, task: Task, lanes: Lanes, results: Results, first: int, last: int) -> bool:
    """Decode until all shots are done, or, then true, until half of the lanes are idle for good."""
    width, busy = len(lanes.shot), 0
    for k in range(width):
        busy += lanes.shot[k] >= 0
    while True:
        for k in range(len(lanes.shot)):
            if lanes.shot[k] < 0 and first < last:
                _take(graph, task, lanes, k, first)
                first += 1
                busy += 1
        if busy == 0 or task.stop[0]:
            return False
        if first == last and 2 * busy <= width and width > _FEWEST_LANES:
            return True
        for k in range(len(lanes.shot)):
            lanes.scale[k] = task.scale if task.scale > 0 else 1 - 0.5 ** (lanes.step[k] + 1)
        for c in range(len(graph.starts) - 1):
            if task.sums:
                _sum_product(graph, lanes, c, task.most, task.layered)
            else:
                _min_sum(graph, lanes, c, task.offset, task.layered)
        _posteriors(graph, lanes, task.layered)
        _mark_wrong(graph, lanes)
        for k in range(len(lanes.shot)):
            if lanes.shot[k] < 0:
                continue
            lanes.step[k] += 1
            lanes.total[k] += 1
            if lanes.wrong[k] and lanes.step[k] < task.lengths[lanes.leg[k]]:
                continue
            if not lanes.wrong[k]:
                _keep_word(lanes, k)
            if lanes.found[k] < task.solutions and lanes.leg[k] + 1 < len(task.lengths):
                _next_leg(graph, task, lanes, k)
            else:
                _write(lanes, k, results)
                busy -= 1
