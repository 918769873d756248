"""How many states a step can have, from counts alone: an upper bound found before any list is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.buckets import Bucket
from fgnn.infer.exact.order import Measure, product_measure
from fgnn.infer.exact.problem import Problem

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


class _Allowed:
    """A table of what is allowed, asked how many states some axes can have next to one state of others."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self.allowed = allowed
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def bits(self, fresh: tuple[int, ...], given: tuple[int, ...]) -> float:
        """log2 of the most states of the axes ``fresh`` that go with any one state of the axes ``given``."""
        key = (fresh, given)
        if key not in self._known:
            others = tuple(a for a in range(self.allowed.ndim) if a not in fresh and a not in given)
            some = np.asarray(self.allowed.any(axis=others, keepdims=True))
            self._known[key] = math.log2(max(1, int(some.sum(axis=fresh, keepdims=True).max())))
        return self._known[key]


# A part limits the joint states of the positions in its ``mask``: its ``bits(fresh, given)`` is log2 of a bound on the
# states of the positions ``fresh``, next to any one state of those in ``given``.


@dataclass(frozen=True)
class _ListPart:
    """A list that an earlier step makes."""

    mask: int
    length: float  # log2

    def bits(self, fresh: int, given: int) -> float:
        return self.length


@dataclass(frozen=True)
class _LimitPart:
    """A budget over ``size`` variables, of which those in ``mask`` are here."""

    mask: int
    size: int
    lower: int
    upper: int

    def bits(self, fresh: int, given: int) -> float:
        present = fresh.bit_count()
        return log2_choices(present, self.lower - (self.size - present), self.upper)


@dataclass(frozen=True)
class _TablePart:
    """A table with forbidden entries; ``places`` are the positions of its axes."""

    mask: int
    places: tuple[int, ...]
    table: _Allowed

    def bits(self, fresh: int, given: int) -> float:
        axes = range(len(self.places))
        return self.table.bits(
            tuple(a for a in axes if fresh >> self.places[a] & 1), tuple(a for a in axes if given >> self.places[a] & 1)
        )


_Part = _ListPart | _LimitPart | _TablePart


def estimate(problem: Problem, buckets: Sequence[Bucket]) -> list[Size]:
    """The sizes of all steps. Steps that look alike are counted once."""
    tables = _tables(problem)
    sizes: list[Size] = []
    seen: dict[object, Size] = {}
    for bucket in buckets:
        parts: list[_Part] = [
            _limit_part(limit.places, limit.size, limit.lower, limit.upper) for limit in bucket.limits if limit.prunes
        ]
        for r, places in zip(bucket.relations, bucket.relation_places, strict=True):
            if (table := tables[r]) is not None:
                parts.append(_TablePart(_mask(places), places, table))
        for c, places in zip(bucket.children, bucket.child_places, strict=True):
            if sizes[c].listed:
                parts.append(_ListPart(_mask(places), sizes[c].message))
        # A relation without numbers can only be enforced by a list.
        must = any(problem.relations[r].source is None for r in bucket.relations)
        key = (bucket.cardinalities, tuple(parts), must)
        if key not in seen:
            seen[key] = _size(bucket.cardinalities, parts, must)
        sizes.append(seen[key])
    return sizes


def limit_measure(problem: Problem) -> Measure:
    """The bound on a step's states that budgets and sums alone give, for the comparison of orders."""
    sums = [(r, relation.scope) for r, relation in enumerate(problem.relations) if relation.source is None]
    if not problem.limits and not sums:
        return product_measure(problem.cardinalities)
    tables = _tables(problem)
    holding: list[list[int]] = [[] for _ in problem.cardinalities]
    for c, scope in enumerate([limit.scope for limit in problem.limits] + [scope for _, scope in sums]):
        for i in scope:
            holding[i].append(c)

    def measure(vertex: int, near: Iterable[int]) -> float:
        scope = [vertex, *near]
        at = {i: p for p, i in enumerate(scope)}
        masks: dict[int, int] = {}
        for p, i in enumerate(scope):
            for c in holding[i]:
                masks[c] = masks.get(c, 0) | (1 << p)
        parts: list[_Part] = []
        for c, mask in masks.items():
            if c < len(problem.limits):
                limit = problem.limits[c]
                parts.append(_LimitPart(mask, len(limit.scope), limit.lower, limit.upper))
                continue
            r, summed = sums[c - len(problem.limits)]
            table = tables[r]
            if table is not None and mask.bit_count() == len(summed):
                parts.append(_TablePart(mask, tuple(at[i] for i in summed), table))
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
    """Bound the joint states of the positions in ``todo`` by a product over parts, the most telling part first.

    A part counts only what it adds to the positions counted before: each variable of a clique of equalities but the
    first adds nothing.
    """
    binary = all(b == 1.0 for b in bits)

    def weight(mask: int) -> float:
        return float(mask.bit_count()) if binary else sum(b for p, b in enumerate(bits) if mask >> p & 1)

    total, counted = 0.0, 0
    left = [part for part in parts if part.mask & todo]
    while left:
        gain, best, count = 1e-12, None, 0.0
        for part in left:
            bound = part.bits(part.mask & todo, part.mask & counted)
            saved = weight(part.mask & todo) - bound
            if saved > gain:
                gain, best, count = saved, part, bound
        if best is None:
            break
        total += count
        counted |= best.mask & todo
        todo &= ~best.mask
        left = [part for part in left if part.mask & todo]
    return total + weight(todo)


def _tables(problem: Problem) -> list[_Allowed | None]:
    """What each relation allows, None where it is everything; equal tables are one object."""
    known: dict[tuple[tuple[int, ...], bytes], _Allowed] = {}
    found: list[_Allowed | None] = []
    for relation in problem.relations:
        allowed = relation.allowed
        found.append(
            None if allowed is None else known.setdefault((allowed.shape, allowed.tobytes()), _Allowed(allowed))
        )
    return found


@lru_cache(maxsize=4096)
def _limit_part(places: tuple[int, ...], size: int, lower: int, upper: int) -> _Part:
    return _LimitPart(_mask(places), size, lower, upper)


@lru_cache(maxsize=4096)
def _mask(places: tuple[int, ...]) -> int:
    mask = 0
    for p in places:
        mask |= 1 << p
    return mask
