"""Elimination orders: greedy choices are minimal, costs are those of the elimination, restarts only help."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn.infer.exact.order import Graph, along, best_order, graph_of, min_fill, product_measure


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < draw(st.sampled_from([0.2, 0.5]))]
    return graph_of(n, pairs)


def missing(graph: list[set[int]], vertex: int) -> int:
    return sum(b not in graph[a] for a, b in itertools.combinations(graph[vertex], 2))


def eliminate(graph: list[set[int]], vertex: int) -> None:
    around = graph[vertex]
    for i in around:
        graph[i] |= around - {i}
        graph[i].discard(vertex)
    graph[vertex] = set()


@given(graphs())
def test_min_fill_always_takes_a_vertex_of_least_fill(graph: Graph) -> None:
    order = min_fill(graph, product_measure([2] * len(graph)))
    now = [set(near) for near in graph]
    left = set(range(len(graph)))
    added = 0
    for vertex, clique in zip(order.sequence, order.cliques, strict=True):
        assert missing(now, vertex) == min(missing(now, v) for v in left)
        assert set(clique) == now[vertex]
        added += missing(now, vertex)
        eliminate(now, vertex)
        left.remove(vertex)
    assert not left
    assert order.chordal == (added == 0)
    assert 2**order.cost == pytest.approx(sum(2 ** (1 + len(clique)) for clique in order.cliques))


@given(graphs(), st.randoms(use_true_random=False))
def test_a_given_sequence_meets_the_cliques_of_elimination(graph: Graph, random: Random) -> None:
    sequence = list(range(len(graph)))
    random.shuffle(sequence)
    order = along(graph, sequence, product_measure([3] * len(graph)))
    assert order is not None
    now = [set(near) for near in graph]
    for vertex, clique in zip(order.sequence, order.cliques, strict=True):
        assert set(clique) == now[vertex]
        eliminate(now, vertex)


@given(graphs())
def test_the_best_order_is_no_worse_than_min_fill(graph: Graph) -> None:
    cards = [2 + v % 3 for v in range(len(graph))]
    measure = product_measure(cards)
    best = best_order(graph, cards, measure, easy=0.0)
    assert sorted(best.sequence) == list(range(len(graph)))
    if not best.chordal:
        assert best.cost <= min_fill(graph, measure).cost + 1e-9


def test_a_grid_is_swept_along_a_side() -> None:
    side = 16
    at = np.arange(side**2).reshape(side, side)
    pairs = np.concatenate(
        [np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1), np.stack([at[:-1].ravel(), at[1:].ravel()], 1)]
    )
    graph = graph_of(side**2, pairs.tolist())
    cards = [2] * side**2
    assert best_order(graph, cards, product_measure(cards)).width <= side + 1


def test_the_same_seed_gives_the_same_order() -> None:
    rng = np.random.default_rng(0)
    graph = graph_of(60, [rng.permutation(60)[:2].tolist() for _ in range(180)])
    measure = product_measure([2] * 60)
    one, two = (best_order(graph, [2] * 60, measure, seed=3, easy=0.0) for _ in range(2))
    assert one == two


def test_a_long_band_is_ordered_from_one_end() -> None:
    graph = graph_of(2000, [range(i, i + 10) for i in range(1991)])
    order = min_fill(graph)
    assert order.chordal
    assert order.width == 9
    assert order.sequence == tuple(range(2000))
    assert math.isclose(order.cost, 0.0)
