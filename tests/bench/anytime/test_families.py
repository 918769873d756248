"""The generated instances: sizes, seeds, and what their scores mean."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn.bench.anytime import families
from fgnn.bench.anytime.instances import instances
from fgnn.errors import InputError


def test_a_clause_is_violated_by_one_combination_of_states() -> None:
    model = families.random_sat(30, 100, 0)
    states = np.random.default_rng(0).integers(0, 2, 30)
    violated = 0
    for scope, values in zip(model.table_groups[0].scopes, model.table_groups[0].values, strict=True):
        assert sorted(values.ravel().tolist()) == [-1.0] + [0.0] * 7
        violated += values[tuple(states[scope])] < 0
    assert model.score(states) == -violated


def test_a_colouring_counts_conflicts() -> None:
    model = families.colouring(40, 0, colours=3, degree=4.0)
    assert len(model.table_groups[0].scopes) == 80
    assert model.score(np.zeros(40, dtype=np.int64)) == -80


def test_a_glass_is_symmetric_up_to_its_fields() -> None:
    model = families.glass(6, 1)
    states = np.random.default_rng(0).integers(0, 2, 36)
    odd = model.unaries.reshape(36, 2)
    field = odd[np.arange(36), states].sum() - odd[np.arange(36), 1 - states].sum()
    assert model.score(states) - model.score(1 - states) == pytest.approx(field)


def test_side_chains_within_reach_share_a_table_and_may_clash() -> None:
    model = families.protein_like(30, 0)
    worst = min(float(group.values.min()) for group in model.table_groups)
    assert worst == -20.0
    assert set(model.cardinalities.tolist()) <= {2, 3, 5, 9, 15, 30}


def test_the_same_name_is_the_same_model_and_names_differ() -> None:
    chosen = instances(["glass/50*", "sat/*", "protein/60*", "budgets/20x20-s0", "colouring/*"])
    assert len({i.name for i in chosen}) == len(chosen) == 10
    for instance in chosen:
        one, two = instance.make(), instance.make()
        states = np.zeros(one.num_variables, dtype=np.int64)
        assert one.score(states) == two.score(states)


def test_a_pattern_that_matches_nothing_is_refused_with_the_families() -> None:
    with pytest.raises(InputError, match=r"glass, potts, graph, colouring, sat, protein, budgets.*got chess/\*"):
        instances(["chess/*"], data="nowhere")
