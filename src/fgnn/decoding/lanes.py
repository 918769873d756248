"""Belief propagation on a CPU: shots side by side, one in each lane of the vector unit.

A lane whose shot is finished takes the next one at once, so no lane waits for the slowest. The loops over lanes are the
innermost ones and have no branches, which lets LLVM turn them into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.jit import compiled

Array = NDArray[Any]

# A check of one bit is certain about it; a larger value would lose the fraction of other messages in float32.
CERTAIN = 1e4


# Several vectors' worth, so that the start of a loop costs little beside it.
_MOST_LANES = 64


def lanes_for(shots: int) -> int:
    """The number of lanes for this many shots: as many, but no more than pay."""
    return min(_MOST_LANES, max(8, -(-shots // 8) * 8))


@compiled
def _min_sum_check(
    a: int,
    b: int,
    bits: Array,
    post: Array,
    r: Array,
    sign: Array,
    least: Array,
    second: Array,
    scale: Array,
    offset: float,
    layered: bool,
) -> None:
    """Update the messages of one check; each is the smallest of the others, with the sign of their product.

    ``r`` holds the messages from the check and, between the two loops, those towards it.
    """
    lanes = r.shape[1]
    for lane in range(lanes):
        least[lane] = CERTAIN
        second[lane] = CERTAIN
    for e in range(a, b):
        v = bits[e]
        for lane in range(lanes):
            q = post[v, lane] - r[e, lane]
            r[e, lane] = q
            size = abs(q)
            second[lane] = min(second[lane], max(least[lane], size))
            least[lane] = min(least[lane], size)
            sign[lane] = -sign[lane] if q < 0 else sign[lane]
    for e in range(a, b):
        v = bits[e]
        for lane in range(lanes):
            q = r[e, lane]
            size = second[lane] if abs(q) == least[lane] else least[lane]
            size = scale[lane] * max(size - offset, r.dtype.type(0))
            negative = (q < 0) != (sign[lane] < 0)
            message = -size if negative else size
            r[e, lane] = message
            if layered:
                post[v, lane] = q + message


@compiled
def _sum_product_check(
    a: int,
    b: int,
    bits: Array,
    post: Array,
    r: Array,
    before: Array,
    tanh: Array,
    after: Array,
    syn: Array,
    most: float,
    layered: bool,
) -> None:
    """Update the messages of one check; tanh(r/2) is the product of tanh(q/2) over the others."""
    lanes = r.shape[1]
    one = r.dtype.type(1)
    for lane in range(lanes):
        after[lane] = one - 2 * syn[lane]
    for e in range(a, b):
        v = bits[e]
        for lane in range(lanes):
            q = post[v, lane] - r[e, lane]
            before[e - a, lane] = after[lane]
            r[e, lane] = q
            tanh[e - a, lane] = np.tanh(q / 2)
            after[lane] *= tanh[e - a, lane]
    for lane in range(lanes):
        after[lane] = one
    for e in range(b - 1, a - 1, -1):
        v = bits[e]
        for lane in range(lanes):
            q = r[e, lane]
            p = before[e - a, lane] * after[lane]
            p = min(max(p, -most), most)
            message = np.log1p(p) - np.log1p(-p)
            after[lane] *= tanh[e - a, lane]
            r[e, lane] = message
            if layered:
                post[v, lane] = q + message


@compiled
def _bits_pass(
    starts: Array,
    edges: Array,
    base: Array,
    gamma: Array,
    post: Array,
    r: Array,
    hard: Array,
    layered: bool,
    total: Array,
) -> None:
    """Posterior of every bit: its (remembered) prior and the messages of its checks."""
    lanes = r.shape[1]
    for v in range(len(starts) - 1):
        if not layered:
            for lane in range(lanes):
                total[lane] = base[v, lane] + gamma[v, lane] * (post[v, lane] - base[v, lane])
            for k in range(starts[v], starts[v + 1]):
                e = edges[k]
                for lane in range(lanes):
                    total[lane] += r[e, lane]
            for lane in range(lanes):
                post[v, lane] = total[lane]
        for lane in range(lanes):
            hard[v, lane] = post[v, lane] < 0


@compiled
def _violated(starts: Array, bits: Array, hard: Array, syn: Array, wrong: Array, parity: Array) -> None:
    """Mark the lanes whose word violates a check."""
    lanes = hard.shape[1]
    for lane in range(lanes):
        wrong[lane] = 0
    for c in range(len(starts) - 1):
        for lane in range(lanes):
            parity[lane] = syn[c, lane]
        for e in range(starts[c], starts[c + 1]):
            v = bits[e]
            for lane in range(lanes):
                parity[lane] ^= hard[v, lane]
        both = 1
        for lane in range(lanes):
            wrong[lane] |= parity[lane]
            both &= wrong[lane]
        if both:
            return


@compiled
def decode_lanes(
    starts: Array,
    bits: Array,
    bit_starts: Array,
    bit_edges: Array,
    llr: Array,
    syndromes: Array,
    gammas: Array,
    lengths: Array,
    rule: int,
    scale: float,
    offset: float,
    solutions: int,
    layered: bool,
    most: float,
    stop: Array,
    lanes: int,
    first: int,
    last: int,
    words: Array,
    post_out: Array,
    iterations: Array,
    converged: Array,
) -> None:
    """Decode the shots ``first`` to ``last``, ``lanes`` at a time; `Schedule` explains legs and solutions.

    Args:
        llr: Priors, of all shots (one row) or of each.  # shape: (1 or B, bits)
        gammas: Memory of every bit in each leg, or one column for all bits.  # shape: (legs, 1 or bits)
        lengths: Iterations of each leg.
        rule: 0 min-sum, 1 sum-product.
        most: The largest product of tanh; 1 would be infinite.
        stop: A flag that another thread may set to end early.
    """
    n, m = len(bit_starts) - 1, len(starts) - 1
    kind = llr.dtype
    post, base = np.zeros((n, lanes), kind), np.zeros((n, lanes), kind)
    gamma = np.zeros((n, lanes), kind)
    r = np.zeros((len(bits), lanes), kind)
    hard, best = np.zeros((n, lanes), np.uint8), np.zeros((n, lanes), np.uint8)
    syn = np.zeros((m, lanes), np.uint8)
    sign, least, second = np.zeros(lanes, kind), np.zeros(lanes, kind), np.zeros(lanes, kind)
    scales, wrong, parity = np.zeros(lanes, kind), np.zeros(lanes, np.uint8), np.zeros(lanes, np.uint8)
    degree = 0
    for c in range(m):
        degree = max(degree, starts[c + 1] - starts[c])
    before = np.zeros((degree if rule == 1 else 1, lanes), kind)
    tanh = np.zeros_like(before)
    shot = np.full(lanes, -1, np.int64)
    leg, step, total = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    found, weight = np.zeros(lanes, np.int64), np.zeros(lanes, np.float64)
    queue, busy = first, 0
    for lane in range(lanes):
        wrong[lane] = 0
    while True:
        # idle lanes take the next shots
        for lane in range(lanes):
            if shot[lane] < 0 and queue < last:
                s = queue
                queue += 1
                busy += 1
                shot[lane], leg[lane], step[lane], total[lane], found[lane] = s, 0, 0, 0, 0
                row = s if len(llr) > 1 else 0
                for v in range(n):
                    base[v, lane] = llr[row, v]
                    post[v, lane] = llr[row, v]
                    gamma[v, lane] = gammas[0, v if gammas.shape[1] > 1 else 0]
                for e in range(len(bits)):
                    r[e, lane] = 0
                if len(syndromes) > 0:
                    for c in range(m):
                        syn[c, lane] = syndromes[s, c]
        if busy == 0 or stop[0]:
            return
        for lane in range(lanes):
            scales[lane] = scale if scale > 0 else 1 - 0.5 ** (step[lane] + 1)
        for c in range(m):
            if rule == 0:
                for lane in range(lanes):
                    sign[lane] = 1 - 2 * kind.type(syn[c, lane])
                _min_sum_check(starts[c], starts[c + 1], bits, post, r, sign, least, second, scales, offset, layered)
            else:
                _sum_product_check(starts[c], starts[c + 1], bits, post, r, before, tanh, least, syn[c], most, layered)
        _bits_pass(bit_starts, bit_edges, base, gamma, post, r, hard, layered, second)
        _violated(starts, bits, hard, syn, wrong, parity)
        for lane in range(lanes):
            s = shot[lane]
            if s < 0:
                continue
            step[lane] += 1
            total[lane] += 1
            if wrong[lane] and step[lane] < lengths[leg[lane]]:
                continue
            if not wrong[lane]:
                cost = 0.0
                for v in range(n):
                    if hard[v, lane]:
                        cost += base[v, lane]
                if found[lane] == 0 or cost < weight[lane]:
                    weight[lane] = cost
                    for v in range(n):
                        best[v, lane] = hard[v, lane]
                found[lane] += 1
            if found[lane] < solutions and leg[lane] + 1 < len(lengths):
                # the next leg starts from the prior, and remembers the posteriors of this one
                leg[lane] += 1
                step[lane] = 0
                for e in range(len(bits)):
                    r[e, lane] = post[bits[e], lane] - base[bits[e], lane]
                for v in range(n):
                    gamma[v, lane] = gammas[leg[lane], v if gammas.shape[1] > 1 else 0]
                continue
            for v in range(n):
                words[s, v] = best[v, lane] if found[lane] > 0 else hard[v, lane]
            if len(post_out) > 0:
                for v in range(n):
                    post_out[s, v] = post[v, lane]
            iterations[s], converged[s] = total[lane], found[lane] > 0
            shot[lane] = -1
            busy -= 1
