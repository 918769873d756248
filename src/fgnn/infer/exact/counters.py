r"""Counters over many variables as running sums instead of cliques.

A counter over n variables connects them all, and may allow too many joint states to list. Adding up along the
elimination tree of the rest of the model is far cheaper: an auxiliary variable :math:`c_v` is the sum over the
counter's variables below v, :math:`c_v = w_v(x_v) + \sum_{u \text{ child of } v} c_u`, added two terms at a time.
Partial sums that the other variables cannot complete are left out, and those that they complete in the same ways are
one state. So a parity has two states, and all sums that a one-sided bound accepts have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from heapq import heapify, heappop, heappush
from operator import or_

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.buckets import Bucket, make_buckets
from fgnn.infer.exact.estimate import LIST_SHARE, Size, estimate, limit_measure
from fgnn.infer.exact.order import Graph, Order, along, graph_of, min_fill, product_measure
from fgnn.infer.exact.problem import Limit, Problem, Relation, ones
from fgnn.infer.exact.states import TooManyStates
from fgnn.infer.exact.ways import fits, log2_states

# Thresholds on log2 of the joint states that a counter allows up to which it is a clique, tried in this order.
_THRESHOLDS = (22.0, 12.0, 7.0, -1.0)
_MODULAR = 7.0  # at most this with a modulus, which excludes nothing before the last variable
_WIDEST_CLIQUE = 128
# An order along the sums that has at most this share of the states of min-fill's is taken without a search, as is one
# of few states: searches know nothing of what lists save.
_FAR, _EASY = 4.0, 2.0**20
_ROW_BYTES = 64  # of the memory for each joint state of two partial sums, which are listed in a quarter of it
_SOME = 1 << 10  # values between two looks at the clock
_MOST_MERGED = 512  # variables of a counter whose partial sums are compared one by one


def problem_graph(problem: Problem) -> Graph:
    """The graph in which the variables of a factor are connected."""
    scopes = [r.scope for r in problem.relations] + [m.scope for m in problem.limits]
    return graph_of(len(problem.cardinalities), scopes)


@dataclass(frozen=True, eq=False)
class Choice:
    """A problem whose counters are cliques or running sums, with an order and the sizes of its steps."""

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
    order: Callable[[Problem, bool], Order],
    check: Callable[[], None] = lambda: None,
    list_share: float = LIST_SHARE,
    memory: int = 4 << 30,
) -> Choice:
    """The cheapest choice of counters, by number of allowed joint states, to turn into running sums.

    ``order`` finds an elimination order, by a search if it is told to. ``check`` is called now and then and may raise.
    ``list_share`` and ``memory`` are as for `build_plan`. Raises `TooManyStates` if counters have too many sums.
    """

    def choice(problem: Problem, order: Order) -> Choice:
        buckets = make_buckets(problem, order, check)
        return Choice(problem, order, buckets, estimate(problem, buckets, check, list_share))

    def with_sums(counted: Sequence[int], tree: _Tree) -> tuple[Problem, Sequence[int]]:
        return _with_sums(problem, counted, tree, _Room(memory // _ROW_BYTES, check))

    best: Choice | None = None
    tried: set[tuple[int, ...]] = set()
    bits = [log2_states(limit) if len(limit.scope) <= _WIDEST_CLIQUE else math.inf for limit in problem.limits]
    bits = [math.inf if u.sums.modulus and b > _MODULAR else b for u, b in zip(problem.limits, bits, strict=True)]
    for threshold in _THRESHOLDS:
        counted = tuple([c for c, states in enumerate(bits) if states > threshold])
        if counted in tried:
            continue
        tried.add(counted)
        tree = _tree_without(problem, counted) if counted else None
        if best is not None and tree is not None and _rough_cost(problem, counted, tree) > best.cost / 2:
            continue
        try:
            other, sequence = (problem, []) if tree is None else with_sums(counted, tree)
            if any(problem.limits[c].sums.modulus for c in counted):
                other, sequence = _cheaper(other, sequence, *with_sums(counted, _tree_without(problem, ())))
        except TooManyStates:
            if best is None:
                raise
            break  # with more counters there are only more sums
        known = [] if best is None else [best]
        if all(problem.limits[c].weights is None and not problem.limits[c].sums.modulus for c in counted):
            choices = [choice(other, order(other, True))]
        else:
            choices = [choice(other, _order_along(other, sequence)), choice(other, order(other, False))]
            if choices[1].cost > _EASY and choices[0].cost * _FAR > choices[1].cost:
                choices.append(choice(other, order(other, True)))
        best = min(known + choices, key=lambda c: c.cost)
    assert best is not None
    return best


# ---- the elimination tree without these counters --------------------------------------------------------------------


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
    """The states of all steps if every running sum were part of each step on its way up the tree."""
    bits = list(tree.bits)
    for c in counted:
        limit = problem.limits[c]
        states = math.log2(_most_sums(limit))
        for v, _ in _upwards(tree, limit.scope):
            bits[v] += states
    return float(sum(2.0 ** min(b, 1000.0) for b in bits))


# ---- running sums ---------------------------------------------------------------------------------------------------


def _most_sums(limit: Limit) -> int:
    """About the states of a running sum."""
    apart = min(limit.sums.upper, limit.total - limit.sums.lower) + 1
    return limit.sums.modulus or min(apart, _accepting(limit))


def _accepting(limit: Limit) -> int:
    """About the states of a running sum if all sums that a one-sided bound accepts are one."""
    sums = limit.sums
    if not limit.plain or sums.allowed is not None or (sums.lower > 0 and sums.upper < limit.total):
        return limit.total + 1
    return (sums.lower if sums.lower > 0 else limit.total - sums.upper) + 1


@dataclass(frozen=True, eq=False)
class _Partial:
    """A variable that is a sum over the variables of the counter at the positions ``covered`` (bits)."""

    variable: int
    values: NDArray[np.int64]  # of each of its states: the sum, or an equivalent one
    covered: int
    reach: int  # the largest sum
    place: int  # in the order of the tree, of the last variable it covers


class _Room:
    """Joint states that the running sums of a problem may still list; ``check`` is called now and then."""

    def __init__(self, rows: int, check: Callable[[], None]) -> None:
        self.rows, self.check = rows, check
        self.taken = 0

    def take(self, rows: int) -> None:
        self.check()
        self.taken += rows
        if self.taken > self.rows:
            raise TooManyStates(self.taken)


def _with_sums(problem: Problem, counted: Sequence[int], tree: _Tree, room: _Room) -> tuple[Problem, Sequence[int]]:
    """The problem with these counters as running sums, and an order that eliminates each as soon as it is added."""
    cards = list(problem.cardinalities)
    relations = list(problem.relations)
    added = [tree.place[v] for v in range(len(cards))]  # the place at which each variable can go
    for c in counted:
        _RunningSum(problem.limits[c], cards, relations, added, room).add_along(tree)
    left_out = set(counted)
    limits = tuple(limit for c, limit in enumerate(problem.limits) if c not in left_out)
    counted_problem = replace(problem, cardinalities=tuple(cards), relations=tuple(relations), limits=limits)
    return counted_problem, sorted(range(len(cards)), key=lambda v: (added[v], v))


def _cheaper(
    one: Problem, one_order: Sequence[int], two: Problem, two_order: Sequence[int]
) -> tuple[Problem, Sequence[int]]:
    """Sums along the tree of the rest, or along that of all factors, which orders the variables of a code by its checks
    where nothing else does."""
    better = _order_along(two, two_order).cost < _order_along(one, one_order).cost
    return (two, two_order) if better else (one, one_order)


def _order_along(problem: Problem, sequence: Sequence[int]) -> Order:
    order = along(problem_graph(problem), sequence, limit_measure(problem))
    assert order is not None
    return order


class _RunningSum:
    """Appends the partial sums of a counter to the variables and relations of a problem."""

    def __init__(
        self, limit: Limit, cards: list[int], relations: list[Relation], added: list[int], room: _Room
    ) -> None:
        self.limit, self.cards, self.relations, self.added, self.room = limit, cards, relations, added, room
        self.everything = (1 << len(limit.scope)) - 1
        self.by_pattern = limit.plain and not limit.sums.modulus and len(limit.scope) <= _MOST_MERGED
        self.by_pattern = self.by_pattern and (limit.weights is not None or limit.sums.allowed is not None)
        # Two terms and a sum that stands for one sum determine each other, so merging must save more than that does.
        self.accepting = _accepting(limit) < min(limit.sums.upper, limit.total - limit.sums.lower) + 1

    def add_along(self, tree: _Tree) -> None:
        """Add up from the leaves of the tree, then over the roots."""
        limit = self.limit
        weights = limit.weights or ones(len(limit.scope))
        waiting: dict[int, list[_Partial]] = {-1: []}  # by variable; -1: the sums of the roots
        for p, (i, w) in enumerate(zip(limit.scope, weights, strict=True)):
            waiting[i] = [_Partial(i, np.array(w), 1 << p, max(w), tree.place[i])]
        for v, parent in _upwards(tree, limit.scope):
            terms = waiting.pop(v)
            whole = sum(term.covered for term in terms) == self.everything
            waiting.setdefault(parent, []).extend(terms if whole else [self._add_up(terms)])
        last = waiting[-1]
        self._compare(last if len(last) == 1 else [self._add_up(last[:-1]), last[-1]])

    def _add_up(self, terms: list[_Partial]) -> _Partial:
        """A variable that is the sum of ``terms``, with the relations that make it so."""
        total = terms[0]
        for other in terms[1:]:
            covered, reach = total.covered | other.covered, total.reach + other.reach
            self.room.take(len(total.values) * len(other.values))
            sums = self._merged(total.values[:, None] + other.values, covered, reach)
            possible = np.flatnonzero(sums >= 0)
            values, state = np.unique(sums.reshape(-1)[possible], return_inverse=True)
            values = values if len(values) else np.zeros(1, dtype=np.int64)  # nothing is allowed
            rows = np.stack([*np.divmod(possible, len(other.values)), state], 1).astype(np.int32)  # shape: (S, 3)
            fresh = _Partial(len(self.cards), values, covered, reach, self._use(total, other))
            self.cards.append(len(values))
            self.added.append(fresh.place)
            scope = total.variable, other.variable, fresh.variable
            self.relations.append(Relation(scope, None, None, None, rows))
            total = fresh
        return total

    def _use(self, *terms: _Partial) -> int:
        """Note that terms are added where the last of them is complete."""
        place = max(term.place for term in terms)
        for term in terms:
            self.added[term.variable] = max(self.added[term.variable], place)
        return place

    def _compare(self, terms: list[_Partial]) -> None:
        """Allow the totals of one or two terms that the counter allows, with their potentials."""
        limit = self.limit
        self._use(*terms)
        total = terms[0].values if len(terms) == 1 else terms[0].values[:, None] + terms[1].values
        allowed, scope = fits(limit.sums, total), tuple(term.variable for term in terms)
        source, cells = (None, None) if limit.plain else (limit.source, limit.sums.entries(total))
        self.relations.append(Relation(scope, allowed, source, cells))

    def _merged(self, sums: NDArray[np.int64], covered: int, reach: int) -> NDArray[np.int64]:
        """One sum for all that the variables not ``covered`` complete in the same ways, -1 if they cannot."""
        allowed, rest = self.limit.sums, self.limit.total - reach
        if allowed.modulus:
            return np.asarray(sums % allowed.modulus)
        if self.by_pattern:
            return self._by_pattern(sums, covered)
        possible = (sums <= allowed.upper) & (sums >= allowed.lower - rest)
        if self.accepting:
            safe = (sums >= allowed.lower) & (sums + rest <= allowed.upper)
            sums = np.where(safe, allowed.lower, sums)
        return np.where(possible, sums, -1)

    def _by_pattern(self, sums: NDArray[np.int64], covered: int) -> NDArray[np.int64]:
        """`_merged` by comparing the sums that complete an allowed one, as bits."""
        others = 1  # the sums of the other variables
        for p, weights in enumerate(self.limit.weights or ones(len(self.limit.scope))):
            if not covered >> p & 1:
                others = reduce(or_, (others << w for w in set(weights)))
        values, where = np.unique(sums, return_inverse=True)
        first: dict[int, int] = {0: -1}
        merged = []
        for start in range(0, len(values), _SOME):
            self.room.check()
            some = values[start : start + _SOME].tolist()
            merged += [first.setdefault((self._allowed >> v) & others, v) for v in some]
        return np.array(merged)[where].reshape(sums.shape)

    @cached_property
    def _allowed(self) -> int:
        """The allowed totals, as bits."""
        allowed = self.limit.sums.allow(np.arange(self.limit.total + 1))
        return int.from_bytes(np.packbits(allowed, bitorder="little").tobytes(), "little")
