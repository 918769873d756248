"""Perfect matchings: found where they exist, refused with the reason where not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import FactorGraph, FactorGroup


@given(st.integers(1, 12), st.integers(0, 2**16))
def test_a_hidden_matching_is_found(n: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randperm(n, generator=rng)
    scopes = []
    for c in range(n):
        others = torch.randperm(n, generator=rng)[: int(torch.randint(3, (1,), generator=rng))].tolist()
        scopes.append(sorted({int(hidden[c]), *others}))
    graph = FactorGraph(n, {"f": FactorGroup(scopes)})
    matching = graph.perfect_matching("f")
    assert sorted(matching.factor.tolist()) == list(range(n))
    for i, c in enumerate(matching.factor.tolist()):
        assert i in scopes[c]
        assert int(matching.variable[c]) == i


def test_a_factor_around_each_variable_is_matched_to_it() -> None:
    scopes = (torch.arange(50)[:, None] + torch.arange(4)) % 50
    matching = FactorGraph(50, {"knn": FactorGroup(scopes)}).perfect_matching("knn")
    assert matching.factor.tolist() == list(range(50))


def test_unequal_numbers_are_refused() -> None:
    graph = FactorGraph(3, {"f": FactorGroup([[0, 1], [1, 2]])})
    with pytest.raises(ValueError, match=r"\(got 2 factors and 3 variables\)"):
        graph.perfect_matching("f")


def test_too_few_variables_between_some_factors_are_named() -> None:
    graph = FactorGraph(4, {"f": FactorGroup([[0, 1], [1, 0], [0], [2, 3, 1]])})
    with pytest.raises(ValueError, match=r"the 3 factors 0, 1, 2 hold only 2 variables between them"):
        graph.perfect_matching("f")
    graph = FactorGraph(2, {"f": FactorGroup([[], [0, 1]])})
    with pytest.raises(ValueError, match=r"the 1 factors 0 hold only 0 variables"):
        graph.perfect_matching("f")
