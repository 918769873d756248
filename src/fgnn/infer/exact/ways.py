"""How many joint states have a sum: bounds on the states of a step, and thresholds for counting instead of listing."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache, lru_cache, reduce
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.counted import add_variable
from fgnn.infer.exact.problem import Limit, Sums, Weights, ones

_TINY = 1e-300  # stands for shares that underflow
_FEW_SUMS = 512  # so many are worth keeping for every subset of a counter's variables


@cache
def log2_choices(count: int, lower: int, upper: int) -> float:
    """log2 of the number of ways to set between ``lower`` and ``upper`` of ``count`` binary variables."""
    lower, upper = max(0, lower), min(count, upper)
    if lower > upper:
        return 0.0
    if lower == 0 and upper == count:
        return float(count)
    if 2 * upper > count and 2 * lower > count:
        lower, upper = count - upper, count - lower
    return math.log2(sum(math.comb(count, j) for j in range(lower, upper + 1)))


def log2_states(limit: Limit) -> float:
    """log2 of the number of joint states that a counter allows, or of a bound on it."""
    if limit.weights is None and limit.sums.allowed is None:
        return log2_choices(len(limit.scope), limit.sums.lower, limit.sums.upper)
    return log2_completions(limit.weights or ones(len(limit.scope)), limit.sums, 0)


def log2_within(weights: Weights, lower: int, upper: int) -> float:
    """As `log2_choices`, for the sum of any weights."""
    share = _shares(tuple(sorted(weights)))[max(0, lower) : max(0, upper + 1)].sum()
    return max(0.0, _bits(weights) + math.log2(max(float(share), _TINY)))


def log2_completions(weights: Weights, sums: Sums, rest: int) -> float:
    """log2 of the joint states of variables that complete an allowed sum, for the worst sum, up to ``rest``, of the
    counter's other variables."""
    share = _shares(tuple(sorted(weights)))
    every = np.arange(len(share))
    shifts = range(min(rest + 1, sums.modulus or rest + 1))
    best = max(float(share[fits(sums, every + shift)].sum()) for shift in shifts)
    return max(0.0, _bits(weights) + math.log2(max(best, _TINY)))


def fits(sums: Sums, values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether sums, or their residues, are allowed."""
    if not sums.modulus:
        return sums.allow(values)
    if sums.allowed is None:
        return np.ones(values.shape, dtype=np.bool_)
    return np.frombuffer(sums.allowed, dtype=np.bool_)[sums.entries(values)]


def _bits(weights: Weights) -> float:
    return sum(math.log2(len(w)) for w in weights)


@lru_cache(maxsize=64)
def _shares(weights: Weights) -> NDArray[np.float64]:
    """The share of the joint states that has each sum; their number may exceed the range of a float."""
    reach = list(accumulate(map(max, weights)))
    few = bisect_right(reach, _FEW_SUMS)
    return reduce(add_variable, weights[few:], _few_shares(weights[:few]))


@lru_cache(maxsize=1 << 12)
def _few_shares(weights: Weights) -> NDArray[np.float64]:
    """`_shares` by one more variable at a time: orders are compared by many counters that differ in a few."""
    return add_variable(_few_shares(weights[:-1]), weights[-1]) if weights else np.ones(1)
