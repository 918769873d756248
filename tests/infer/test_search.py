"""`search` finds the best assignment of small models, keeps what it promises, and is never worse than its start."""

from __future__ import annotations

import time
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, solve
from fgnn.infer.certificate import StandardForm
from fgnn.infer.counted import scores_by_sum
from fgnn.infer.exact.solver import TooLarge
from fgnn.infer.search.arrays import Arrays, arrays_of
from fgnn.infer.search.restriction import Restriction
from fgnn.infer.solution import Progress
from fgnn.pgm.factors import Counter
from fgnn.pgm.group_batches import CountedBatch
from fgnn.testing import check_solver
from tests.infer.counting import ScoredSum, counting_models
from tests.infer.oracle import best_score
from tests.strategies import models

pytest.importorskip("numba")

from fgnn.infer.search.anneal import descend, evaluate, fill_field, move
from fgnn.infer.search.ball import random_ball
from fgnn.infer.search.chance import generator
from fgnn.infer.search.crossover import cross
from fgnn.infer.search.eliminate import improve, solve_subgraph
from fgnn.infer.search.guide import beliefs, fill_doubt, sample
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.propagate import propagate
from fgnn.infer.search.subgraph import plan_subgraph, workspace
from fgnn.infer.search.tabu import tabu_memory, tabu_search
from fgnn.infer.search.worker import Worker


def glass(size: int, seed: int = 0, budgets: bool = False) -> GraphicalModel:
    """A grid of binary variables with random couplings, with a budget over every 3 x 3 patch if asked."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * size**2)
    model.add_unaries(rng.normal(size=2 * size**2))
    place = np.arange(size**2).reshape(size, size)
    pairs = np.concatenate(
        [
            np.stack([place[:, :-1], place[:, 1:]], -1).reshape(-1, 2),
            np.stack([place[:-1], place[1:]], -1).reshape(-1, 2),
        ]
    )
    model.add_tables(pairs, rng.normal(size=(len(pairs), 2, 2)))
    if budgets:
        patches = [place[i : i + 3, j : j + 3].ravel() for i in range(size - 2) for j in range(size - 2)]
        model.add_budgets(np.array(patches), rng.integers(2, 6, len(patches)))
    return model


def penalised(model: GraphicalModel) -> Penalised:
    return Penalised.of(*arrays_of(ModelBatch.stack([model]), 0))


def random_states(m: Arrays, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, m.cards)


@settings(max_examples=40)
@given(models() | counting_models())
def test_it_finds_the_best_assignment_of_small_models(model: GraphicalModel) -> None:
    solution = solve(model, "search", rounds=30, workers=1)
    assert solution.score == pytest.approx(best_score(model), abs=1e-9)


@settings(max_examples=25)
@given(models() | counting_models())
def test_penalised_scores_are_scores_where_feasible(model: GraphicalModel) -> None:
    p = penalised(model)
    for seed in range(5):
        x = random_states(p.arrays, seed)
        if any(model.unary(i)[x[i]] == -np.inf for i in range(len(x))):
            continue
        far, score = p.rank(x)
        exact = model.score(x) - model.constant
        assert (far == 0) == (exact > -np.inf)
        if far == 0:
            assert score == pytest.approx(exact, abs=1e-9)


@settings(max_examples=25)
@given(models() | counting_models())
def test_fields_stay_right_as_variables_move(model: GraphicalModel) -> None:
    m = penalised(model).arrays
    x = random_states(m, 0)
    field, sums = np.empty(len(m.unary)), np.zeros(len(m.count_first) - 1, np.int64)
    score = fill_field(m, x, field, sums)
    far = np.zeros(len(m.values)), np.zeros(len(m.sums))
    rng = np.random.default_rng(1)
    for _ in range(20):
        i = int(rng.integers(len(x)))
        state = int(rng.integers(m.cards[i]))
        score += field[m.states[i] + state] - field[m.states[i] + x[i]]
        move(m, x, field, sums, i, state)
    assert score == pytest.approx(evaluate(m, x, *far)[0], rel=1e-9, abs=1e-6)
    again, sums_again = field.copy(), sums.copy()
    fill_field(m, x, again, sums_again)
    np.testing.assert_allclose(field, again, rtol=1e-9, atol=1e-6)
    np.testing.assert_array_equal(sums, sums_again)


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("cells", [4, 64, 1 << 16])
def test_a_subgraph_is_solved_exactly_given_the_rest(budgets: bool, cells: int) -> None:
    model = glass(5, budgets=budgets)
    p = penalised(model)
    m, rng, ws = p.arrays, generator(0), workspace(p.arrays, cells, 1 << 20)
    x = random_states(m, 3)
    ball = random_ball(m, ws, 9, rng)
    order, first, scope, total = plan_subgraph(m, ws, ball, cells, 1 << 20, rng)
    assert set(order) <= set(ball)
    assert total <= cells * len(order)
    free = order[:9]
    y = x.copy()
    solve_subgraph(m, order, first, scope, y, 0.0, rng, ws)
    np.testing.assert_array_equal(np.delete(x, free), np.delete(y, free))
    candidates = np.repeat(x[None], 2 ** len(free), 0)
    candidates[:, free] = np.indices((2,) * len(free)).reshape(len(free), -1).T
    best = max(p.penalised(c.astype(np.int64)) for c in candidates)
    assert p.penalised(y) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("cells", [4, 64, 1 << 12])
def test_a_few_members_of_large_counters_are_solved_exactly_given_the_rest(cells: int) -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2, 3] * 40)
    model.add_unaries(rng.normal(size=200))
    model.add_tables([(i, i + 1) for i in range(0, 80, 2)], rng.normal(size=(40, 2, 3)))
    for first in (0, 20):  # two that share some members
        model.add_linear(range(first, first + 60), rng.integers(0, 5, size=(60, 3)), at_least=100, at_most=110)
    p = penalised(model)
    m, chance, ws = p.arrays, generator(0), workspace(p.arrays, cells, 1 << 20)
    x = random_states(m, 3)
    for _ in range(10):
        order, first_of, scope, _ = plan_subgraph(m, ws, random_ball(m, ws, 7, chance), cells, 1 << 20, chance)
        y = x.copy()
        solve_subgraph(m, order, first_of, scope, y, 0.0, chance, ws)
        candidates = np.repeat(x[None], np.prod(m.cards[order]), 0)
        candidates[:, order] = np.indices(m.cards[order]).reshape(len(order), -1).T
        assert p.penalised(y) == pytest.approx(max(p.penalised(c) for c in candidates), abs=1e-9)
        x = y
    assert not ws.large[0].any()
    assert not ws.taken.any()


def test_a_larger_size_frees_more_variables() -> None:
    m = penalised(glass(20)).arrays
    ws, rng = workspace(m, 1 << 16, 1 << 22), generator(0)
    ball = random_ball(m, ws, 400, rng)
    freed = [len(plan_subgraph(m, ws, ball, cells, 1 << 22, rng)[0]) for cells in (4, 64, 1 << 10)]
    assert len(ball) == 400
    assert freed == sorted(freed)
    assert freed[0] > 200  # an induced forest


def test_moves_never_lose() -> None:
    p = penalised(glass(12, budgets=True))
    m, rng, ws = p.arrays, generator(0), workspace(p.arrays, 1 << 10, 1 << 20)
    x = random_states(m, 0)
    field, sums = np.empty(len(m.unary)), np.zeros(len(m.count_first) - 1, np.int64)
    scores = [fill_field(m, x, field, sums)]
    descend(m, x, field, sums, 0.0, 50, rng)
    scores.append(p.penalised(x))
    for _ in range(10):
        improve(m, x, ws, 20.0, 256, 1 << 14, 0.0, rng)
        scores.append(p.penalised(x))
    assert all(b >= a - 1e-9 for a, b in pairwise(scores))


@pytest.mark.parametrize("seed", range(5))
def test_crossing_two_assignments_gives_one_at_least_as_good_as_both(seed: int) -> None:
    p = penalised(glass(8, seed, budgets=seed % 2 == 1))
    x, y = random_states(p.arrays, seed), random_states(p.arrays, seed)
    y[: len(y) // 4] = 1 - y[: len(y) // 4]
    y[-5:] = 1 - y[-5:]
    before, other = p.penalised(x), p.penalised(y)
    gain = cross(p.arrays, x, y, generator(0))
    assert p.penalised(x) == pytest.approx(before + gain, abs=1e-9)
    assert p.penalised(x) >= max(before, other) - 1e-9


def clauses(variables: int, count: int, loss: float, seed: int = 0) -> GraphicalModel:
    """Random clauses of three literals; a violated one loses ``loss``."""
    rng = np.random.default_rng(seed)
    model = GraphicalModel([2] * variables)
    scopes = np.stack([rng.choice(variables, 3, replace=False) for _ in range(count)])
    tables = np.zeros((count, 2, 2, 2))
    tables[np.arange(count), *rng.integers(0, 2, (3, count))] = -loss
    model.add_tables(scopes, tables)
    return model


@settings(max_examples=25)
@given(models() | counting_models())
def test_tabu_search_leads_by_what_it_says_and_knows_the_variables_in_conflict(model: GraphicalModel) -> None:
    m = penalised(model).arrays
    x = random_states(m, 0)
    start, best = x.copy(), x.copy()
    field, sums, memory = np.empty(len(m.unary)), np.zeros(len(m.count_first) - 1, np.int64), tabu_memory(m)
    fill_field(m, x, field, sums)
    far = np.zeros(len(m.values)), np.zeros(len(m.sums))
    lead, _ = tabu_search(m, x, field, sums, memory, 0.0, 4000, generator(0), best)
    scores = [evaluate(m, states, *far)[0] for states in (start, best)]
    assert lead == pytest.approx(scores[1] - scores[0], rel=1e-9, abs=1e-6)
    losing = [i for i in range(len(x)) if m.cards[i] > 1 and field[m.states[i] + x[i]] < -1e-9]
    assert sorted(memory.conflicts[: memory.counts[0]]) == losing


def test_tabu_search_is_used_where_most_variables_have_no_conflict() -> None:
    used = {}
    for name, model in (("clauses", clauses(100, 380, 1.0)), ("glass", glass(12))):
        standard = StandardForm.of(ModelBatch.stack([model])).batch
        worker = Worker(Penalised.of(*arrays_of(standard, 0)), Pool(), (0,), ("anneal", "subgraphs", "tabu"))
        used[name] = set(worker.strategies)
    assert used == {"clauses": {"anneal", "subgraphs", "tabu"}, "glass": {"anneal", "subgraphs"}}


def test_tabu_search_alone_satisfies_clauses() -> None:
    assert solve(clauses(200, 780, 1.0), "search", rounds=40, workers=1, moves=("tabu",)).score == 0.0


@settings(max_examples=40)
@given(models() | counting_models())
def test_constraints_alone_cost_how_far_an_assignment_is_from_feasible(model: GraphicalModel) -> None:
    p = penalised(model)
    m, none = p.constraints(), (np.zeros(len(p.far_values)), np.zeros(len(p.far_sums)))
    for seed in range(4):
        x = random_states(m, seed)
        if all(p.arrays.unary[m.states[i] + x[i]] > p.ban for i in range(len(x))):
            assert evaluate(m, x, *none)[0] == p.rank(x)[0]


def test_propagation_follows_a_chain_of_constraints_to_its_end() -> None:
    model = GraphicalModel([3] * 30)
    model.add_unaries(np.random.default_rng(0).normal(size=90))
    forbidden = np.where(np.roll(np.eye(3), 1, 1) > 0, 0.0, -np.inf)  # the next state is the next one round
    model.add_tables([(i, i + 1) for i in range(29)], np.broadcast_to(forbidden, (29, 3, 3)))
    p = penalised(model)
    for seed in range(5):
        x = propagate(p.constraints(), p.arrays.unary, generator(seed))
        assert model.score(x) > -np.inf


def test_propagation_gives_the_last_variable_of_a_sum_what_is_left_for_it() -> None:
    model = GraphicalModel([3] * 12)
    model.add_unaries(np.random.default_rng(0).normal(size=36))
    for first in (0, 4, 8):  # sums of 0, 4 or 8, over weights 0, 1 and 2
        scores = np.where(np.arange(9) % 4 == 0, 0.0, -np.inf)
        model.add_factors(ScoredSum(((0, 1, 2),) * 4), [range(first, first + 4)], scores=scores[None])
    p = penalised(model)
    for seed in range(5):
        x = propagate(p.constraints(), p.arrays.unary, generator(seed))
        far = p.rank(x)[0]
        assert far >= -1.0 * 3  # one unit for each sum at most, which the last variable cannot mend
        assert all(x[first : first + 4].sum() % 4 in (0, 1, 3) for first in (0, 4, 8))


def test_propagation_keeps_budgets_while_it_takes_the_best_states() -> None:
    model = GraphicalModel([2] * 12)
    model.add_unaries(np.stack([np.zeros(12), np.arange(1.0, 13.0)], 1).ravel())
    model.add_budget(range(12), 3, at_least=3)
    p = penalised(model)
    for seed in range(5):
        assert propagate(p.constraints(), p.arrays.unary, generator(seed)).sum() == 3


def test_hard_clauses_are_satisfied_against_the_unaries_and_stay_so() -> None:
    model = clauses(150, 540, np.inf)
    model.add_unaries(np.random.default_rng(1).normal(size=300))
    scores = [solve(model, "search", rounds=rounds, workers=1).score for rounds in (4, 40)]
    assert -np.inf < scores[0] < scores[1]


def test_a_guide_says_where_to_start_and_what_to_free() -> None:
    model = glass(6)
    m = penalised(model).arrays
    scores = torch.zeros(36, 2)
    scores[:, 1] = 5.0  # sure of ones, but for variable 7
    scores[7] = 0.0
    belief = beliefs(scores, m.cards)
    drawn, doubt = np.zeros(36, np.int64), np.zeros(36)
    sample(m, belief, drawn, generator(0))
    assert drawn.mean() > 0.9
    fill_doubt(m, belief, np.ones(36, np.int64), doubt)
    weights = np.diff(doubt, prepend=0.0)
    assert weights.argmax() == 7
    ws = workspace(m, 64, 4096)
    ws.doubt[:] = np.where(np.arange(36) >= 7, 1.0, 0.0)  # all of the weight on variable 7
    assert {int(random_ball(m, ws, 1, generator(seed))[0]) for seed in range(8)} == {7}


def test_a_guide_with_the_optimum_leads_there() -> None:
    model = glass(9)
    best = solve(model, "exact")
    scores = torch.nn.functional.one_hot(torch.from_numpy(best.assignment), 2)[None].double() * 8
    assert solve(model, "search", rounds=30, workers=1, guide=scores).score == pytest.approx(best.score, abs=1e-9)
    with pytest.raises(ValueError, match="guide"):
        solve(model, "search", rounds=1, guide=scores[0])


def test_the_seed_determines_the_answer_of_a_number_of_rounds() -> None:
    model = glass(30, budgets=True)
    first, second = (solve(model, "search", rounds=6, workers=2, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.assignment, second.assignment)
    assert first.feasible


@pytest.mark.parametrize("moves", [("anneal",), ("trees",), ("subgraphs",), ("tabu",)])
def test_every_move_alone_improves_on_descent(moves: tuple[str, ...]) -> None:
    model = glass(30)
    p = penalised(model)
    m = p.arrays
    x = np.zeros(900, np.int64)
    field, sums = np.empty(len(m.unary)), np.zeros(0, np.int64)
    fill_field(m, x, field, sums)
    descend(m, x, field, sums, 0.0, 100, generator(0))
    assert solve(model, "search", rounds=10, workers=1, moves=moves).score > model.score(x)


def test_it_reaches_the_optimum_of_a_grid_with_budgets() -> None:
    model = glass(8, budgets=True)
    assert solve(model, "search", rounds=60, workers=1).score == pytest.approx(solve(model, "exact").score, abs=1e-9)


def test_satisfied_clauses_are_proved_optimal() -> None:
    solution = solve(clauses(100, 380, np.inf), "search", rounds=200, workers=1)
    assert solution.status == "optimal"
    assert solution.score == 0.0


def test_it_starts_from_given_assignments_and_keeps_time() -> None:
    model = glass(40)
    start = solve(model, "search", rounds=20, workers=1)
    reports: list[Progress] = []
    began = time.perf_counter()
    solution = solve(
        model, "search", time_limit=0.5, starts=[torch.from_numpy(start.assignment)[None]], progress=reports.append
    )
    assert time.perf_counter() - began < 4  # a busy machine
    assert solution.status == "time-limit"
    assert solution.score >= start.score - 1e-9
    assert reports
    assert max(r.score for r in reports) <= solution.score + 1e-9
    assert all(r.assignment is not None for r in reports)


def test_a_batch_and_every_kind_of_factor() -> None:
    models_of_one_kind = []
    for seed in range(3):
        model = glass(4, seed)
        model.add_parity(range(8), value=1)
        model.add_linear(range(4, 12), np.arange(1, 9), at_most=20)
        model.add_pattern((0, 5, 10, 15), [[0, 0, 0, 0], [1, 1, 1, 1]], [1.0, 2.0])
        models_of_one_kind.append(model)
    batch = ModelBatch.stack(models_of_one_kind)
    found = solve(batch, "search", rounds=40, workers=1)
    torch.testing.assert_close(found.score, solve(batch, "brute-force").score)


def test_it_refuses_unknown_moves_and_no_rounds() -> None:
    with pytest.raises(ValueError, match="sprints"):
        solve(glass(3), "search", moves=("sprints",))
    with pytest.raises(ValueError, match="rounds"):
        solve(glass(3), "search", rounds=0)


def test_what_it_says_is_true() -> None:
    check_solver("search", trials=6, rounds=5, workers=1)


@given(models() | counting_models(), st.integers(0, 999))
def test_a_restriction_scores_like_the_whole_given_the_rest(model: GraphicalModel, seed: int) -> None:
    batch, rng = ModelBatch.stack([model] * 3), np.random.default_rng(seed)
    x, y = (torch.tensor(np.stack([rng.integers(model.cardinalities) for _ in range(3)])) for _ in range(2))
    free = torch.tensor(np.sort(rng.permutation(model.num_variables)[: 1 + seed % model.num_variables]))
    part = Restriction.of(batch, free).apply(batch, x)
    z = x.clone()
    z[:, free] = y[:, free]
    change, score = part.score(y[:, free]) - part.score(x[:, free]), batch.score(z)
    known = torch.isfinite(batch.score(x))  # the rest is feasible
    torch.testing.assert_close(change[known], (score - batch.score(x))[known])


def test_a_restriction_refuses_to_free_too_many_variables_of_a_counter() -> None:
    batch = ModelBatch.stack([glass(4, budgets=False)])
    model = batch.model(0)
    model.add_linear(range(16), np.arange(1, 17), at_most=60)
    batch = ModelBatch.stack([model])
    Restriction.of(batch, torch.arange(10))
    with pytest.raises(TooLarge, match="2,048"):
        Restriction.of(batch, torch.arange(11))


def test_a_batch_searched_at_once_reaches_the_optimum() -> None:
    batch = ModelBatch.stack([glass(7, seed, budgets=False) for seed in range(6)])
    found = solve(batch, "search", batched=True, rounds=60, seed=1)
    torch.testing.assert_close(found.score, solve(batch, "exact").score)
    again = solve(batch, "search", batched=True, rounds=60, seed=1)
    assert torch.equal(found.assignment, again.assignment)


def test_a_batch_searched_at_once_keeps_every_sum() -> None:
    built = []
    for seed in range(3):
        model = glass(5, seed)
        for row in range(5):
            model.add_linear(range(5 * row, 5 * row + 5), [1, 2, 3, 4, 5], at_least=4, at_most=6)
        built.append(model)
    batch = ModelBatch.stack(built)
    found = solve(batch, "search", batched=True, rounds=40)
    torch.testing.assert_close(found.score, solve(batch, "exact").score)


def test_a_knapsack_of_many_variables_is_filled() -> None:
    """As a chain of running sums it would have hundreds of states a variable."""
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * 60)
    weights = rng.integers(1, 31, 60)
    model.add_unaries(np.stack([np.zeros(60), weights + 5 * rng.random(60)], 1).ravel())
    model.add_linear(range(60), weights, at_most=int(weights.sum()) // 2)
    solution = solve(model, "search", rounds=20, workers=1)
    best = solve(model, "toulbar2").score if find_spec("pytoulbar2") else solution.score
    assert solution.score >= 0.99 * best > 0


def test_a_batch_searched_at_once_stays_feasible() -> None:
    batch = ModelBatch.stack([glass(6, seed, budgets=True) for seed in range(4)])
    found = solve(batch, "search", batched=True, rounds=20)
    assert bool(found.feasible.all())
    assert bool((found.score >= solve(batch, "max-product").score - 1e-9).all())


def test_the_arrays_of_a_model_read_its_own_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    for bound in range(5):
        model = GraphicalModel([2] * 4)
        model.add_budget(range(4), bound)
        built.append(model)
    read: list[int] = []

    def note(group: CountedBatch, counter: Counter) -> torch.Tensor:
        read.append(len(scores := scores_by_sum(group, counter)))
        return scores

    monkeypatch.setattr("fgnn.infer.search.arrays.scores_by_sum", note)
    batch = ModelBatch.stack(built)
    for b in range(5):
        np.testing.assert_array_equal(np.isfinite(arrays_of(batch, b)[0].sums), np.arange(5) <= b)
    assert read == [1] * 5
