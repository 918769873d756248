r"""Budgets over many variables as running sums instead of cliques.

A budget over n variables connects them all, and may have too many feasible states to list. Counting along the
elimination tree of the rest of the model is far cheaper: an auxiliary variable :math:`c_v` is the number of ones (or
zeros) among the budget's variables below v, :math:`c_v = x_v + \sum_{u \text{ child of } v} c_u`, added two terms at a
time. Only the total is compared with the bounds. Counts above the upper bound are left out; if there is only a lower
bound, all counts from it on are one state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.buckets import Bucket, make_buckets
from fgnn.infer.exact.estimate import LIST_SHARE, Size, estimate, log2_choices
from fgnn.infer.exact.order import Order, graph_of, min_fill, product_measure
from fgnn.infer.exact.problem import Limit, Problem, Relation

# Thresholds on log2 of a budget's feasible states up to which it is a clique, tried in this order.
_THRESHOLDS = (22.0, 12.0, 7.0, -1.0)
_WIDEST_CLIQUE = 128


@dataclass(frozen=True, eq=False)
class Choice:
    """A problem whose budgets are cliques or counters, with an order and the sizes of its steps."""

    problem: Problem
    order: Order
    buckets: list[Bucket]
    sizes: list[Size]

    @property
    def cost(self) -> float:
        """An upper bound on the joint states of all steps."""
        return float(sum(2.0 ** min(size.states, 1000.0) for size in self.sizes))


def choose_counters(
    problem: Problem,
    order: Callable[[Problem], Order],
    check: Callable[[], None] = lambda: None,
    list_share: float = LIST_SHARE,
) -> Choice:
    """The cheapest choice of budgets, by number of feasible states, to turn into counters.

    ``order`` finds an elimination order. ``check`` is called now and then and may raise. ``list_share`` is as for
    `build_plan`.
    """
    best: Choice | None = None
    tried: set[tuple[int, ...]] = set()
    for threshold in _THRESHOLDS:
        counted = tuple(
            c
            for c, limit in enumerate(problem.limits)
            if len(limit.scope) > _WIDEST_CLIQUE or log2_choices(len(limit.scope), limit.lower, limit.upper) > threshold
        )
        if counted in tried:
            continue
        tried.add(counted)
        tree = _tree_without(problem, counted) if counted else None
        if best is not None and tree is not None and _rough_cost(problem, counted, tree) > best.cost / 2:
            continue
        other = problem if tree is None else _with_counters(problem, counted, tree)
        elimination = order(other)
        buckets = make_buckets(other, elimination, check)
        choice = Choice(other, elimination, buckets, estimate(other, buckets, check, list_share))
        best = choice if best is None or choice.cost < best.cost else best
    assert best is not None
    return best


# ---- the elimination tree without these budgets ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Tree:
    """The position of each variable in the order, its parent (-1: none), and log2 of the states of its step."""

    place: dict[int, int]
    parent: list[int]
    bits: list[float]


def _tree_without(problem: Problem, counted: Sequence[int]) -> _Tree:
    left_out = set(counted)
    scopes = [r.scope for r in problem.relations]
    scopes += [limit.scope for c, limit in enumerate(problem.limits) if c not in left_out]
    count, measure = len(problem.cardinalities), product_measure(problem.cardinalities)
    order = min_fill(graph_of(count, scopes))
    place = {v: t for t, v in enumerate(order.sequence)}
    parent, bits = [-1] * count, [0.0] * count
    for v, near in zip(order.sequence, order.cliques, strict=True):
        parent[v] = min(near, key=place.__getitem__, default=-1)
        bits[v] = measure(v, near)
    return _Tree(place, parent, bits)


def _upwards(tree: _Tree, scope: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The variables of a scope and those above them until their paths meet, in order, and their parents (-1: end)."""
    queued = set(scope)
    heap = [(tree.place[i], i) for i in scope]
    heapify(heap)
    while heap:
        _, v = heappop(heap)
        parent = tree.parent[v] if heap else -1
        if parent >= 0 and parent not in queued:
            queued.add(parent)
            heappush(heap, (tree.place[parent], parent))
        yield v, parent


def _rough_cost(problem: Problem, counted: Sequence[int], tree: _Tree) -> float:
    """The states of all steps if every counter were part of each step on its way up the tree."""
    bits = list(tree.bits)
    for c in counted:
        limit = problem.limits[c]
        states = math.log2(_Counting.of(limit).cap + 1)
        for v, _ in _upwards(tree, limit.scope):
            bits[v] += states
    return float(sum(2.0 ** min(b, 1000.0) for b in bits))


# ---- counters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counting:
    """How a budget is counted: zeros or ones, up to ``cap``; higher counts are left out, or merged if ``saturates``."""

    zeros: bool
    cap: int
    saturates: bool
    lower: int
    upper: int

    @classmethod
    def of(cls, limit: Limit) -> _Counting:
        n = len(limit.scope)
        if not limit.shared:  # bounds differ between models, so every count matters
            return cls(False, limit.upper, False, limit.lower, limit.upper)

        def count(zeros: bool, lower: int, upper: int) -> _Counting:
            return cls(zeros, lower, True, lower, lower) if upper >= n else cls(zeros, upper, False, lower, upper)

        ones = count(False, limit.lower, limit.upper)
        zeros = count(True, n - limit.upper, n - limit.lower)
        return zeros if zeros.cap < ones.cap else ones


@dataclass(frozen=True)
class _Sum:
    """A variable whose state is a count over ``covered`` of the budget's variables, in reverse if ``flipped``."""

    variable: int
    states: int
    covered: int
    flipped: bool


def _with_counters(problem: Problem, counted: Sequence[int], tree: _Tree) -> Problem:
    cards = list(problem.cardinalities)
    relations = list(problem.relations)
    for c in counted:
        _count(problem.limits[c], tree, cards, relations)
    left_out = set(counted)
    limits = tuple(limit for c, limit in enumerate(problem.limits) if c not in left_out)
    return replace(problem, cardinalities=tuple(cards), relations=tuple(relations), limits=limits)


def _count(limit: Limit, tree: _Tree, cards: list[int], relations: list[Relation]) -> None:
    """Add up the variables of a budget along the tree, from the leaves, then over the roots."""
    counting = _Counting.of(limit)
    waiting = {i: [_Sum(i, 2, 1, counting.zeros)] for i in limit.scope}  # by variable; -1: the sums of the roots
    for v, parent in _upwards(tree, limit.scope):
        total = _add_up(waiting.pop(v), counting, limit, cards, relations)
        waiting.setdefault(parent, []).append(total)
    total = _add_up(waiting[-1], counting, limit, cards, relations)
    values = _values(total)
    allowed = (values >= counting.lower) & (values <= counting.upper)
    source, cells = (None, None) if limit.shared else (limit.source, values + limit.offset)
    relations.append(Relation((total.variable,), allowed, source, cells))


def _add_up(terms: list[_Sum], counting: _Counting, limit: Limit, cards: list[int], relations: list[Relation]) -> _Sum:
    """A variable that is the sum of ``terms``, with the relations that make it so."""
    total = terms[0]
    for other in terms[1:]:
        covered = total.covered + other.covered
        states = min(counting.cap, covered) + 1
        sums = _values(total)[:, None] + _values(other)[None, :]
        sums = np.minimum(sums, counting.cap) if counting.saturates else sums
        # Below this count, the remaining variables cannot reach the lower bound.
        least = counting.lower - (len(limit.scope) - covered)
        allowed = (sums[..., None] == np.arange(states)) & (np.arange(states) >= least)
        fresh = _Sum(len(cards), states, covered, False)
        cards.append(states)
        relations.append(Relation((total.variable, other.variable, fresh.variable), allowed, None, None))
        total = fresh
    return total


def _values(total: _Sum) -> NDArray[np.int64]:
    """The count that each state of a partial sum represents."""
    values = np.arange(total.states)
    return values[::-1] if total.flipped else values
