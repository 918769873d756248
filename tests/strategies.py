"""Hypothesis strategies for random graphical models, shared by the tests of every solver."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fgnn import GraphicalModel


@st.composite
def models(
    draw: st.DrawFn,
    max_variables: int = 7,
    max_arity: int = 4,
    max_cardinality: int = 4,
    max_tables: int = 6,
    max_budgets: int = 3,
    forbid: bool = True,
) -> GraphicalModel:
    """Small loopy models of mixed cardinality and arity, with budgets and, where ``forbid``, -inf entries."""
    n = draw(st.integers(1, max_variables))
    cards = draw(st.lists(st.integers(1, max_cardinality), min_size=n, max_size=n))
    if max_budgets:
        # budgets need binary variables, so make them common
        cards = [2 if draw(st.booleans()) else k for k in cards]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = GraphicalModel(cards)
    for i, k in enumerate(cards):
        model.add_unary(i, rng.normal(size=k))
    for _ in range(draw(st.integers(0, max_tables))):
        arity = draw(st.integers(1, min(max_arity, n)))
        scope = rng.permutation(n)[:arity]
        values = rng.normal(size=[cards[i] for i in scope]) * 2
        if forbid and draw(st.booleans()):
            values[rng.random(values.shape) < 0.25] = -np.inf
        model.add_table(scope.tolist(), values)
    binary = [i for i, k in enumerate(cards) if k == 2]
    for _ in range(draw(st.integers(0, max_budgets)) if binary else 0):
        size = draw(st.integers(1, len(binary)))
        low = draw(st.integers(0, size)) if draw(st.booleans()) else 0
        high = draw(st.integers(low, size))
        model.add_budget(rng.permutation(binary)[:size].tolist(), high, at_least=low)
    return model


@st.composite
def tree_models(draw: st.DrawFn, max_variables: int = 8, max_cardinality: int = 4) -> GraphicalModel:
    """Models whose factor graph is a tree (tables of arity 2 and 3, and budgets), where max-product is exact."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards: list[int] = [draw(st.integers(2, max_cardinality))]
    factors: list[tuple[tuple[int, ...], bool]] = []
    target = draw(st.integers(1, max_variables))
    while len(cards) < target:
        root = int(rng.integers(len(cards)))
        fresh = draw(st.integers(1, 2))
        budget = cards[root] == 2 and draw(st.booleans())
        new = [2 if budget else draw(st.integers(2, max_cardinality)) for _ in range(fresh)]
        factors.append(((root, *range(len(cards), len(cards) + fresh)), budget))
        cards += new
    model = GraphicalModel(cards)
    for i, k in enumerate(cards):
        model.add_unary(i, rng.normal(size=k))
    for scope, budget in factors:
        if budget:
            model.add_budget(scope, at_most=draw(st.integers(1, len(scope))))
        else:
            model.add_table(scope, rng.normal(size=[cards[i] for i in scope]))
    return model
