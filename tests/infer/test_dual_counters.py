"""`dual` on factors that depend on a sum: exact on trees, elsewhere the value of the LP over their tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fgnn
from fgnn.infer.certificate import StandardForm
from fgnn.infer.dual import from_ad3
from fgnn.infer.dual.descent import Descent
from fgnn.infer.dual.layout import build_layout
from fgnn.infer.reporter import Reporter
from fgnn.pgm import ModelBatch
from tests.infer.counting_kind import NumberOfOnes
from tests.infer.descending import value_after
from tests.pgm.factors.test_kinds import Case, factors

pytest.importorskip("numba")


def mixed(seed: int, value: int = 1, *, soft: bool = False) -> fgnn.GraphicalModel:
    """Parities and a weighted sum, also of variables of three states, on a cycle of pairs; if ``soft``, a count too."""
    rng = np.random.default_rng(seed)
    model = fgnn.GraphicalModel([2, 2, 3, 2, 2, 3, 2, 2])
    model.add_unaries(rng.normal(size=18))
    for i in range(8):
        j = (i + 1) % 8
        model.add_table((i, j), rng.normal(size=(model.cardinalities[i], model.cardinalities[j])))
    model.add_parity((7, 0, 3, 4), value)
    model.add_parity((1, 4, 6), 1)
    model.add_linear((5, 2, 0, 1), [3, 1, 2, -1], at_least=1, at_most=4)
    if soft:
        values = np.where(rng.random(5) < 0.2, -np.inf, rng.normal(size=5))
        model.add_factors(NumberOfOnes(), [(6, 0, 4, 1)], values=values[None])
    return model


@settings(max_examples=40, deadline=None)
@given(factors(), st.integers(0, 2**32 - 1))
def test_on_a_tree_with_any_factor_the_bound_is_the_optimum(case: Case, seed: int) -> None:
    kind, shape, numbers = case
    rng = np.random.default_rng(seed)
    scope = rng.permutation(len(shape))
    model = fgnn.GraphicalModel([*np.array(shape)[np.argsort(scope)].tolist(), 3])
    unaries = rng.normal(size=sum(shape) + 3)
    model.add_unaries(np.where(rng.random(unaries.shape) < 0.1, -np.inf, unaries))
    model.add_table((0, len(shape)), rng.normal(size=model.cardinalities[[0, -1]]))
    model.add_factors(kind, [scope], **{name: np.asarray(v)[None] for name, v in numbers.items()})
    solution, best = fgnn.solve(model, "dual"), fgnn.solve(model, "brute-force")
    assert solution.bound >= best.score - 1e-9 * abs(best.score) or best.score == -np.inf
    if best.score > -np.inf:
        assert solution.bound == pytest.approx(best.score, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_without_clusters_it_reaches_the_value_of_the_lp_and_no_less(seed: int) -> None:
    model = mixed(seed)
    tables = fgnn.GraphicalModel(model.cardinalities)  # the same, with a table for each sum
    tables.add_unaries(model.unaries)
    for factor in (*model.tables(), *model.structured()):
        tables.add_table(factor.scope, factor.values if hasattr(factor, "values") else factor.as_table())
    value, solution = fgnn.solve(tables, "lp").bound, fgnn.solve(model, "dual", tighten=False)
    assert solution.bound >= value - 1e-6
    assert solution.bound <= value + 0.02 * abs(value)


@pytest.mark.parametrize("seed", range(3))
def test_no_sweep_raises_the_dual(seed: int) -> None:
    batch = StandardForm.of(ModelBatch.stack([mixed(seed, soft=True)])).batch
    assert value_after(batch, 30) >= float(fgnn.solve(batch, "brute-force").score[0])


def test_a_batch_is_bounded_as_its_models_are() -> None:
    models = [mixed(0, value, soft=True) for value in (0, 1)]
    models[1].add_unary(2, [0.0, -np.inf, 0.0])
    together = fgnn.solve(ModelBatch.stack(models), "dual")
    alone = [fgnn.solve(model, "dual") for model in models]
    assert together.bound.tolist() == pytest.approx([s.bound for s in alone])
    assert together.score.tolist() == pytest.approx([s.score for s in alone])


def test_contradictory_sums_are_proved_infeasible() -> None:
    model = fgnn.GraphicalModel([2] * 6)
    model.add_unary(2, [-np.inf, 0.0])
    model.add_linear(range(3), [2, 3, 4], at_most=5)  # 4 of it are taken: the first two are 0
    model.add_parity((0, 1), 1)
    solution = fgnn.solve(model, "dual")
    assert (solution.status, solution.bound) == ("infeasible", -np.inf)


def test_a_model_without_a_feasible_rounding_is_still_bounded_by_its_relaxation() -> None:
    rng = np.random.default_rng(0)
    model = fgnn.GraphicalModel([2] * 40)
    model.add_unaries(rng.normal(size=80))
    for _ in range(24):
        model.add_parity(rng.permutation(40)[:5].tolist(), int(rng.integers(2)))
    solution = fgnn.solve(model, "dual")
    assert solution.bound == pytest.approx(fgnn.solve(model, "lp").bound, rel=1e-4)


def test_a_knapsack_is_one_subproblem() -> None:
    rng = np.random.default_rng(0)
    model = fgnn.GraphicalModel([2] * 60)
    gains = np.zeros((60, 2))
    gains[:, 1] = rng.uniform(1, 10, size=60)
    model.add_unaries(gains.ravel())
    weights = rng.integers(1, 30, size=60)
    model.add_linear(range(60), weights.tolist(), at_most=int(weights.sum()) // 2)
    solution = fgnn.solve(model, "dual")
    assert solution.status == "optimal"
    best = np.zeros(int(weights.sum()) // 2 + 1)  # by the textbook recursion
    for gain, weight in zip(gains[:, 1], weights, strict=True):
        best[weight:] = np.maximum(best[weight:], best[:-weight] + gain)
    assert solution.score == pytest.approx(best.max())


def test_multipliers_of_ad3_are_read_group_by_group() -> None:
    """At AD3's multipliers the dual has AD3's value, whatever the factors."""
    model = mixed(1)
    model.add_linear((6, 0, 4, 1), [1, 1, 1, 1], at_least=1, at_most=2)
    model.add_budget((3, 1, 7), 2)
    batch = StandardForm.of(ModelBatch.stack([model])).batch
    layout = build_layout(batch)
    delta = from_ad3.ad3_multipliers(batch, layout, math.inf)
    assert delta is not None
    descent = Descent(batch, layout, Reporter("dual", None))
    descent._delta = delta
    descent._lower_bound()
    ad3 = fgnn.solve(batch, "ad3", tolerance=1e-4)
    assert descent.bound == pytest.approx(float(ad3.bound[0]), abs=1e-2)
    batch = ModelBatch.stack([mixed(1, soft=True)])  # with a kind that does not know its best joint state
    assert from_ad3.ad3_multipliers(batch, build_layout(batch), math.inf) is None


def test_models_of_a_batch_share_the_room_for_partial_sums() -> None:
    batch = ModelBatch.stack([mixed(0), mixed(1)])
    layout = build_layout(batch)
    one, two = (Descent(batch.select(slice(b, b + 1)), layout, Reporter("dual", None)) for b in range(2))
    assert one._counters.room is two._counters.room is layout.counters.room
    assert len(layout.counters.room) > 0


def test_more_partial_sums_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fgnn.infer.dual.counters._MOST_ROOM", 30)
    with pytest.raises(ValueError, match="at most 30 partial sums of all factors together"):
        build_layout(ModelBatch.stack([mixed(0)]))


def test_a_look_at_the_clock_follows_the_sums_ahead_of_a_large_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fgnn.GraphicalModel([2] * 20)
    model.add_linear(range(20), np.arange(1, 21).tolist(), at_most=100)  # 211 sums, 40 states: 8,440 to look ahead
    batch = ModelBatch.stack([model])
    monkeypatch.setattr("fgnn.infer.dual.descent._CHUNK", 8000)
    descent = Descent(batch, build_layout(batch), Reporter("dual", None))
    ends = {int(nodes[0]) for nodes, _ in descent._passes}
    assert ends >= {0, 1, 19, 18}  # in both directions, the two ends are not followed by further variables at once


def test_large_counters_are_bounded_in_pieces_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = StandardForm.of(ModelBatch.stack([mixed(0, soft=True)])).batch
    bounds = []
    for chunk in (4_000_000, 1):
        monkeypatch.setattr("fgnn.infer.dual.descent._CHUNK", chunk)
        descent = Descent(batch, build_layout(batch), Reporter("dual", None))
        assert len(descent._pieces) == (1 if chunk > 1 else 4)
        descent.run(math.inf, 20, 1e-6, tighten=False)
        bounds.append((descent.bound, descent.score))
    assert bounds[0] == bounds[1]
    descent._deadline, descent.bound = 0.0, 0.0
    assert not descent._lower_bound()
    assert descent.bound == 0.0
