"""The steps of an elimination: which factors meet where, told so that steps alike anywhere in the model look alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from fgnn.infer.exact.order import Order
from fgnn.infer.exact.problem import Problem


@dataclass(frozen=True)
class LocalLimit:
    """A budget as one step sees it: ``places`` are the positions, within the step's scope, of those of its ``size``
    variables that are there; ``limit`` is its number where the step must enforce it, None where it only prunes."""

    places: tuple[int, ...]
    size: int
    lower: int
    upper: int
    limit: int | None

    @property
    def least(self) -> int:
        """The fewest ones among ``places`` that the rest can still make up for."""
        return self.lower - (self.size - len(self.places))

    @property
    def prunes(self) -> bool:
        return self.upper < len(self.places) or self.least > 0


@dataclass(frozen=True)
class Bucket:
    """One step: all factors that hold ``scope[0]`` are added up and its best state is taken, given the rest.

    ``scope`` is in the order of elimination. ``relations`` and ``children`` (earlier steps whose result arrives here)
    are numbers; ``relation_places`` and ``child_places`` are the positions of their variables within ``scope``.
    """

    scope: tuple[int, ...]
    cardinalities: tuple[int, ...]
    relations: tuple[int, ...]
    relation_places: tuple[tuple[int, ...], ...]
    children: tuple[int, ...]
    child_places: tuple[tuple[int, ...], ...]
    limits: tuple[LocalLimit, ...]


def make_buckets(problem: Problem, order: Order) -> list[Bucket]:
    """One bucket per variable, in the order of elimination."""
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
    """The budgets enforced at this step, and those enforced later that already rule some of its states out."""
    present = Counter(chain.from_iterable([limits_of[i] for i in scope]))
    found = []
    for c, count in sorted(present.items()):
        if first[c] < step:
            continue  # enforced before; the results of earlier steps respect it
        limit = problem.limits[c]
        enforced = first[c] == step
        if not enforced and count <= limit.upper and limit.lower <= len(limit.scope) - count:
            continue
        places = tuple(sorted([at[i] for i in limit.scope if i in at]))
        found.append(LocalLimit(places, len(limit.scope), limit.lower, limit.upper, c if enforced else None))
    return tuple(found)
