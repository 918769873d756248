"""Iterated local search: never worse, and components are accepted separately."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.data import GridMAP
from fgnn.infer.local_search.decode import decode
from fgnn.infer.local_search.move_index import FlatIndex, MoveIndex
from fgnn.infer.local_search.moves import Moves
from fgnn.infer.local_search.refine import merge, refine
from tests.infer.counting import ScoredSum, counting_models
from tests.strategies import models


@given(models() | counting_models(), st.integers(0, 999))
def test_never_worse(model: GraphicalModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = ModelBatch.stack([model, model])
    start = torch.tensor(np.stack([rng.integers(model.cardinalities) for _ in range(2)]))
    refined = refine(batch, start, rounds=1, copies=2, seed=seed)
    assert (batch.score(refined) >= batch.score(start) - 1e-9).all()
    assert (refined >= 0).all()
    assert (refined < batch.cardinalities).all()


def test_every_kind_of_factor_is_refined() -> None:
    rng = np.random.default_rng(4)
    model = GraphicalModel([2] * 8 + [4] * 3)
    model.add_unaries(rng.normal(size=8 * 2 + 3 * 4))
    model.add_parity((0, 1, 2, 3, 4), 1)
    model.add_linear((3, 4, 5, 6), [2, 3, 1, 4], at_most=6)
    model.add_all_different((8, 9, 10))
    batch = ModelBatch.stack([model])
    start = torch.tensor([[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]])
    scores = torch.zeros(1, 11, 4)
    refined = refine(batch, start, scores, rounds=20)
    best = solve(batch, "exact").score
    assert refined.shape == start.shape
    assert batch.score(start) < batch.score(refined)
    assert batch.score(refined) >= best - 0.2 * best.abs()


@given(models() | counting_models(), st.integers(0, 999))
def test_merging_is_at_least_as_good_as_either(model: GraphicalModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = ModelBatch.stack([model] * 4)
    one, two = (torch.tensor(np.stack([rng.integers(model.cardinalities) for _ in range(4)])) for _ in range(2))
    merged = batch.score(merge(Moves(batch), one, two))
    assert (merged >= torch.maximum(batch.score(one), batch.score(two)) - 1e-9).all()


def test_components_are_chosen_independently() -> None:
    """Two separate halves, one better in each answer: the merged answer has both."""
    model = GraphicalModel([2] * 6)
    for i, j in ((0, 1), (1, 2), (3, 4), (4, 5)):
        model.add_table((i, j), [[0.0, -1.0], [-1.0, 0.0]])
    for i in range(6):
        model.add_unary(i, [0.0, 1.0 if i < 3 else -1.0])
    batch = ModelBatch.stack([model])
    ones, zeros = torch.ones(1, 6, dtype=torch.int64), torch.zeros(1, 6, dtype=torch.int64)
    assert merge(Moves(batch), ones, zeros).tolist() == [[1, 1, 1, 0, 0, 0]]


def test_it_finds_more_optima_than_decoding_alone_and_follows_the_seed() -> None:
    batch = GridMAP(6, 6).sample(60, seed=1)
    best = solve(batch, "exact").score
    start = decode(batch)
    better = refine(batch, start, rounds=4, seed=1)
    reached = [(batch.score(x) >= best - 1e-5).double().mean() for x in (start, better)]
    assert reached[1] > reached[0] + 0.05
    assert torch.equal(better, refine(batch, start, rounds=4, seed=1))


def test_it_stops_at_the_time_limit() -> None:
    batch = GridMAP(6, 6).sample(2, seed=1)
    start = decode(batch)
    assert refine(batch, start, rounds=None, time_limit=0.05).shape == start.shape
    with pytest.raises(ValueError, match="Expected rounds or a time limit"):
        refine(batch, start, rounds=None)


def test_large_whole_scores_of_sums_are_not_rounded() -> None:
    """2^24 + 1 has no float32."""
    model = GraphicalModel([2, 2])
    model.add_factors(ScoredSum(((0, 1), (0, 1))), [(0, 1)], scores=[[0.0, 2.0**24, 2.0**24 + 1]])
    batch = ModelBatch.stack([model])
    x, owner = torch.tensor([[0, 1]]), torch.tensor([0])
    gain, _ = Moves(batch).single(x, owner)
    assert gain[0, 0, 0] == 1.0


def test_a_counter_without_pair_moves_lists_no_pairs() -> None:
    n = 3000
    structure = ModelBatch.stack([_linear(n)]).structure
    index = MoveIndex.of(structure, (tuple((0, 1 + i % 3) for i in range(n)),), max_pairs=1 << 20)
    (factor,) = index.factors
    assert isinstance(factor, FlatIndex)
    assert (factor.pair_slots, factor.swapped.numel(), len(index.pairs)) == (0, 0, 0)
    batch = ModelBatch.stack([_linear(n)])
    gain, broken = Moves(batch).single(torch.zeros(1, n, dtype=torch.int64), torch.tensor([0]))
    assert bool((gain == 1).all())
    assert bool((broken == 0).all())


def _linear(n: int) -> GraphicalModel:
    model = GraphicalModel([2] * n)
    model.add_unaries([0.0, 1.0] * n)
    model.add_linear(range(n), [1 + i % 3 for i in range(n)], at_most=n)
    return model
