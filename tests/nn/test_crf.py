"""The CRF layer: likelihoods, gradients, pseudo-likelihood and what it learns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from fgnn import GraphicalModel, ModelBatch
from fgnn.nn import CRF
from fgnn.nn.crf import log_prob_each
from fgnn.pgm.conditionals import conditionals
from fgnn.testing.solvers import random_models


def constrained_chain(length: int = 6, states: int = 2) -> GraphicalModel:
    model = GraphicalModel([states] * length)
    model.add_tables([(i, i + 1) for i in range(length - 1)], np.zeros((length - 1, states, states)))
    if states == 2:
        model.add_budget(range(length), at_most=3, at_least=1)
    return model


def all_states(states: int = 2, length: int = 6) -> Tensor:
    return torch.tensor(list(itertools.product(range(states), repeat=length)))


def with_random_tables(crf: CRF, seed: int = 0) -> CRF:
    torch.manual_seed(seed)
    for table in crf.tables:
        torch.nn.init.normal_(table)
    return crf.double()


@pytest.mark.parametrize("learn", ["shared", "each"])
def test_probabilities_sum_to_one_over_the_feasible_assignments(learn: str) -> None:
    crf = with_random_tables(CRF(constrained_chain(), learn=learn))  # type: ignore[arg-type]
    x = all_states()
    unary = torch.randn(1, 6, 2, dtype=torch.float64).expand(len(x), -1, -1)
    log_prob = crf.log_prob(x, unary)
    feasible = (x.sum(1) >= 1) & (x.sum(1) <= 3)
    assert torch.equal(log_prob > -torch.inf, feasible)
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-9)


def test_gradients_reach_the_tables_and_the_network() -> None:
    crf = with_random_tables(CRF(constrained_chain()))
    x = torch.tensor([[1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 1, 0]])
    unary = torch.randn(2, 6, 2, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, 5, 2, 2, dtype=torch.float64, requires_grad=True)

    def loss(unary: Tensor, given: Tensor) -> Tensor:
        return crf.log_prob(x, unary, [given]).sum()

    assert torch.autograd.gradcheck(loss, (unary, given), atol=1e-6)
    loss(unary, given).backward()
    assert given.grad is not None
    assert crf.tables[0].grad is not None
    torch.testing.assert_close(crf.tables[0].grad, given.grad.sum((0, 1)))  # every factor shares the table


def test_conditionals_are_score_differences() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        batch = ModelBatch.stack(random_models(rng, 2))
        cards = batch.cardinalities.tolist()
        x = torch.tensor([[int(rng.integers(k)) for k in cards] for _ in range(2)])
        got = conditionals(batch, x)
        for i, k in enumerate(cards):
            variants = x[:, None].repeat(1, k, 1)
            variants[:, :, i] = torch.arange(k)
            scores = batch.score(variants)  # shape: (B, k)
            # Factors without i may be violated too; compare where the rest is feasible.
            for b in range(2):
                if bool((scores[b] > -torch.inf).any()):
                    expected = scores[b].log_softmax(0)
                    torch.testing.assert_close(got[b, i, :k].log_softmax(0), expected, rtol=0, atol=1e-9)


def test_pseudo_likelihood_is_the_sum_of_conditionals() -> None:
    crf = with_random_tables(CRF(constrained_chain(4, states=3)))
    unary = torch.randn(1, 4, 3, dtype=torch.float64)
    x = torch.tensor([[0, 2, 1, 1]])
    expected = 0.0
    for i in range(4):
        variants = x.repeat(3, 1)
        variants[:, i] = torch.arange(3)
        expected += crf.log_prob(variants, unary.expand(3, -1, -1)).log_softmax(0)[x[0, i]].item()
    assert crf.pseudo_log_likelihood(x, unary).item() == pytest.approx(expected, abs=1e-9)


def test_learning_recovers_the_table_that_made_the_data() -> None:
    """20,000 samples determine log-ratios to about 0.05; the table is identified up to shifts of rows and columns."""
    truth = with_random_tables(CRF(constrained_chain(5, states=3)), seed=3)
    nothing = torch.zeros(1, 5, 3, dtype=torch.float64)
    x = truth.sample(20_000, nothing, seed=0)[:, 0]
    crf = CRF(constrained_chain(5, states=3)).double()
    optimiser = torch.optim.LBFGS(crf.parameters(), max_iter=30)
    states, counts = x.unique(dim=0, return_counts=True)

    def closure() -> float:
        optimiser.zero_grad()
        log_prob = crf.log_prob(states, nothing.expand(len(states), -1, -1))
        loss = -(log_prob * counts).sum() / counts.sum()
        loss.backward()
        return loss.item()

    optimiser.step(closure)  # type: ignore[arg-type]
    p, q = (m.marginals(nothing).variables for m in (truth, crf))
    for ours, theirs in zip(p, q, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02)


def test_map_respects_budgets_and_the_template_has_the_learned_tables() -> None:
    crf = with_random_tables(CRF(constrained_chain()))
    unary = torch.randn(3, 6, 2, dtype=torch.float64)
    best = crf.map(unary)
    assert best.status == ["optimal"] * 3
    assert bool(((best.assignment.sum(1) >= 1) & (best.assignment.sum(1) <= 3)).all())
    model = crf.template()
    np.testing.assert_allclose(model.table_groups[0].values[2], crf.tables[0].detach().numpy())


@pytest.mark.parametrize(
    ("unary", "tables", "said"),
    [
        (torch.zeros(2, 5, 2), [], r"\(B, 6, 2\)"),
        (torch.zeros(2, 6, 2), [None, None], "1 groups"),
        (torch.zeros(2, 6, 2), [torch.zeros(3, 5, 2, 2)], r"\(2, 5, 2, 2\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(unary: Tensor, tables: list[Tensor | None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CRF(constrained_chain()).models(unary, tables)


def test_one_crf_serves_graphs_of_different_structure() -> None:
    short, long = constrained_chain(4), constrained_chain(6)
    crf = with_random_tables(CRF(short))
    other = crf.on(long)
    assert next(iter(other.parameters())) is crf.tables[0]
    torch.manual_seed(0)
    samples = []
    for graph, n in ((crf, 4), (other, 6), (crf, 4), (other, 6)):
        samples.append((graph, torch.tensor([1] + [0] * (n - 1)), torch.randn(n, 2, dtype=torch.float64)))
    together = log_prob_each(samples)
    alone = torch.stack([graph.log_prob(x[None], unary[None])[0] for graph, x, unary in samples])
    torch.testing.assert_close(together, alone)
    (gradient,) = torch.autograd.grad(together.sum(), crf.tables[0])
    assert gradient.abs().sum() > 0
    with pytest.raises(ValueError, match="shapes"):
        crf.on(constrained_chain(4, states=3))
    with pytest.raises(ValueError, match="each"):
        CRF(short, learn="each").on(short)
