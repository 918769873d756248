"""Upper bounds on the states of each step, by counting, before any list is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.buckets import Bucket
from fgnn.infer.exact.order import Measure, product_measure
from fgnn.infer.exact.problem import Limit, Problem, Relation, Sums, Weights, ones
from fgnn.infer.exact.ways import log2_choices, log2_completions, log2_within

# A step uses an explicit list if that has at most this share (log2) of all joint states, or if these are few (log2).
LIST_SHARE = -2.0
_LIST_ALWAYS = 16.0
# Lists are indexed choice by choice, so a variable of more states than this is not worth one.
_LIST_CHOICES = 1 << 12


@dataclass(frozen=True)
class Size:
    """log2 of the joint states of a step: all of them, and bounds on the feasible ones and on those of its result."""

    product: float
    joint: float
    message: float
    listed: bool  # whether the step uses a list of feasible states rather than a full table

    @property
    def states(self) -> float:
        """log2 of the joint states that the step maximises over."""
        return self.joint if self.listed else self.product


class _Allowed:
    """The allowed joint states of a relation: how many states of some axes go with one state of others."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self._bits: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def bits(self, axes: tuple[int, ...], given: tuple[int, ...]) -> float:
        """log2 of the largest number of states of ``axes`` over all states of the axes ``given``."""
        key = (axes, given)
        if key not in self._bits:
            rows, allowed = self.relation.rows, self.relation.allowed
            if rows is not None:
                most = _most_rows(rows, axes, given)
            else:
                assert allowed is not None
                others = tuple(a for a in range(allowed.ndim) if a not in axes and a not in given)
                some = np.asarray(allowed.any(axis=others, keepdims=True))
                most = int(some.sum(axis=axes, keepdims=True).max())
            self._bits[key] = math.log2(max(1, most))
        return self._bits[key]


def _most_rows(rows: NDArray[np.int32], axes: tuple[int, ...], given: tuple[int, ...]) -> int:
    """The largest number of distinct states of ``axes`` in rows that agree on the axes ``given``."""
    if not len(rows):
        return 0
    sizes = rows.max(0).astype(np.int64) + 1
    groups = _numbered(rows, given, sizes)
    distinct = np.unique(groups * int(np.prod(sizes[list(axes)])) + _numbered(rows, axes, sizes), return_index=True)[1]
    return int(np.unique(groups[distinct], return_counts=True)[1].max())


def _numbered(rows: NDArray[np.int32], axes: tuple[int, ...], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    number = np.zeros(len(rows), dtype=np.int64)
    for a in axes:
        number = number * sizes[a] + rows[:, a]
    return number


# Each constraint limits the joint states of the positions in its ``mask``: ``bits(positions, given)`` is log2 of a
# bound on the states of ``positions`` for any one state of the positions ``given``.


@dataclass(frozen=True)
class _ListConstraint:
    """The list of an earlier step."""

    mask: int
    length: float  # log2

    def bits(self, positions: int, given: int) -> float:
        return self.length


@dataclass(frozen=True)
class _OnesConstraint:
    """The number of ones among ``size`` variables, of which those in ``mask`` are in the scope, is within bounds."""

    mask: int
    size: int
    lower: int
    upper: int

    def bits(self, positions: int, given: int) -> float:
        present = positions.bit_count()
        return log2_choices(present, self.lower - (self.size - present), self.upper)


@dataclass(frozen=True)
class _SumConstraint:
    """A sum over variables of which those at ``places`` are in the scope; ``complete`` if these are all."""

    mask: int
    places: tuple[int, ...]
    weights: Weights
    total: int
    sums: Sums
    complete: bool

    def bits(self, positions: int, given: int) -> float:
        weights = tuple(w for p, w in zip(self.places, self.weights, strict=True) if positions >> p & 1)
        modulus = self.sums.modulus
        if self.complete and positions | given == self.mask and (modulus or not given):
            return log2_completions(weights, self.sums, modulus if given else 0)
        return log2_within(weights, self.sums.lower - self.total + sum(map(max, weights)), self.sums.upper)


@dataclass(frozen=True)
class _TableConstraint:
    """A table with forbidden entries; ``places`` are the positions of its axes."""

    mask: int
    places: tuple[int, ...]
    table: _Allowed

    def bits(self, positions: int, given: int) -> float:
        return self.table.bits(self._axes(positions), self._axes(given))

    def _axes(self, mask: int) -> tuple[int, ...]:
        return tuple(a for a, place in enumerate(self.places) if mask >> place & 1)


_Constraint = _ListConstraint | _OnesConstraint | _SumConstraint | _TableConstraint


def _counted(places: tuple[int, ...], weights: Weights | None, total: int, sums: Sums, complete: bool) -> _Constraint:
    if weights is None and sums.allowed is None:
        return _OnesConstraint(_mask(places), total, sums.lower, sums.upper)
    return _SumConstraint(_mask(places), places, weights or ones(len(places)), total, sums, complete)


def estimate(
    problem: Problem,
    buckets: Sequence[Bucket],
    check: Callable[[], None] = lambda: None,
    list_share: float = LIST_SHARE,
) -> list[Size]:
    """The sizes of all steps. Similar steps are counted once. ``check`` is called before each and may raise."""
    tables = _tables(problem)
    sizes: list[Size] = []
    known: dict[object, Size] = {}
    for bucket in buckets:
        check()
        constraints: list[_Constraint] = [
            _counted(u.places, u.weights, u.total, u.sums, u.limit is not None) for u in bucket.limits if u.prunes
        ]
        for r, places in zip(bucket.relations, bucket.relation_places, strict=True):
            if (table := tables[r]) is not None:
                constraints.append(_TableConstraint(_mask(places), places, table))
        for c, places in zip(bucket.children, bucket.child_places, strict=True):
            if sizes[c].listed:
                constraints.append(_ListConstraint(_mask(places), sizes[c].message))
        # Only a list can enforce a relation without numbers.
        needs_list = any(problem.relations[r].source is None for r in bucket.relations)
        key = (bucket.cardinalities, tuple(constraints), needs_list)
        if key not in known:
            known[key] = _size(bucket.cardinalities, constraints, needs_list, list_share)
        sizes.append(known[key])
    return sizes


def limit_measure(problem: Problem) -> Measure:
    """A bound on the states of a step from counters and running sums alone, to compare orders by."""
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
        constraints: list[_Constraint] = []
        for c, mask in masks.items():
            if c < len(problem.limits):
                constraints.append(_within(problem.limits[c], mask, at))
                continue
            r, terms = sums[c - len(problem.limits)]
            table = tables[r]
            if table is not None and mask.bit_count() == len(terms):
                constraints.append(_TableConstraint(mask, tuple(at[i] for i in terms), table))
        return _cover([math.log2(problem.cardinalities[i]) for i in scope], (1 << len(scope)) - 1, constraints)

    return measure


def _within(limit: Limit, mask: int, at: dict[int, int]) -> _Constraint:
    """The constraint of a counter on the variables in ``mask``, whose positions are ``at``."""
    if limit.weights is None and limit.sums.allowed is None:
        return _OnesConstraint(mask, len(limit.scope), limit.sums.lower, limit.sums.upper)
    weights = limit.weights or ones(len(limit.scope))
    present = [(at[i], w) for i, w in zip(limit.scope, weights, strict=True) if i in at]
    places, own = tuple(p for p, _ in present), tuple(w for _, w in present)
    return _SumConstraint(mask, places, own, limit.total, limit.sums, len(present) == len(limit.scope))


def _size(cardinalities: tuple[int, ...], constraints: list[_Constraint], needs_list: bool, list_share: float) -> Size:
    bits = [math.log2(k) for k in cardinalities]
    product = sum(bits)
    everything = (1 << len(bits)) - 1
    joint = _cover(bits, everything, constraints)
    message = min(joint, _cover(bits, everything & ~1, constraints))
    worth = bool(constraints) and cardinalities[0] <= _LIST_CHOICES
    listed = needs_list or (worth and (joint <= product + list_share or product <= _LIST_ALWAYS))
    return Size(product, joint, message if listed else product - bits[0], listed)


def _cover(bits: Sequence[float], todo: int, constraints: Sequence[_Constraint]) -> float:
    """Bound the joint states of the positions in ``todo`` by a product over constraints, the tightest first.

    Each constraint counts only the positions not counted before, given those: in a clique of equalities, all variables
    but the first add nothing.
    """
    binary = all(b == 1.0 for b in bits)

    def weight(mask: int) -> float:
        return float(mask.bit_count()) if binary else sum(b for p, b in enumerate(bits) if mask >> p & 1)

    total, counted = 0.0, 0
    left = [c for c in constraints if c.mask & todo]
    while left:
        gain, best, count = 1e-12, None, 0.0
        for c in left:
            bound = c.bits(c.mask & todo, c.mask & counted)
            saved = weight(c.mask & todo) - bound
            if saved > gain:
                gain, best, count = saved, c, bound
        if best is None:
            break
        total += count
        counted |= best.mask & todo
        todo &= ~best.mask
        left = [c for c in left if c.mask & todo]
    return total + weight(todo)


def _tables(problem: Problem) -> list[_Allowed | None]:
    """The allowed states of each relation, None if all are; equal tables are one object."""
    known: dict[tuple[tuple[int, ...], bytes], _Allowed] = {}
    cards = problem.cardinalities
    return [
        None if r.key is None else known.setdefault((tuple([cards[i] for i in r.scope]), r.key), _Allowed(r))
        for r in problem.relations
    ]


@lru_cache(maxsize=4096)
def _mask(places: tuple[int, ...]) -> int:
    return sum(1 << p for p in places)
