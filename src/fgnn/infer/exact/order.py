"""Elimination orders: greedy (min-fill, min-weight), breadth-first, by number, and random restarts.

The cost of an order is the number of joint states of all its steps, not its width alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from importlib.util import find_spec

# The neighbours of each vertex 0..n-1.
Graph = list[set[int]]
# log2 of the number of joint states of a vertex, which is eliminated, and its neighbours.
Measure = Callable[[int, Iterable[int]], float]

# Rough times of a random restart per neighbour at elimination, and of solving per joint state. They are constants, not
# measured, so that the same model always gets the same order.
_TRY_SECONDS = 1e-5
_STATE_SECONDS = 5e-9
_MOST_SECONDS = 5.0
# From this cost (log2 of the states) on, thousands of orders are tried by compiled code, which takes a while to load.
_SEARCH_FROM = 23.0
_LOADING = 0.3  # of the time left, to wait for compiled loops
_SEARCH_SECONDS = 2.5
_SEARCH_GAIN = 10.0  # bits that it may hope to save


class OutOfTime(Exception):
    """The time limit was reached."""


@dataclass(frozen=True)
class Order:
    """An elimination order; ``cliques[t]`` are the neighbours of ``sequence[t]`` when it is eliminated."""

    sequence: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    cost: float  # log2 of the joint states of all steps; 0 if not computed
    chordal: bool  # no edge was added: no other order has a smaller width

    @property
    def width(self) -> int:
        """The induced width: the largest number of neighbours at elimination."""
        return max(map(len, self.cliques), default=0)


def graph_of(count: int, scopes: Iterable[Sequence[int]]) -> Graph:
    """The graph with an edge between any two variables of one scope."""
    graph: Graph = [set() for _ in range(count)]
    for scope in scopes:
        for i in scope:
            graph[i].update(scope)
    for i, near in enumerate(graph):
        near.discard(i)
    return graph


def product_measure(cardinalities: Sequence[int]) -> Measure:
    """All joint states: the product of the cardinalities."""
    bits = [math.log2(k) for k in cardinalities]
    return lambda vertex, near: bits[vertex] + sum(bits[i] for i in near)


def best_order(
    graph: Graph,
    cardinalities: Sequence[int],
    measure: Measure,
    *,
    seed: int = 0,
    tries: int = 16,
    easy: float = 20.0,
    hopeless: float = math.inf,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Order:
    """The cheapest of several orders.

    The search ends early if the graph is chordal (min-fill then adds no edge) or if all steps together have at most
    2^easy states. There are no random restarts if they have more than 2^hopeless. Restarts are compiled where that
    pays. ``measure`` must be a pure function: it may not depend on earlier steps. If there are no ``seconds_left``, the
    search ends; `OutOfTime` is raised if there is no order yet.
    """

    def out_of_time() -> bool:
        return seconds_left() <= 0

    def check() -> None:
        if out_of_time():
            raise OutOfTime

    best = min_fill(graph, check=check)
    if best.chordal:
        return best
    best = replace(best, cost=cost_of(best, measure))
    if best.cost <= easy:
        return best
    for sequence in _fixed_sequences(graph):
        if out_of_time():
            return best
        other = along(graph, sequence, measure, limit=best.cost)
        best = other if other is not None and other.cost < best.cost else best
    if tries > 0 and _SEARCH_FROM <= best.cost <= hopeless + _SEARCH_GAIN and find_spec("numba") is not None:
        from fgnn.infer.exact.order_search import LOOPS, search_sequence

        if not LOOPS.wait(_LOADING * seconds_left()):  # the first time they compile for seconds
            return best
        worth = min(_SEARCH_SECONDS, 2.0**best.cost * _STATE_SECONDS)
        bits = [math.log2(k) for k in cardinalities]
        found = search_sequence(graph, bits, best.cost + 1, seed=seed, seconds=worth, out_of_time=out_of_time)
        other = None if found is None else along(graph, found, measure, limit=best.cost)
        return other if other is not None and other.cost < best.cost else best
    rng = random.Random(seed)
    bits = [math.log2(k) for k in cardinalities]
    one_try = _TRY_SECONDS * sum(1 + len(clique) for clique in best.cliques)
    for attempt in range(tries):
        # The search must not take longer than solving with the current order, nor delay a refusal.
        worth = min(_MOST_SECONDS, 2.0**best.cost * _STATE_SECONDS)
        if not easy < best.cost <= hopeless or attempt * one_try > worth or out_of_time():
            break
        weighted = attempt % 2 == 1 and len(set(cardinalities)) > 1
        tried = min_fill(graph, measure, rng=rng, bits=bits if weighted else None, limit=best.cost)
        best = tried if tried.cost < best.cost else best
    return best


def cost_of(order: Order, measure: Measure) -> float:
    """log2 of the joint states of all steps."""
    total = sum(2.0 ** min(measure(v, near), 1000.0) for v, near in zip(order.sequence, order.cliques, strict=True))
    return math.log2(total or 1.0)


def min_fill(
    graph: Graph,
    measure: Measure | None = None,
    *,
    rng: random.Random | None = None,
    bits: Sequence[float] | None = None,
    limit: float = math.inf,
    check: Callable[[], None] = lambda: None,
) -> Order:
    """Repeatedly eliminate the vertex whose neighbours lack the fewest edges between them.

    Ties go to the smaller degree, then the smaller number, or are random with ``rng``. With ``bits`` (log2 of the
    cardinalities) missing edges are weighted by the bits of their ends. Fill counts are updated edge by edge, so the
    time for a long chain is linear in its length. Without a ``measure`` the cost is 0. Stops early, with infinite cost,
    beyond ``limit``. ``check`` is called before every elimination and may raise.
    """
    near = [set(s) for s in graph]
    # The weight of a set of vertices: their number, or the sum of their bits.
    mass: Callable[[set[int]], float] = len if bits is None else lambda vertices: sum(bits[w] for w in vertices)
    weight = [1.0] * len(near) if bits is None else bits
    fill = [sum(weight[u] * (mass(near[v] - near[u]) - weight[u]) for u in near[v]) / 2 for v in range(len(near))]
    luck = [rng.random() if rng else 0.0 for _ in near]
    heap = [(round(fill[v], 6), luck[v], len(near[v]), v) for v in range(len(near))]
    heapify(heap)
    gone = [False] * len(near)
    sequence: list[int] = []
    cliques: list[tuple[int, ...]] = []
    total, chordal = 0.0, True
    while heap:
        key, _, degree, v = heappop(heap)
        if gone[v] or key != round(fill[v], 6) or degree != len(near[v]):
            continue  # outdated: the heap also has the current entry
        check()
        gone[v] = True
        around = near[v]
        touched = set(around)
        if key > 0:
            chordal = False
            touched |= _connect(near, weight, mass, fill, sorted(around))
        for u in around:
            # v is no longer a neighbour of u, so missing edges between v and other neighbours of u no longer count
            fill[u] -= weight[v] * (mass(near[u] - around) - weight[v])
            near[u].discard(v)
        sequence.append(v)
        cliques.append(tuple(sorted(around)))
        if measure is not None:
            total += 2.0 ** min(measure(v, around), 1000.0)
            if math.log2(total) > limit:
                return Order(tuple(sequence), tuple(cliques), math.inf, False)
        for u in touched:
            heappush(heap, (round(fill[u], 6), luck[u], len(near[u]), u))
    return Order(tuple(sequence), tuple(cliques), math.log2(total or 1.0), chordal)


def along(graph: Graph, sequence: Sequence[int], measure: Measure, limit: float = math.inf) -> Order | None:
    """The elimination order of a given sequence; None if it costs more than 2^limit states."""
    place = {v: t for t, v in enumerate(sequence)}
    later: list[set[int]] = [{u for u in graph[v] if place[u] > place[v]} for v in range(len(graph))]
    total = 0.0
    added = False
    for v in sequence:
        around = later[v]
        total += 2.0 ** min(measure(v, around), 1000.0)
        if math.log2(total) > limit:
            return None
        if around:
            parent = min(around, key=place.__getitem__)
            added = added or not (around <= later[parent] | {parent})
            later[parent] |= around - {parent}
    cliques = tuple(tuple(sorted(later[v])) for v in sequence)
    return Order(tuple(sequence), cliques, math.log2(total or 1.0), not added)


def _fixed_sequences(graph: Graph) -> Iterator[list[int]]:
    """By number, and breadth-first from both ends of a longest path, which suit grids and bands."""
    yield list(range(len(graph)))
    for other_end in (False, True):
        visited = [False] * len(graph)
        walk: list[int] = []
        for start in range(len(graph)):
            if not visited[start]:
                end = _breadth_first(graph, start, visited.copy())[-1]
                end = _breadth_first(graph, end, visited.copy())[-1] if other_end else end
                walk += _breadth_first(graph, end, visited)
        yield walk


def _breadth_first(graph: Graph, start: int, visited: list[bool]) -> list[int]:
    visited[start] = True
    walk = [start]
    for v in walk:
        for u in sorted(graph[v], key=lambda u: (len(graph[u]), u)):
            if not visited[u]:
                visited[u] = True
                walk.append(u)
    return walk


def _connect(
    near: Graph,
    weight: Sequence[float],
    mass: Callable[[set[int]], float],
    fill: list[float],
    around: list[int],
) -> set[int]:
    """Connect all of ``around`` and update fill counts; returns the common neighbours whose counts changed."""
    touched: set[int] = set()
    for a_at, a in enumerate(around):
        for b in around[a_at + 1 :]:
            if b in near[a]:
                continue
            both = near[a] & near[b]
            for c in both:
                fill[c] -= weight[a] * weight[b]
            fill[a] += weight[b] * mass(near[a] - both)
            fill[b] += weight[a] * mass(near[b] - both)
            near[a].add(b)
            near[b].add(a)
            touched |= both
    return touched
