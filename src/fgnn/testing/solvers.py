"""Check a solver against brute force on small random models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fgnn.infer import Answer, solve
from fgnn.infer.api import Solver, solver_named
from fgnn.infer.certificate import certify
from fgnn.pgm import GraphicalModel, ModelBatch

_TOLERANCE = 1e-9


def check_solver(
    solver: str | Solver,
    *,
    exact: bool = False,
    budgets: bool = True,
    forbidden: bool = True,
    trials: int = 20,
    seed: int = 0,
    **options: Any,
) -> None:
    """Check that what a solver says is true, on batches of small random models of mixed cardinality.

    For every batch, and for one without models,

    - the tensors of the `Answer` have the right shapes and types, and states are in range;
    - no bound is below the optimum found by brute force;
    - where its bounds prove an assignment optimal or a model infeasible, that is true;
    - a time limit of a millisecond leaves all this true;
    - the same seed gives the same answer, also through `fgnn.solve` with the options;
    - the models are left unchanged.

    Args:
        solver: A function ``(batch, *, time_limit, seed, progress, **options) -> Answer``, or a method's name.
        exact: Whether to expect the proved optimum of every model.
        budgets: Whether models have budgets.
        forbidden: Whether tables have ``-inf`` entries.
        trials: How many batches to draw.
        seed: Seeds the models and the solver.
        options: Passed to the solver.

    Raises:
        AssertionError: At the first check that fails; the message names it and the models.

    Example:
        >>> fgnn.testing.check_solver("exact", exact=True)
        >>> fgnn.testing.check_solver(my_solver, sweeps=5)  # doctest: +SKIP
    """
    call = solver_named(solver) if isinstance(solver, str) else solver
    rng = np.random.default_rng(seed)
    for trial in range(trials):
        models = random_models(rng, int(rng.integers(1, 5)), budgets=budgets, forbidden=forbidden)
        batch, untouched = ModelBatch.stack(models), ModelBatch.stack(models)
        optimum = solve(batch, "brute-force").score
        where = f"in trial {trial} with seed {seed}"
        answer = call(batch, time_limit=None, seed=seed, progress=None, **options)
        _check(_unchanged(batch, untouched), "unchanged models", where)
        _check_answer(batch, answer, optimum, where)
        if exact:
            score = batch.score(answer.assignment)
            _check(certify(batch, answer).proved & _close(score, optimum), "the proved optimum", where)
        if trial % 5 == 0:
            hasty = call(batch, time_limit=1e-3, seed=seed, progress=None, **options)
            _check_answer(batch, hasty, optimum, f"{where} and a time limit")
            none = batch.select(slice(0, 0))
            empty = call(none, time_limit=None, seed=seed, progress=None, **options)
            _check_answer(none, empty, optimum[:0], "without models")
        again = solve(batch, solver, seed=seed, **options)
        _check((again.assignment == answer.assignment).all(1), "the same answer for the same seed", where)


def random_models(
    rng: np.random.Generator, count: int, *, budgets: bool = True, forbidden: bool = True
) -> list[GraphicalModel]:
    """Models of the same random structure with different numbers; some have no feasible assignment."""
    cards = rng.integers(1, 4, size=rng.integers(1, 7))
    binary = np.nonzero(cards == 2)[0]
    tables = [rng.permutation(len(cards))[: rng.integers(1, 4)] for _ in range(rng.integers(0, 6))]
    groups = [rng.permutation(binary)[: rng.integers(1, 5)] for _ in range(rng.integers(0, 3))]
    models = []
    for _ in range(count):
        model = GraphicalModel(cards)
        model.add_unaries(rng.normal(size=cards.sum()))
        for scope in tables:
            values = 2 * rng.normal(size=cards[scope])
            if forbidden:
                values[rng.random(values.shape) < 0.2] = -np.inf
            model.add_table(scope.tolist(), values)
        for scope in groups if budgets and len(binary) else ():
            low, high = np.sort(rng.integers(0, len(scope) + 1, size=2)).tolist()
            model.add_budget(scope.tolist(), high, at_least=low)
        models.append(model)
    return models


def _check_answer(batch: ModelBatch, answer: Answer, optimum: torch.Tensor, where: str) -> None:
    b, n = len(batch), batch.num_variables
    shapes = {"assignment": ((b, n), torch.int64), "bound": ((b,), torch.float64), "iterations": ((b,), torch.int64)}
    shapes |= dict.fromkeys(("converged", "timed_out"), ((b,), torch.bool))
    for name, (shape, dtype) in shapes.items():
        value = getattr(answer, name)
        if tuple(value.shape) != shape or value.dtype != dtype:
            got = f"{tuple(value.shape)}, {value.dtype}"
            raise AssertionError(f"Expected {name} of shape {shape}, {dtype} {where} (got {got})")
    states = answer.assignment
    _check(((states >= 0) & (states < batch.cardinalities)).all(1), "states below the cardinalities", where)
    slack = _TOLERANCE * optimum.abs().clamp(min=1.0).nan_to_num(posinf=1.0)
    _check(answer.bound >= optimum - slack, "bounds of at least the optimum", where)
    proved = certify(batch, answer).proved
    _check(~proved | _close(batch.score(states), optimum), "an optimal assignment where proved", where)


def _close(score: torch.Tensor, optimum: torch.Tensor) -> torch.Tensor:
    return torch.isclose(score, optimum, rtol=_TOLERANCE, atol=_TOLERANCE)


def _check(holds: torch.Tensor, expected: str, where: str) -> None:
    if not bool(holds.all()):
        models = (~holds).nonzero().flatten().tolist()
        raise AssertionError(f"Expected {expected} {where} (got otherwise for models {models})")


def _unchanged(batch: ModelBatch, before: ModelBatch) -> torch.Tensor:
    """Whether each model's numbers are those of before.  # shape: (B,)"""
    pairs = [(batch.unary, before.unary), (batch.constant[:, None], before.constant[:, None])]
    pairs += [(t.values, u.values) for t, u in zip(batch.tables, before.tables, strict=True)]
    return torch.stack([(one == other).flatten(1).all(1) for one, other in pairs]).all(0)
