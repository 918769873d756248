"""Max-marginals: against every assignment, against elimination, and without host synchronisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.data import ChainMAP
from fgnn.infer.exact.max_marginals import Band, gaps, max_marginals
from fgnn.infer.map_tensors import map_tensors


def by_trying_all(batch: ModelBatch) -> Tensor:
    n = batch.num_variables
    states = torch.cartesian_prod(*[torch.arange(2)] * n).reshape(-1, n)
    scores = batch.score(states.expand(len(batch), -1, -1))
    fixed = [torch.where(states[:, i] == k, scores, -torch.inf).amax(1) for i in range(n) for k in (0, 1)]
    return torch.stack(fixed, 1).view(len(batch), n, 2)


@st.composite
def binary_models(draw: st.DrawFn) -> GraphicalModel:
    """Any scopes in any order, tables of up to 3 variables with forbidden entries, budgets from both sides."""
    n = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = GraphicalModel([2] * n)
    model.constant = float(rng.normal())
    model.add_unaries(rng.normal(size=2 * n))
    for _ in range(draw(st.integers(0, 5))):
        arity = draw(st.integers(1, min(3, n)))
        values = rng.normal(size=[2] * arity)
        values[rng.random(values.shape) < 0.15] = -np.inf
        model.add_table(rng.permutation(n)[:arity].tolist(), values)
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, n))
        low = draw(st.integers(0, 1))
        model.add_budget(rng.permutation(n)[:size].tolist(), draw(st.integers(low, size)), at_least=low)
    return model


@given(binary_models())
@settings(max_examples=60, deadline=None)
def test_they_are_the_best_of_all_assignments_with_the_state(model: GraphicalModel) -> None:
    batch = ModelBatch.stack([model, model])
    expected = by_trying_all(batch)
    marginals = max_marginals(batch)
    torch.testing.assert_close(marginals, expected, atol=1e-9, rtol=0)
    both = expected[..., 1] - expected[..., 0]
    torch.testing.assert_close(gaps(batch), both.nan_to_num(0.0, np.inf, -np.inf).float())


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize(("length", "window"), [(30, 8), (13, 5), (6, 6), (5, 2)])
def test_the_signs_of_the_gaps_are_the_exact_labels(kind: int, length: int, window: int) -> None:
    chains = ChainMAP(kind, length, window, budget=max(1, window - 3))
    batch = chains.sample(200, seed=kind)
    marginals = max_marginals(batch)
    score = solve(batch, "exact").score
    torch.testing.assert_close(marginals.amax(2), score[:, None].expand(-1, length), atol=1e-6, rtol=0)
    clear = gaps(batch).abs() > 1e-9
    assert clear.double().mean() > 0.999
    assert torch.equal((gaps(batch) > 0)[clear], chains.labels(batch).bool()[clear])


def test_an_infeasible_state_is_infinitely_worse_and_an_infeasible_model_has_no_gap() -> None:
    model = GraphicalModel([2, 2, 2])
    model.add_unaries([0.0, 1.0, 0.0, 1.0, 0.0, 3.0])
    model.add_budget((0, 1, 2), at_most=0)
    other = GraphicalModel([2, 2, 2])
    other.add_unaries([0.0, 1.0, -np.inf, -np.inf, 0.0, 3.0])
    other.add_budget((0, 1, 2), at_most=3)
    assert gaps(ModelBatch.stack([model, other])).tolist() == [[-np.inf] * 3, [0.0] * 3]


def test_unsupported_structures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected binary variables \(got \[2, 3\] states\)"):
        max_marginals(ModelBatch.stack([GraphicalModel([2, 3])]))
    model = GraphicalModel([2] * 20)
    model.add_table((0, 19), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"Expected factors within 16 neighbours \(got one over 20\)"):
        max_marginals(ModelBatch.stack([model]))


def test_no_models_and_no_factors_are_fine() -> None:
    assert gaps(ChainMAP(1, 6, 3).sample(0)).shape == (0, 6)
    lone = GraphicalModel([2, 2])
    lone.add_unaries([0.0, 1.0, 2.0, 0.5])
    assert gaps(ModelBatch.stack([lone])).tolist() == [[1.0, -1.5]]


@pytest.mark.parametrize("kind", [1, 3])
def test_no_host_synchronisation_once_the_structure_is_compiled(kind: int) -> None:
    """Meta tensors cannot be read back. Without host synchronisation, a CUDA graph can record the function."""
    batch = ChainMAP(kind, 12, 5, 3).sample(16)
    band = map_tensors(Band.of(batch), lambda t: t.to("meta"))
    assert gaps(batch.to("meta"), band).shape == (16, 12)
