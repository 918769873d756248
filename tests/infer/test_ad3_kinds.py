"""`ad3` on structured kinds: their best joint states, their projections, and the value of the relaxation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import fgnn
from fgnn.infer.ad3 import kinds
from fgnn.infer.ad3.kinds import ActiveSets, KindNumbers, project_kind
from fgnn.infer.ad3.layout import KindLayout, edge_width
from fgnn.pgm import ModelBatch
from fgnn.pgm.factors import AllDifferent, Parity
from fgnn.pgm.lowering import lower
from tests.pgm.factors.test_kinds import Case, by_definition, factors, linear, theta_of

Joint = list[tuple[tuple[int, ...], float]]


def joint_states(case: Case) -> Joint:
    """The allowed joint states with their log-potentials."""
    table = by_definition(*case)
    return [(x, float(table[x])) for x in itertools.product(*map(range, table.shape)) if table[x] > -np.inf]


def rows_of(x: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """v(x): x_i of binary variables, indicators of the states of others."""
    parts = [np.eye(k)[s] if k > 2 else np.full(k - 1, float(s)) for s, k in zip(x, shape, strict=True)]
    return np.concatenate([*parts, np.zeros(0)])


@settings(max_examples=40, deadline=None)
@given(factors(), st.integers(0, 2**32 - 1))
def test_the_best_joint_state_is_that_of_the_table(case: Case, seed: int) -> None:
    kind, shape, numbers = case
    rng = np.random.default_rng(seed)
    nu = np.full((3, len(shape), max(shape)), -np.inf)  # of three factors
    for a, k in enumerate(shape):
        nu[:, a, :k] = np.where(rng.random((3, k)) < 0.15, -np.inf, rng.normal(size=(3, k)))
    theta = theta_of(kind, shape, numbers)[:, :, 0].T.expand(3, -1).double()
    value, x = kind.best(shape, theta, torch.from_numpy(nu))
    table = by_definition(kind, shape, numbers)

    def score(c: int, state: tuple[int, ...]) -> float:
        return float(table[state] + sum(nu[c, a, s] for a, s in enumerate(state)))

    for c in range(3):
        expected = max(score(c, state) for state in np.ndindex(*shape))
        assert float(value[c]) == pytest.approx(expected, abs=1e-12)
        if expected > -np.inf:
            assert score(c, tuple(x[c].tolist())) == pytest.approx(expected, abs=1e-12)


def projected(case: Case, z: np.ndarray) -> tuple[np.ndarray, float]:
    """The projection of z (edges,) and its θ, after enough iterations from the last active set."""
    kind, shape, numbers = case
    live = torch.full((1, len(shape), max(shape), 1), -torch.inf, dtype=torch.float64)
    for a, k in enumerate(shape):
        live[:, a, :k] = 0.0
    f = KindLayout(0, kind, shape, torch.arange(len(shape))[None], slice(0, len(z)))
    y = KindNumbers(theta_of(kind, shape, numbers).double().permute(1, 0, 2), live)
    target = torch.from_numpy(z)[:, None]
    out, sets = torch.empty_like(target), ActiveSets.of(f, 1, target.device)
    for _ in range(5):
        project_kind(f, y, target, target, sets, out)
    return out[:, 0].numpy(), float(sets.value)


@settings(max_examples=40, deadline=None)
@given(factors(), st.sampled_from([0.3, 1.0, 5.0]), st.integers(0, 2**32 - 1))
def test_projections_are_optimal(case: Case, spread: float, seed: int) -> None:
    shape = case[1]
    joint = joint_states(case)
    if not joint:
        return
    rng = np.random.default_rng(seed)
    z = 0.5 + spread * rng.normal(size=sum(edge_width(k) for k in shape))
    q, value = projected(case, z)
    vertices, theta = np.stack([rows_of(x, shape) for x, _ in joint]), np.array([t for _, t in joint])
    # q is a mean of joint states whose θ have the mean `value` ...
    sides = np.vstack([vertices.T, theta, np.ones(len(joint))])
    assert linprog(
        np.zeros(len(joint)), A_eq=sides, b_eq=[*q, value, 1.0], options={"primal_feasibility_tolerance": 1e-7}
    ).success
    # ... and no joint state is better along the gradient there.
    assert (vertices @ (z - q) + theta).max() <= q @ (z - q) + value + 1e-7


@settings(max_examples=12, deadline=None)
@given(factors(), factors(), st.integers(0, 2**32 - 1))
def test_a_factor_is_relaxed_as_its_table_is(first: Case, second: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cards = [*first[1], *second[1], 2]
    unaries = rng.normal(size=sum(cards))
    pairs = [(int(i), len(cards) - 1) for i in rng.permutation(len(cards) - 1)[:3]]
    tables = [rng.normal(size=(cards[i], 2)) for i, _ in pairs]
    models = []
    for expand in (False, True):
        model = fgnn.GraphicalModel(cards)
        model.add_unaries(unaries)
        for pair, table in zip(pairs, tables, strict=True):
            model.add_table(pair, table)
        for (kind, shape, numbers), start in ((first, 0), (second, len(first[1]))):
            scope = range(start, start + len(shape))
            if expand:
                model.add_table(scope, by_definition(kind, shape, numbers))
            else:
                model.add_factors(kind, [scope], **{k: np.asarray(v)[None] for k, v in numbers.items()})
        models.append(model)
    own, other = (fgnn.solve(model, "ad3", tolerance=1e-6) for model in models)
    assert own.bound == pytest.approx(other.bound, rel=1e-4, abs=1e-4)
    assert own.converged
    assert own.status == other.status or "infeasible" not in (own.status, other.status)


def test_large_factors_need_no_auxiliary_variables() -> None:
    """Parities and knapsacks over 30 variables, whose relaxation HiGHS solves through auxiliary variables."""
    rng = np.random.default_rng(0)
    model = fgnn.GraphicalModel([2] * 30)
    model.add_unaries(rng.normal(size=60))
    model.add_parity(range(30), 1)
    model.add_linear(range(30), rng.integers(1, 9, size=30).tolist(), at_most=30)
    solution, expected = fgnn.solve(model, "ad3", tolerance=1e-6), fgnn.solve(model, "lp")
    assert solution.converged
    assert solution.bound == pytest.approx(expected.bound, rel=1e-5)


def test_the_search_is_exact_on_structured_kinds() -> None:
    rng = np.random.default_rng(1)
    model = fgnn.GraphicalModel([3] * 6)
    model.add_unaries(rng.normal(size=18))
    model.add_all_different((0, 1, 2))
    model.add_linear((2, 3, 4, 5), [1, 2, 1, 3], at_least=3, at_most=6)
    model.add_pattern((0, 3, 5), [(s,) * 3 for s in range(3)], [1.0, 2.0, 0.5], default=-0.5)
    for i, j in ((0, 4), (1, 5), (3, 4)):
        model.add_table((i, j), rng.normal(size=(3, 3)))
    solution = fgnn.solve(model, "ad3", branch_and_bound=True)
    assert solution.status == "optimal"
    assert solution.score == pytest.approx(fgnn.solve(model, "brute-force").score)


def test_a_batch_is_relaxed_as_its_models_are() -> None:
    rng = np.random.default_rng(2)
    models = []
    for value in (0, 1, 0):
        model = fgnn.GraphicalModel([2] * 5)
        model.add_unaries(rng.normal(size=10))
        model.add_parity(range(5), value)
        model.add_pattern(range(4), [(0,) * 4, (1,) * 4], rng.normal(size=2), default=rng.normal())
        models.append(model)
    together = fgnn.solve(ModelBatch.stack(models), "ad3")
    alone = [fgnn.solve(model, "ad3") for model in models]
    assert together.bound.tolist() == pytest.approx([s.bound for s in alone])
    assert together.iterations.tolist() == [s.iterations for s in alone]


def test_bounds_on_ones_are_projected_alike_whatever_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loops(seconds: float) -> bool:
        raise AssertionError("Expected a threshold to be enough (got a wait for compiled loops)")

    monkeypatch.setattr(kinds.LOOPS, "wait", no_loops)
    answers = []
    for sums in (False, True):
        rng = np.random.default_rng(5)
        model = fgnn.GraphicalModel([2] * 12)
        model.add_unaries(rng.normal(size=24))
        for i in range(11):
            model.add_table((i, i + 1), rng.normal(size=(2, 2)))
        for scope, low, high in (((0, 1, 2, 3, 4, 5), 1, 2), ((4, 5, 6, 7, 8, 9, 10, 11), 3, 5)):
            if sums:
                model.add_linear(scope, [3] * len(scope), at_least=3 * low - 1, at_most=3 * high + 1)
            else:
                model.add_budget(scope, high, at_least=low)
        answers.append([fgnn.solve(model, "ad3", branch_and_bound=search) for search in (False, True)])
    for own, other in zip(*answers, strict=True):
        assert own.iterations == other.iterations
        assert own.bound == pytest.approx(other.bound, rel=1e-12)
        assert own.assignment.tolist() == other.assignment.tolist()
    assert answers[0][1].score == pytest.approx(fgnn.solve(model, "brute-force").score)


def test_kinds_that_cannot_project_become_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fgnn.GraphicalModel([2] * 4)
    model.add_unaries(np.random.default_rng(3).normal(size=8))
    model.add_parity(range(4), 1)
    model.add_linear(range(4), [1, 2, 3, 4], at_most=5)
    batch = ModelBatch.stack([model])
    assert lower(batch, keep=kinds.asked(batch, None)).batch is batch
    with monkeypatch.context() as patch:  # no time to compile the loops
        patch.setattr(kinds.LOOPS, "wait", lambda seconds: False)
        rest = lower(batch, keep=kinds.asked(batch, 1.0)).batch
        assert [f.kind for f in rest.structured] == [Parity()]
        partly = fgnn.solve(model, "ad3", time_limit=10.0)
    assert partly.bound == pytest.approx(fgnn.solve(model, "ad3").bound, rel=1e-4)


def test_impossible_factors_are_proved_impossible() -> None:
    model = fgnn.GraphicalModel([2, 2, 3])
    model.add_factors(AllDifferent(), [(0, 1)])
    model.add_factors(linear([1, 1], 2, 2), [(0, 1)])
    assert fgnn.solve(model, "ad3").status == "infeasible"
    model = fgnn.GraphicalModel([2, 2])
    model.add_unary(0, [-np.inf, 0.0])
    model.add_unary(1, [0.0, -np.inf])
    model.add_parity((0, 1), 0)
    assert fgnn.solve(model, "ad3").status == "infeasible"


@pytest.mark.gpu
def test_a_gpu_relaxes_kinds_as_the_cpu_does() -> None:
    rng = np.random.default_rng(4)
    models = []
    for value in (0, 1):
        model = fgnn.GraphicalModel([2] * 8)
        model.add_unaries(rng.normal(size=16))
        model.add_parity(range(5), value)
        model.add_linear(range(3, 8), [1, 2, 1, 3, 1], at_most=4)  # becomes tables on a GPU
        models.append(model)
    batch = ModelBatch.stack(models)
    on_cpu, on_gpu = (fgnn.solve(batch, "ad3", device=device) for device in ("cpu", "cuda"))
    torch.testing.assert_close(on_gpu.bound.cpu(), on_cpu.bound, rtol=1e-3, atol=1e-3)
