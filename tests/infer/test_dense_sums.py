"""Compiled sums over full tables and the compiled search for orders, against the plain ones."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, log_partition, marginals
from fgnn.infer.exact import dense_sums
from fgnn.infer.exact.order import along, best_order, graph_of, min_fill, product_measure

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")


def grid(rows: int, columns: int, states: int, *, scale: float = 1.0, zeros: float = 0.0) -> GraphicalModel:
    """A grid of pairs, a few of their entries forbidden, and a ternary table across each corner."""
    rng = np.random.default_rng(0)
    model = GraphicalModel([states] * (rows * columns))
    model.add_unaries(scale * rng.normal(size=rows * columns * states))
    number = np.arange(rows * columns).reshape(rows, columns)
    scopes = [*zip(number[:, 1:].flat, number[:, :-1].flat, strict=True)]
    scopes += [*zip(number[1:].flat, number[:-1].flat, strict=True)]
    for a, b in scopes:
        table = scale * rng.normal(size=(states, states))
        table[rng.random((states, states)) < zeros] = -np.inf
        np.fill_diagonal(table, 0.0)
        model.add_table((int(a), int(b)), table)
    model.add_table((0, 1, columns), rng.normal(size=(states,) * 3))
    return model


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "columns", "states"), [(7, 9, 3), (9, 12, 2), (4, 5, 9)])
def test_compiled_sums_equal_those_in_the_log_domain(
    rows: int, columns: int, states: int, zeros: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = grid(rows, columns, states, zeros=zeros)
    compiled = marginals(model, "exact", tables=True)
    monkeypatch.setattr(dense_sums, "has_numba", lambda: False)
    plain = marginals(model, "exact", tables=True)
    assert compiled.log_partition == pytest.approx(plain.log_partition, abs=1e-9)
    assert compiled.tables is not None
    assert plain.tables is not None
    for ours, theirs in zip([*compiled.variables, *compiled.tables], [*plain.variables, *plain.tables], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_potentials_that_would_underflow_are_summed_in_the_log_domain() -> None:
    model = grid(7, 9, 3, scale=400.0)
    value = log_partition(model, "exact").value
    assert math.isfinite(value)
    assert log_partition(model, "exact", dtype=torch.float32).value == pytest.approx(value, rel=1e-4)
    best = max(model.score(np.array([x] * 63)) for x in range(3))
    assert value >= best


def test_the_compiled_search_finds_orders_that_cost_what_it_says() -> None:
    from fgnn.infer.exact.order_search import search_sequence

    rng = np.random.default_rng(0)
    scopes = [tuple(int(i) for i in rng.choice(120, size=3, replace=False)) for _ in range(110)]
    cards = rng.integers(2, 5, 120).tolist()
    graph, measure = graph_of(120, scopes), product_measure(cards)
    greedy = min_fill(graph, measure)
    sequence = search_sequence(graph, [math.log2(k) for k in cards], greedy.cost, seed=0, seconds=0.2)
    assert sequence is not None
    assert sorted(sequence) == list(range(120))
    found = along(graph, sequence, measure)
    assert found is not None
    assert found.cost < greedy.cost
    again = search_sequence(graph, [math.log2(k) for k in cards], greedy.cost, seed=0, seconds=0.2)
    assert again == sequence
    assert best_order(graph, cards, measure).cost <= greedy.cost
