"""How many states a step can have, from counts alone: an upper bound found before any list is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from fgnn.infer.elimination.buckets import Bucket
from fgnn.infer.elimination.order import Measure, product_measure
from fgnn.infer.elimination.problem import Problem

# A step keeps an explicit list where that has at most this share of all joint states (log2), or all are few (log2).
_LIST_SHARE = -2.0
_LIST_ALWAYS = 16.0


@dataclass(frozen=True)
class Size:
    """log2 of a step's joint states: all of them, a bound on the feasible ones, and one on those of its result."""

    product: float
    joint: float
    message: float
    listed: bool  # whether the step keeps a list of feasible states rather than a full table

    @property
    def states(self) -> float:
        """log2 of the joint states the step goes through."""
        return self.joint if self.listed else self.product


@dataclass(frozen=True)
class _Part:
    """A set of positions with a bound on the states it can be in."""

    mask: int
    bits: float  # log2 of the bound
    limit: tuple[int, int, int] | None = (
        None  # (size, lower, upper) of a budget, whose subsets have bounds of their own
    )


def estimate(problem: Problem, buckets: Sequence[Bucket]) -> list[Size]:
    """The sizes of all steps. Steps that look alike are counted once."""
    sizes: list[Size] = []
    seen: dict[object, Size] = {}
    for bucket in buckets:
        parts = [
            _limit_part(limit.places, limit.size, limit.lower, limit.upper) for limit in bucket.limits if limit.prunes
        ]
        for r, places in zip(bucket.relations, bucket.relation_places, strict=True):
            allowed = problem.relations[r].allowed
            if allowed is not None:
                parts.append(_Part(_mask(places), math.log2(max(1, int(np.count_nonzero(allowed))))))
        for c, places in zip(bucket.children, bucket.child_places, strict=True):
            if sizes[c].listed:
                parts.append(_Part(_mask(places), sizes[c].message))
        # A relation without numbers can only be enforced by a list.
        must = any(problem.relations[r].source is None for r in bucket.relations)
        key = (bucket.cardinalities, tuple(parts), must)
        if key not in seen:
            seen[key] = _size(bucket.cardinalities, parts, must)
        sizes.append(seen[key])
    return sizes


def limit_measure(problem: Problem) -> Measure:
    """The bound on a step's states that budgets and sums alone give, for the comparison of orders."""
    sums = [relation for relation in problem.relations if relation.source is None and relation.allowed is not None]
    if not problem.limits and not sums:
        return product_measure(problem.cardinalities)
    sum_bits = [math.log2(max(1, int(np.count_nonzero(relation.allowed)))) for relation in sums]
    holding: list[list[int]] = [[] for _ in problem.cardinalities]
    for c, factor in enumerate([*problem.limits, *sums]):
        for i in factor.scope:
            holding[i].append(c)

    def measure(vertex: int, near: Iterable[int]) -> float:
        scope = [vertex, *near]
        masks: dict[int, int] = {}
        for p, i in enumerate(scope):
            for c in holding[i]:
                masks[c] = masks.get(c, 0) | (1 << p)
        parts = []
        for c, mask in masks.items():
            if c < len(problem.limits):
                limit = problem.limits[c]
                parts.append(_Part(mask, 0.0, (len(limit.scope), limit.lower, limit.upper)))
            elif mask.bit_count() == len(sums[c - len(problem.limits)].scope):
                parts.append(_Part(mask, sum_bits[c - len(problem.limits)]))
        return _cover([math.log2(problem.cardinalities[i]) for i in scope], (1 << len(scope)) - 1, parts)

    return measure


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


def _size(cardinalities: tuple[int, ...], parts: list[_Part], must: bool) -> Size:
    bits = [math.log2(k) for k in cardinalities]
    product = sum(bits)
    everything = (1 << len(bits)) - 1
    joint = _cover(bits, everything, parts)
    message = min(joint, _cover(bits, everything & ~1, parts))
    listed = must or (bool(parts) and (joint <= product + _LIST_SHARE or product <= _LIST_ALWAYS))
    return Size(product, joint, message if listed else product - bits[0], listed)


def _cover(bits: Sequence[float], todo: int, parts: Sequence[_Part]) -> float:
    """Bound the joint states of the positions in ``todo`` by a product over parts, the most telling part first."""
    binary = all(b == 1.0 for b in bits)

    def weight(mask: int) -> float:
        return float(mask.bit_count()) if binary else sum(b for p, b in enumerate(bits) if mask >> p & 1)

    total = 0.0
    left = [part for part in parts if part.mask & todo]
    while left:
        gain, best, count = 0.0, None, 0.0
        for part in left:
            mask = part.mask & todo
            full = weight(mask)
            bound = part.bits
            if part.limit is not None:
                size, lower, upper = part.limit
                present = mask.bit_count()
                bound = log2_choices(present, lower - (size - present), upper)
            if full - bound > gain + 1e-12:
                gain, best, count = full - bound, part, bound
        if best is None:
            break
        total += count
        todo &= ~best.mask
        left = [part for part in left if part.mask & todo]
    return total + weight(todo)


@lru_cache(maxsize=4096)
def _limit_part(places: tuple[int, ...], size: int, lower: int, upper: int) -> _Part:
    present = log2_choices(len(places), lower - (size - len(places)), upper)
    return _Part(_mask(places), present, (size, lower, upper))


@lru_cache(maxsize=4096)
def _mask(places: tuple[int, ...]) -> int:
    mask = 0
    for p in places:
        mask |= 1 << p
    return mask
