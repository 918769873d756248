"""The peers find the optimum of small models: they are given the right problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel
from fgnn.reproduce.milp import solve_milp


def mixed(seed: int) -> GraphicalModel:
    """Variables of one to four states, tables of two and three, forbidden cells, clauses and a budget."""
    rng = np.random.default_rng(seed)
    cards = [2, 3, 2, 4, 2, 1, 2, 3]
    model = GraphicalModel(cards)
    model.add_unaries(rng.normal(size=sum(cards)))
    for scope in ((0, 1), (1, 3), (2, 4), (3, 7), (5, 6), (0, 2, 4), (1, 3, 6)):
        shape = [cards[i] for i in scope]
        values = rng.normal(size=shape)
        values[rng.random(shape) < 0.15] = -np.inf
        model.add_table(scope, values)
    clause = np.zeros((2, 2, 2))
    clause[1, 0, 1] = -2.0
    model.add_table((0, 4, 6), clause)
    model.add_budget((0, 2, 4, 6), at_most=2, at_least=1)
    return model


@pytest.mark.parametrize("seed", range(5))
def test_the_integer_program_of_any_model_has_the_right_optimum(seed: int) -> None:
    model = mixed(seed)
    best = fgnn.solve(model, "brute-force")
    states, proved = solve_milp(fgnn.ModelBatch.stack([model]))
    assert proved.tolist() == [True]
    if best.feasible:
        assert model.score(states[0].tolist()) == pytest.approx(best.score, abs=1e-6)


def test_the_integer_program_says_that_a_model_is_infeasible() -> None:
    model = GraphicalModel([3, 2])
    model.add_unary(0, [-np.inf] * 3)
    states, proved = solve_milp(fgnn.ModelBatch.stack([model]))
    assert (states.tolist(), proved.tolist()) == ([[0, 0]], [True])
    assert torch.equal(proved, torch.tensor([True]))


@pytest.mark.parametrize("seed", range(5))
def test_cp_sat_has_the_right_optimum_and_reports_its_solutions(seed: int) -> None:
    pytest.importorskip("ortools")
    from fgnn.bench.anytime.cp_sat import solve_cp_sat

    model, found = mixed(seed), list[tuple[float, list[int]]]()
    best = fgnn.solve(model, "brute-force")
    states, seconds, proved = solve_cp_sat(model, 20.0, 1, 0, lambda t, x: found.append((t, x)))
    assert proved == best.feasible
    if best.feasible:
        assert states is not None
        assert model.score(states) == pytest.approx(best.score, abs=1e-6)
        assert found[-1][1] == states
        assert 0 <= found[-1][0] <= seconds
