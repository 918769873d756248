"""Gradients through a fixed number of sum-product iterations, against finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fgnn import GraphicalModel, ModelBatch, log_partition


def loopy(seed: int = 0) -> ModelBatch:
    """Two models: a cycle of mixed cardinalities with a ternary table."""
    models = []
    for b in range(2):
        rng = np.random.default_rng(seed + b)
        model = GraphicalModel([2, 3, 2, 3])
        model.add_unaries(rng.normal(size=10))
        for i, j in ((0, 1), (1, 2), (2, 3), (0, 3)):
            model.add_table((i, j), rng.normal(size=(2, 3) if i % 2 == 0 else (3, 2)))
        model.add_table((0, 2, 3), rng.normal(size=(2, 2, 3)))
        models.append(model)
    return ModelBatch.stack(models)


def value(batch: ModelBatch, unary: Tensor, tables: tuple[Tensor, ...], **options: object) -> Tensor:
    groups = tuple(replace(t, values=v) for t, v in zip(batch.tables, tables, strict=True))
    models = replace(batch, unary=torch.where(batch.state_mask, unary, -torch.inf), tables=groups)
    result: Tensor = log_partition(models, "sum-product", **options).value
    return result


def numbers(batch: ModelBatch) -> tuple[Tensor, tuple[Tensor, ...]]:
    unary = batch.unary.masked_fill(~batch.state_mask, 0.0).requires_grad_(True)
    return unary, tuple(t.values.detach().clone().requires_grad_(True) for t in batch.tables)


@pytest.mark.parametrize("iterations", [0, 3])
def test_gradients_pass_through_every_iteration(iterations: int) -> None:
    batch = loopy()
    unary, tables = numbers(batch)

    def function(unary: Tensor, *tables: Tensor) -> Tensor:
        return value(batch, unary, tables, unroll=True, iterations=iterations, damping=0.3)

    assert torch.autograd.gradcheck(function, (unary, *tables), fast_mode=True)


def test_after_convergence_the_gradient_is_that_of_the_fixed_point() -> None:
    batch = loopy(5)
    results = []
    for options in ({"unroll": True, "iterations": 100}, {"iterations": 2000, "tolerance": 1e-12}):
        unary, tables = numbers(batch)
        log_z = value(batch, unary, tables, **options)
        results.append((log_z.detach(), *torch.autograd.grad(log_z.sum(), (unary, *tables))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_gradients_pass_through_constraints_and_the_scores_of_patterns() -> None:
    rng = np.random.default_rng(3)
    model = GraphicalModel([2, 2, 2, 2, 3])
    model.add_unaries(rng.normal(size=11))
    model.add_budget((0, 1, 2, 3), at_most=3, at_least=1)
    model.add_parity((0, 2, 3), 1)
    model.add_linear((1, 3, 4), [1, 2, 1], at_most=4)
    model.add_pattern((0, 1, 4), [(0, 0, 0), (1, 1, 2)], rng.normal(size=2), default=0.3)
    batch = ModelBatch.stack([model])
    (at,) = (g for g, f in enumerate(batch.structured) if f.kind.name == "pattern")
    pattern = batch.structured[at]

    def function(unary: Tensor, scores: Tensor, default: Tensor) -> Tensor:
        own = replace(pattern, numbers={"scores": scores, "default": default})
        structured = (*batch.structured[:at], own, *batch.structured[at + 1 :])
        models = replace(batch, unary=torch.where(batch.state_mask, unary, -torch.inf), structured=structured)
        result: Tensor = log_partition(models, "sum-product", unroll=True, iterations=3, damping=0.2).value
        return result

    learned = [numbers(batch)[0], *(pattern.numbers[name].clone().requires_grad_(True) for name in pattern.numbers)]
    assert torch.autograd.gradcheck(function, learned, fast_mode=True)
    long = log_partition(model, "sum-product", unroll=True, iterations=200).value
    assert long == pytest.approx(log_partition(model, "sum-product", iterations=1000).value, abs=1e-6)


def forbidding(seed: int = 0) -> ModelBatch:
    """Two loopy models with forbidden states, rows and entries, a budget that forces its variables and a tight one."""
    models = []
    for b in range(2):
        rng = np.random.default_rng(seed + b)
        model = GraphicalModel([2, 3, 2, 3, 2, 2])
        model.add_unaries(rng.normal(size=14))
        model.add_unary(3, [0.0, -np.inf, 0.0])
        for i, j in ((0, 1), (1, 2), (2, 3), (0, 3)):
            table = rng.normal(size=(2, 3) if i % 2 == 0 else (3, 2))
            table[0, 1] = -np.inf
            model.add_table((i, j), table)
        table = rng.normal(size=(2, 2, 3))
        table[:, 0, 2] = -np.inf  # no state of the second variable is excluded by this table alone
        model.add_table((0, 2, 3), table)
        table = rng.normal(size=(2, 2))
        table[0] = -np.inf  # but here the first variable is in state 1
        model.add_table((0, 4), table)
        model.add_budget((0, 4, 5), at_most=1 + b)
        model.add_budget((2, 5), at_most=0)
        models.append(model)
    return ModelBatch.stack(models)


@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_gradients_pass_through_models_with_forbidden_states(iterations: int) -> None:
    batch = forbidding()
    free = [batch.unary > -torch.inf, *(t.values > -torch.inf for t in batch.tables)]
    given = [batch.unary, *(t.values for t in batch.tables)]

    def function(*finite: Tensor) -> Tensor:
        unary, *tables = (
            torch.full_like(x, -torch.inf).masked_scatter(f, v) for x, f, v in zip(given, free, finite, strict=True)
        )
        return value(batch, unary, tuple(tables), unroll=True, iterations=iterations, damping=0.3)

    learned = [x[f].clone().requires_grad_(True) for x, f in zip(given, free, strict=True)]
    assert bool(function(*learned).isfinite().all())
    assert torch.autograd.gradcheck(function, learned, fast_mode=True)


def test_with_forbidden_states_many_iterations_reach_the_fixed_point() -> None:
    batch, results = forbidding(7), []
    for options in ({"unroll": True, "iterations": 100}, {"iterations": 2000, "tolerance": 1e-12}):
        leaves = [t.detach().clone().requires_grad_(True) for t in (batch.unary, *(t.values for t in batch.tables))]
        log_z = value(batch, leaves[0], tuple(leaves[1:]), **options)
        results.append((log_z.detach(), *torch.autograd.grad(log_z.sum(), leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    exact = log_partition(batch, "exact").value
    assert float((results[0][0] - exact).abs().max()) < 0.5  # loopy, but about the same distribution


def test_structured_factors_may_force_their_variables() -> None:
    rng = np.random.default_rng(2)
    model = GraphicalModel([2, 2, 3, 2, 2])
    model.add_unaries(rng.normal(size=11))
    model.add_unary(1, [-np.inf, 0.0])
    model.add_parity((0, 1), 0)  # x_0 = 1
    model.add_linear((0, 2), [1, 1], at_most=1)  # so that x_2 = 0
    model.add_pattern((2, 3), [(0, 0), (1, 1)], [0.3, -0.2], default=-np.inf)  # and x_3 = 0
    model.add_all_different((3, 4))
    unary = ModelBatch.stack([model]).unary
    batch, possible = ModelBatch.stack([model]), unary > -torch.inf

    def function(finite: Tensor) -> Tensor:
        given = torch.full_like(unary, -torch.inf).masked_scatter(possible, finite)
        return value(batch, given, (), unroll=True, iterations=6, damping=0.1)

    assert torch.autograd.gradcheck(function, unary[possible].clone().requires_grad_(True), fast_mode=True)
    long = log_partition(model, "sum-product", unroll=True, iterations=200).value
    assert long == pytest.approx(log_partition(model, "exact").value, abs=1e-9)


def test_infeasible_models_are_called_so_and_have_no_gradient() -> None:
    models = []
    for b in range(2):
        model = GraphicalModel([2, 2, 2])
        model.add_unaries(np.arange(6.0))
        model.add_table((0, 1), [[0.5, -np.inf], [-np.inf, 0.2]])
        model.add_table((1, 2), [[0.1, -np.inf], [-np.inf, 0.2]])
        model.add_unary(0, [0.0, -np.inf])
        model.add_unary(2, [-np.inf, 0.0] if b else [0.0, 0.0])
        models.append(model)
    batch = ModelBatch.stack(models)
    unary = batch.unary.clone().requires_grad_(True)
    log_z = log_partition(replace(batch, unary=unary), "sum-product", unroll=True, iterations=5)
    torch.testing.assert_close(log_z.value.detach(), log_partition(batch, "exact").value)
    assert log_z.exact.tolist() == [False, True]
    (gradient,) = torch.autograd.grad(log_z.value[:1].sum(), unary, retain_graph=True)
    torch.testing.assert_close(gradient[0], torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(log_z.value.sum(), unary)
    assert not gradient[1].any()


@pytest.mark.gpu
def test_a_gpu_gives_the_gradient_of_the_cpu() -> None:
    batch = loopy()
    gradients = []
    for device in ("cpu", "cuda"):
        moved = batch.to(device)
        unary, tables = numbers(moved)
        log_z = value(moved, unary, tables, unroll=True, iterations=5)
        gradients.append([g.cpu() for g in torch.autograd.grad(log_z.sum(), (unary, *tables))])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
