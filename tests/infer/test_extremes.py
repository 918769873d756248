"""Numbers at the edge of float64: every method is right by exact rational arithmetic, or refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fgnn
from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.errors import InputError
from tests.infer.oracle import chain
from tests.infer.rational import faults, rational_scores

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
NEVER = -math.inf


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return rng.choice([-1.0, 1.0], size=shape)


# Distributions of the entries of factors.
EXTREMES: dict[str, Draw] = {
    "many forbidden": lambda rng, shape: np.where(rng.random(shape) < 0.45, NEVER, rng.normal(size=shape)),
    "nearly all forbidden": lambda rng, shape: np.where(rng.random(shape) < 0.85, NEVER, rng.normal(size=shape)),
    "huge": lambda rng, shape: rng.choice([1e298, -1e298, 3e297, 0.0, 1.0], size=shape),
    "huge and forbidden": lambda rng, shape: rng.choice([1e299, -1e299, 1.0, NEVER], size=shape),
    "any size": lambda rng, shape: _signs(rng, shape) * 10.0 ** rng.uniform(-30, 30, size=shape),
    "a million times": lambda rng, shape: _signs(rng, shape) * 10.0 ** rng.uniform(-6, 6, size=shape),
    "one far above": lambda rng, shape: np.where(rng.random(shape) < 0.15, 1e12, rng.normal(size=shape)),
    "one far below": lambda rng, shape: np.where(rng.random(shape) < 0.15, -1e12, rng.normal(size=shape)),
    "as good as forbidden": lambda rng, shape: np.where(rng.random(shape) < 0.2, -1e298, rng.normal(size=shape)),
    "denormal": lambda rng, shape: rng.integers(-9, 9, size=shape) * 5e-324,
    "tiny": lambda rng, shape: rng.normal(size=shape) * 1e-300,
    "small": lambda rng, shape: rng.normal(size=shape) * 1e-20,
    "ties": lambda rng, shape: rng.integers(0, 2, size=shape).astype(np.float64),
    "all equal": lambda rng, shape: np.zeros(shape),
    "underflowing probabilities": lambda rng, shape: np.log(rng.choice([1e-320, 5e-324, 1e-300, 0.5], size=shape)),
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "brute-force": ("brute-force", {}),
    "exact": ("exact", {}),
    "toulbar2": ("toulbar2", {}),
    "lp": ("lp", {}),
    "ad3": ("ad3", {"iterations": 400}),
    "ad3, float64": ("ad3", {"iterations": 400, "tolerance": 1e-6}),
    "ad3, branch and bound": ("ad3", {"iterations": 100, "branch_and_bound": True, "max_nodes": 10}),
    "max-product": ("max-product", {"iterations": 60}),
    "max-product, sequential": ("max-product", {"iterations": 60, "schedule": "sequential"}),
    "max-product, residual": ("max-product", {"iterations": 30, "schedule": "residual"}),
    "max-product, best": ("max-product", {"iterations": 60, "decode": "best"}),
    "max-product, unnormalised": ("max-product", {"normalise": False, "damping": 0.0, "iterations": 1200}),
    "max-product, paper": ("max-product", {"variant": "paper", "damping": 0.0}),
    "max-product, paper, unnormalised": (
        "max-product",
        {"variant": "paper", "normalise": False, "damping": 0.0, "iterations": 600},
    ),
    "auto": ("auto", {"time_limit": 20.0}),
}
SETTLES = ("brute-force", "exact")


def extreme_models(seed: int) -> dict[str, GraphicalModel]:
    """One structure, and a model of it for every kind of extreme."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    cards = [2 if rng.random() < 0.6 else int(rng.integers(1, 4)) for _ in range(count)]
    scopes = [rng.permutation(count)[: rng.integers(1, min(3, count) + 1)].tolist() for _ in range(rng.integers(0, 5))]
    binary = [i for i, k in enumerate(cards) if k == 2]
    budget: tuple[list[int], int, int] | None = None
    if binary and rng.random() < 0.5:
        size = int(rng.integers(1, len(binary) + 1))
        low = int(rng.integers(0, size + 1)) if rng.random() < 0.5 else 0
        budget = (rng.permutation(binary)[:size].tolist(), low, int(rng.integers(low, size + 1)))
    models = {}
    for name, draw in EXTREMES.items():
        model = models[name] = GraphicalModel(cards)
        for i, k in enumerate(cards):
            model.add_unary(i, draw(rng, (k,)))
        for scope in scopes:
            model.add_table(scope, draw(rng, tuple(cards[i] for i in scope)))
        if budget is not None:
            model.add_budget(budget[0], budget[2], at_least=budget[1])
    return models


def _check(method: str, seeds: range) -> None:
    name, options = METHODS[method]
    wrong = []
    for seed in seeds:
        models = extreme_models(seed)
        # all in one batch, so that an overflow in one model would show in the others
        solutions = solve(ModelBatch.stack(list(models.values())), name, **options)
        for k, (kind, model) in enumerate(models.items()):
            errors = faults(model, rational_scores(model), solutions[k], proves=method in SETTLES)
            wrong += [f"structure {seed}, {kind}: {what}" for what in errors]
    assert not wrong


@pytest.mark.parametrize("method", METHODS)
def test_right_by_rational_arithmetic(method: str) -> None:
    if method == "toulbar2":
        pytest.importorskip("pytoulbar2")
    _check(method, range(2 if "branch" in method else 4))


@pytest.mark.parametrize(
    ("method", "seed"),
    [
        ("ad3, branch and bound", 1065),  # scores apart by 0.2, under an entry of -1e12
        ("ad3, branch and bound", 1083),
        ("max-product, unnormalised", 1116),  # messages that outgrow float64
        ("max-product, unnormalised", 1128),
    ],
)
def test_structures_that_were_once_answered_wrongly(method: str, seed: int) -> None:
    _check(method, range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_right_by_rational_arithmetic_on_many(method: str) -> None:
    _check(method, range(1000, 1200))


@pytest.mark.parametrize("method", [m for m in METHODS if m != "toulbar2"])
def test_an_infeasible_model_is_never_solved(method: str) -> None:
    name, options = METHODS[method]
    for model in nothing_allowed():
        solution = solve(model, name, **options)
        assert not solution.feasible
        assert solution.status in ("infeasible", "time-limit")
        assert solution.score == NEVER
        if method in (*SETTLES, "auto"):
            assert (solution.status, solution.bound) == ("infeasible", NEVER)


def nothing_allowed() -> list[GraphicalModel]:
    """No state of a variable, no cell of a table, two budgets against each other, and a clash of tables."""
    unary, table, budgets, clash = (GraphicalModel([2, 2, 2]) for _ in range(4))
    unary.add_unary(1, [NEVER, NEVER])
    table.add_table((0, 2), np.full((2, 2), NEVER))
    budgets.add_budget((0, 1, 2), at_most=1)
    budgets.add_budget((0, 1, 2), 3, at_least=2)
    clash.add_table((0, 1), [[0.0, NEVER], [NEVER, NEVER]])
    clash.add_table((1, 2), [[NEVER, NEVER], [0.0, 1.0]])
    return [unary, table, budgets, clash]


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", fgnn.infer.api.SOLVERS)
def test_scores_that_could_overflow_are_refused(method: str) -> None:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [1.5e308, 0.0])
    model.add_unary(1, [1.5e308, 0.0])
    with pytest.raises(ValueError, match="Expected log-potentials that add up to at most 1e"):
        solve(model, method)


def test_the_model_that_is_too_large_is_named() -> None:
    small, large = GraphicalModel([2]), GraphicalModel([2])
    large.add_unary(0, [0.0, -1e301])
    with pytest.raises(ValueError, match=r"of model 1 that add up to at most 1e\+300 in size \(got 1e\+301\)"):
        solve(ModelBatch.stack([small, large]), "exact")
    single = GraphicalModel([2])
    single.add_unary(0, [0.0, 1e32])
    with pytest.raises(ValueError, match=r"at most 1e\+30 in size"):
        solve(ModelBatch.stack([single], dtype=torch.float32), "max-product")


@pytest.mark.parametrize("entry", [math.nan, math.inf])
def test_invalid_log_potentials_are_refused_in_a_batch_too(entry: float) -> None:
    batch = ModelBatch.stack([chain(0, length=10)])
    batch.unary[0, 3, 1] = entry
    with pytest.raises(ValueError, match="Expected log-potentials that add up"):
        solve(batch, "exact")


def test_sums_beyond_float64_are_refused_where_they_arise() -> None:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [1.5e308, -1.5e308])
    with pytest.raises(ValueError, match="got an overflow in variable 0"):
        model.add_unary(0, [1.5e308, 0.0])
    with pytest.raises(ValueError, match="got an overflow in the unaries"):
        model.add_unaries([0.0, -1.5e308, 0.0, 0.0])
    model.add_unary(1, [1.5e308, 0.0])
    with pytest.raises(ValueError, match="overflow"):
        model.score([0, 0])
    assert model.score([0, 1]) == 1.5e308


# ---- probabilities in files -------------------------------------------------------------------------------------


def test_the_smallest_probabilities_of_a_file_are_not_impossible(tmp_path: Path) -> None:
    file = tmp_path / "small.uai"
    file.write_text("MARKOV\n2\n2 2\n2\n2 0 1\n1 0\n\n4\n1e-320 0 5e-324 0\n\n2\n1e-300 1e-320\n", encoding="utf-8")
    model = fgnn.read_model(file)
    scores = rational_scores(model)
    assert [x for x, v in scores.items() if v is not None] == [(0, 0), (1, 0)]
    for method in ("exact", "brute-force", "auto", "lp", "ad3", "max-product"):
        solution = solve(model, method)
        assert solution.assignment.tolist() == [0, 0]
        assert solution.score == pytest.approx(math.log(1e-320) + math.log(1e-300))


@pytest.mark.parametrize("word", ["1e-400", "0." + "0" * 350 + "1", "123.4E-0999"])
def test_a_probability_that_would_become_zero_is_refused(tmp_path: Path, word: str) -> None:
    file = tmp_path / "vanishing.uai"
    file.write_text(f"MARKOV\n1\n2\n1\n1 0\n\n2\n0.5\n{word}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"vanishing.uai, line 9, table 0: .*underflow"):
        fgnn.read_model(file)
    bif = tmp_path / "vanishing.bif"
    text = "network n { }\nvariable x { type discrete [ 2 ] { a, b }; }\nprobability ( x ) { table WORD, 1.0; }\n"
    bif.write_text(text.replace("WORD", word), encoding="utf-8")
    with pytest.raises(InputError, match=r"vanishing.bif, line 3.*underflow"):
        fgnn.read_model(bif)


@pytest.mark.parametrize("word", ["0", "0e-400", "0.0E-999", "0." + "0" * 400])
def test_zero_may_be_spelled_in_any_way(tmp_path: Path, word: str) -> None:
    file = tmp_path / "zero.uai"
    file.write_text(f"MARKOV\n1\n2\n1\n1 0\n\n2\n0.5 {word}\n", encoding="utf-8")
    assert fgnn.read_model(file).unary(0).tolist() == [math.log(0.5), NEVER]
