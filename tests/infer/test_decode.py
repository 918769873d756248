"""Decoding: repair to feasibility, then local search on the true score."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.infer.local_search.decode import decode
from fgnn.infer.local_search.moves import Moves
from tests.infer.counting import ScoredSum, counting_models, distance
from tests.strategies import models


def _broken(model: GraphicalModel, x: np.ndarray) -> int:
    """Units beyond the budgets and other sums, and forbidden entries met, by a plain loop."""
    total = sum(int(np.isneginf(model.unary(i)[x[i]])) for i in range(len(x)))
    total += sum(int(np.isneginf(t.values[tuple(x[list(t.scope)])])) for t in model.tables())
    for b in model.budgets():
        ones = int(x[list(b.scope)].sum())
        total += max(0, ones - b.at_most) + max(0, b.at_least - ones)
    return total + sum(distance(f, x[list(f.scope)]) for f in model.structured())


def _finite_score(model: GraphicalModel, x: np.ndarray) -> float:
    terms = [model.unary(i)[x[i]] for i in range(len(x))] + [t.values[tuple(x[list(t.scope)])] for t in model.tables()]
    terms += [f.score(x[list(f.scope)]) for f in model.structured()]
    return float(sum(v for v in terms if np.isfinite(v)))


@settings(max_examples=40)
@given(models(max_variables=5) | counting_models(max_variables=5), st.integers(0, 999))
def test_moves_give_the_effect_of_changing_one_or_two_variables(model: GraphicalModel, seed: int) -> None:
    batch = ModelBatch.stack([model, model])
    rng = np.random.default_rng(seed)
    x = np.stack([rng.integers(model.cardinalities) for _ in range(3)])
    rows, owner = torch.tensor(x), torch.tensor([0, 1, 1])
    moves = Moves(batch)
    gain, change = moves.single(rows, owner)
    targets = moves.states(rows).numpy()
    assert moves.broken(rows, owner).tolist() == [_broken(model, r) for r in x]
    for r, i, o in itertools.product(range(3), range(model.num_variables), range(moves.offsets)):
        if o + 1 >= model.cardinalities[i]:
            assert gain[r, i, o] == -np.inf
            continue
        y = x[r].copy()
        y[i] = targets[r, i, o]
        assert gain[r, i, o] == pytest.approx(_finite_score(model, y) - _finite_score(model, x[r]), abs=1e-9)
        assert change[r, i, o] == _broken(model, y) - _broken(model, x[r])
    gains, changes = moves.pair(rows, owner, gain, change)
    for r, (p, (i, j)) in itertools.product(range(3), enumerate(moves.pairs.tolist())):
        for a, b in itertools.product(range(moves.offsets), repeat=2):
            if a + 1 >= model.cardinalities[i] or b + 1 >= model.cardinalities[j]:
                assert gains[r, p, a, b] == -np.inf
                continue
            y = x[r].copy()
            y[i], y[j] = targets[r, i, a], targets[r, j, b]
            assert gains[r, p, a, b] == pytest.approx(_finite_score(model, y) - _finite_score(model, x[r]), abs=1e-9)
            assert changes[r, p, a, b] == _broken(model, y) - _broken(model, x[r])


@given(models() | counting_models(), st.integers(0, 999))
def test_never_worse_than_any_start_and_locally_best(model: GraphicalModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = [torch.tensor(np.stack([rng.integers(model.cardinalities) for _ in range(2)])) for _ in range(3)]
    batch = ModelBatch.stack([model, model])
    scores = torch.tensor(rng.normal(size=batch.unary.shape))
    decoded = decode(batch, scores, starts=starts)
    best = torch.stack([batch.score(s) for s in [*starts, scores.masked_fill(~batch.state_mask, -torch.inf).argmax(2)]])
    ours = batch.score(decoded)
    assert (ours >= best.amax(0) - 1e-9).all()
    for b in range(2):
        x = decoded[b].numpy()
        if not np.isfinite(model.score(x)):
            continue
        for i, k in enumerate(model.cardinalities):
            for state in range(k):
                y = x.copy()
                y[i] = state
                assert model.score(y) <= model.score(x) + 1e-8
        for i, j in {tuple(sorted(p)) for p in Moves(batch).pairs.tolist()}:
            for s, t in itertools.product(range(model.cardinalities[i]), range(model.cardinalities[j])):
                y = x.copy()
                y[i], y[j] = s, t
                assert model.score(y) <= model.score(x) + 1e-8


def _chain(count: int, seed: int = 0) -> ModelBatch:
    rng = np.random.default_rng(seed)
    built = []
    for _ in range(count):
        m = GraphicalModel([2] * 12)
        m.add_unaries(rng.random(24))
        for i in range(11):
            m.add_table((i, i + 1), [[0, 0], [0, 2 * rng.random()]])
        for i in range(7):
            m.add_budget(range(i, i + 6), at_most=3)
        built.append(m)
    return ModelBatch.stack(built)


def test_repairs_every_chain_whose_raw_answer_breaks_budgets() -> None:
    batch = _chain(64)
    ones = torch.zeros(64, 12, 2)
    ones[:, :, 1] = 1 + torch.rand(64, 12, generator=torch.Generator().manual_seed(0))
    assert not (batch.score(ones.argmax(2)) > -torch.inf).any()
    assert (batch.score(decode(batch, ones)) > -torch.inf).all()


def test_repair_gives_up_what_the_network_is_least_sure_of() -> None:
    model = GraphicalModel([2] * 4)
    model.add_budget(range(4), at_most=2)
    scores = torch.tensor([[[0.0, 3.0], [0.0, 0.1], [0.0, 2.0], [0.0, 0.2]]])
    decoded = decode(ModelBatch.stack([model]), scores, pairs=False)
    assert decoded.tolist() == [[1, 0, 1, 0]]


def test_perfect_scores_give_the_optimum() -> None:
    batch = _chain(16)
    optimum = torch.stack([_best(batch.model(b)) for b in range(16)])
    scores = torch.nn.functional.one_hot(optimum, 2).double()
    assert torch.equal(decode(batch, scores), optimum)


def test_samples_can_only_help_and_follow_the_seed() -> None:
    batch = _chain(64)
    scores = 0.3 * batch.unary
    plain = batch.score(decode(batch, scores))
    drawn = batch.score(decode(batch, scores, samples=8, seed=3))
    assert (drawn >= plain - 1e-12).all()
    assert (drawn > plain + 1e-6).any()
    assert torch.equal(drawn, batch.score(decode(batch, scores, samples=8, seed=3)))


def test_a_parity_over_many_variables_is_kept_by_pairs_of_moves() -> None:
    rng = np.random.default_rng(3)
    model = GraphicalModel([2] * 40)
    model.add_unaries(rng.normal(size=80))
    model.add_parity(range(40), 1)
    decoded = decode(ModelBatch.stack([model]), starts=[torch.zeros(1, 40, dtype=torch.int64)])
    assert model.score(decoded[0].numpy()) == pytest.approx(solve(model, "exact").score)


def test_sums_of_each_model_have_their_own_scores() -> None:
    """Two models of one structure that prefer one and three ones."""
    built = []
    for best in (1, 3):
        model = GraphicalModel([2] * 4)
        model.add_unaries(np.tile([0.0, 0.1], 4))
        model.add_factors(ScoredSum(((0, 1),) * 4), [range(4)], scores=-np.abs(np.arange(5.0) - best)[None])
        built.append(model)
    decoded = decode(ModelBatch.stack(built), starts=[torch.zeros(2, 4, dtype=torch.int64)])
    assert decoded.sum(1).tolist() == [1, 3]


def test_equal_strengths_do_not_flip_together() -> None:
    model = GraphicalModel([2] * 6)
    for i in range(6):
        model.add_unary(i, [0.0, 1.0])
    model.add_budget(range(6), at_most=1)
    decoded = decode(ModelBatch.stack([model]), starts=[torch.zeros(1, 6, dtype=torch.int64)])
    assert decoded.sum() == 1


def test_a_model_without_factors_or_without_an_answer() -> None:
    free = GraphicalModel([3, 2])
    free.add_unary(0, [0.0, 2.0, 1.0])
    assert decode(ModelBatch.stack([free]), torch.zeros(1, 2, 3)).tolist() == [[1, 0]]
    none = GraphicalModel([2, 2])
    none.add_table((0, 1), np.full((2, 2), -np.inf))
    assert decode(ModelBatch.stack([none])).shape == (1, 2)


def test_wrong_shapes_are_refused() -> None:
    batch = _chain(2)
    with pytest.raises(ValueError, match=r"Expected scores of shape \(2, 12, 2\)"):
        decode(batch, torch.zeros(2, 12))
    with pytest.raises(ValueError, match=r"Expected starting points of shape \(2, 12\)"):
        decode(batch, starts=[torch.zeros(2, 3)])


def _best(model: GraphicalModel) -> torch.Tensor:
    every = np.array(list(itertools.product((0, 1), repeat=12)))
    return torch.tensor(every[int(np.argmax(model.score(every)))])
