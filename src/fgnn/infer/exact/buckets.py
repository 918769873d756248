"""The steps of an elimination: which factors each adds up, by position, so that similar steps compare equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from fgnn.infer.exact.order import Order
from fgnn.infer.exact.problem import Problem, Sums, Weights, interval


@dataclass(frozen=True)
class LocalLimit:
    """A counter within one step: ``places`` are the positions in the step's scope of those of its variables that are in
    it; ``limit`` is its number if the step must enforce it, None if it only prunes by the bounds of its sums."""

    places: tuple[int, ...]
    weights: Weights | None  # by place; None: 0 and 1
    total: int  # the largest sum of all variables of the counter
    sums: Sums
    limit: int | None

    @property
    def reach(self) -> int:
        """The largest sum over ``places``."""
        return len(self.places) if self.weights is None else sum(map(max, self.weights))

    @property
    def prunes(self) -> bool:
        sums = self.sums
        return sums.upper < self.reach or sums.lower > self.total - self.reach or sums.allowed is not None


@dataclass(frozen=True)
class Bucket:
    """One step: add up all factors over ``scope[0]`` and take its best state, given the other variables.

    ``scope`` is in elimination order. ``relations`` and ``children`` (earlier steps whose results are inputs of this
    one) are numbers; ``relation_places`` and ``child_places`` are the positions of their variables in ``scope``.
    """

    scope: tuple[int, ...]
    cardinalities: tuple[int, ...]
    relations: tuple[int, ...]
    relation_places: tuple[tuple[int, ...], ...]
    children: tuple[int, ...]
    child_places: tuple[tuple[int, ...], ...]
    limits: tuple[LocalLimit, ...]


def make_buckets(problem: Problem, order: Order, check: Callable[[], None] = lambda: None) -> list[Bucket]:
    """One bucket per variable, in elimination order. ``check`` is called before each and may raise."""
    place = {v: t for t, v in enumerate(order.sequence)}
    relations: list[list[int]] = [[] for _ in order.sequence]
    for r, relation in enumerate(problem.relations):
        relations[min(place[i] for i in relation.scope)].append(r)
    first = [min(place[i] for i in limit.scope) for limit in problem.limits]
    limits_of: list[list[int]] = [[] for _ in problem.cardinalities]
    for c, limit in enumerate(problem.limits):
        for i in limit.scope:
            limits_of[i].append(c)
    children: list[list[int]] = [[] for _ in order.sequence]
    buckets: list[Bucket] = []
    for t, (v, near) in enumerate(zip(order.sequence, order.cliques, strict=True)):
        check()
        later = sorted(near, key=place.__getitem__)
        scope = (v, *later)
        at = {i: p for p, i in enumerate(scope)}
        buckets.append(
            Bucket(
                scope,
                tuple(problem.cardinalities[i] for i in scope),
                tuple(relations[t]),
                tuple(tuple(at[i] for i in problem.relations[r].scope) for r in relations[t]),
                tuple(children[t]),
                tuple(tuple(at[i] for i in buckets[c].scope[1:]) for c in children[t]),
                _limits_within(problem, scope, at, limits_of, first, t),
            )
        )
        if later:
            children[place[later[0]]].append(t)
    return buckets


def _limits_within(
    problem: Problem,
    scope: Sequence[int],
    at: dict[int, int],
    limits_of: Sequence[Sequence[int]],
    first: Sequence[int],
    step: int,
) -> tuple[LocalLimit, ...]:
    """The counters enforced at this step, and those enforced later that already exclude some of its states."""
    present = Counter(chain.from_iterable([limits_of[i] for i in scope]))
    limits = []
    for c, count in sorted(present.items()):
        if first[c] < step:
            continue  # enforced before: the results of earlier steps satisfy it
        limit, weights = problem.limits[c], None
        sums, reach, enforced = limit.sums, count, first[c] == step
        if limit.weights is not None:
            reach = sum([max(w) for i, w in zip(limit.scope, limit.weights, strict=True) if i in at])
        if not enforced and reach <= sums.upper and sums.lower <= limit.total - reach:
            continue
        places = tuple(sorted([at[i] for i in limit.scope if i in at]))
        if limit.weights is not None:
            by_place = {at[i]: w for i, w in zip(limit.scope, limit.weights, strict=True) if i in at}
            weights = tuple(by_place[p] for p in places)
        if not enforced:  # equal for all counters with these bounds
            sums = interval(sums.lower, sums.upper)
        limits.append(LocalLimit(places, weights, limit.total, sums, c if enforced else None))
    return tuple(limits)
