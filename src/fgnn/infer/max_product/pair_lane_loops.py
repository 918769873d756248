"""The loops of `pair_lanes`. Those over lanes are innermost and have no branches, so that they become vector code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

Array = NDArray[Any]

# Several vectors' worth, so that starting a loop costs little; a block of a small model fits the cache.
_LANES = 16


@compiled
def advance(
    messages: Array, unary: Array, gamma: Array, alpha: Array, beta: Array, rows: Array, belief_of: Array,
    models: Array, active: Array, converged: Array, done: Array, deltas: Array,
    rate: float, tolerance: float, iterations: int, steps: int,
) -> None:  # fmt: skip
    """``steps`` iterations of flooding for the active models; (Q, B) messages are log-ratios in and out."""
    count, pairs = messages.shape[1], rows.shape[0]
    beliefs = np.empty((unary.shape[0], _LANES))
    base = np.ones((unary.shape[0], _LANES))
    ratios = np.ones((messages.shape[0], _LANES))
    g, a, b = np.ones((2, pairs, _LANES)), np.ones((2, pairs, _LANES)), np.ones((2, pairs, _LANES))
    highest, lowest, share = np.empty(_LANES), np.empty(_LANES), np.empty(_LANES)
    for start in range(0, count, _LANES):
        width = min(_LANES, count - start)
        if not active[start : start + width].any():
            continue
        for i in range(unary.shape[0]):
            for lane in range(width):
                base[i, lane] = math.exp(unary[i, start + lane])
        for q in range(messages.shape[0]):
            for lane in range(width):
                ratios[q, lane] = math.exp(messages[q, start + lane])
        for axis in range(2):
            for c in range(pairs):
                for lane in range(width):
                    at = start + lane if gamma.shape[2] > 1 else 0
                    g[axis, c, lane] = math.exp(gamma[axis, c, at])
                    a[axis, c, lane] = alpha[axis, c, at]
                    b[axis, c, lane] = beta[axis, c, at]
        for _ in range(steps):
            going = False
            for lane in range(_LANES):
                moving = lane < width and active[start + lane]
                share[lane] = 1.0 if moving else 0.0
                going = going or moving
            if not going:
                break
            _sweep(ratios, base, beliefs, g, a, b, rows, belief_of, share, rate, highest, lowest)
            for lane in range(width):
                k = start + lane
                if active[k]:
                    change = max(math.log(highest[lane]), -math.log(lowest[lane]))
                    deltas[done[k], models[k]] = change
                    done[k] += 1
                    converged[k] = not change > tolerance
                    active[k] = change > tolerance and done[k] < iterations
        for q in range(messages.shape[0]):
            for lane in range(width):
                messages[q, start + lane] = math.log(ratios[q, lane])


@compiled
def _sweep(
    ratios: Array, base: Array, beliefs: Array, g: Array, a: Array, b: Array, rows: Array, belief_of: Array,
    share: Array, rate: float, highest: Array, lowest: Array,
) -> None:  # fmt: skip
    """One iteration; ``highest`` and ``lowest`` receive the extreme quotients of new and old ratios."""
    beliefs[:] = base
    highest[:] = 1.0
    lowest[:] = 1.0
    for q in range(ratios.shape[0]):
        i = belief_of[q]
        for lane in range(_LANES):
            beliefs[i, lane] *= ratios[q, lane]
    for c in range(rows.shape[0]):
        p, q = rows[c, 0], rows[c, 1]
        i, j = belief_of[p], belief_of[q]
        for lane in range(_LANES):
            first, second = ratios[p, lane], ratios[q, lane]
            from_first, from_second = beliefs[i, lane] / first, beliefs[j, lane] / second
            to_first = (
                g[0, c, lane] * (1.0 + a[0, c, lane] * from_second) / (first + first * b[0, c, lane] * from_second)
            )
            to_second = (
                g[1, c, lane] * (1.0 + a[1, c, lane] * from_first) / (second + second * b[1, c, lane] * from_first)
            )
            high, low = highest[lane], lowest[lane]
            high = to_first if to_first > high else high
            high = to_second if to_second > high else high
            low = to_first if to_first < low else low
            low = to_second if to_second < low else low
            highest[lane], lowest[lane] = high, low
            if rate == 0.5:
                ratios[p, lane] = first + share[lane] * (first * math.sqrt(to_first) - first)
                ratios[q, lane] = second + share[lane] * (second * math.sqrt(to_second) - second)
            else:
                ratios[p, lane] = first + share[lane] * (first * to_first**rate - first)
                ratios[q, lane] = second + share[lane] * (second * to_second**rate - second)
