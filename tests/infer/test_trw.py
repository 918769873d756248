"""The upper bound on log Z by tree-reweighted sum-product, against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fgnn import GraphicalModel, ModelBatch, log_partition, marginals
from fgnn.bench.marginals_speed import grid_models
from fgnn.infer.probability.forests import Forests
from fgnn.testing.solvers import random_models
from tests.strategies import models as any_models


@settings(deadline=None, max_examples=60)
@given(model=any_models(), iterations=st.sampled_from([0, 1, 4, 200]), forests=st.integers(1, 5))
def test_the_bound_holds_after_any_number_of_iterations(model: GraphicalModel, iterations: int, forests: int) -> None:
    expected = marginals(model, "brute-force")
    got = marginals(model, "trw", iterations=iterations, forests=forests)
    assert got.bound >= expected.log_partition - 1e-9
    if got.status in ("exact", "infeasible"):
        assert got.status == expected.status
        assert got.log_partition == pytest.approx(expected.log_partition, abs=1e-6)
        for ours, theirs in zip(got.variables, expected.variables, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_forests_are_acyclic_and_cover_every_factor() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        batch = ModelBatch.stack(random_models(rng, 1))
        cover = Forests.of(batch, 4, seed=0)
        scopes = [group.scopes for group in batch.structure.groups.values()]
        counts = [torch.zeros(len(s)) for s in scopes]
        for forest in cover.members:
            members = [s[which] for s, which in zip(scopes, forest, strict=True)]
            touched = len({i for s in members for i in s.flatten().tolist()})
            edges, factors = sum(s.numel() for s in members), sum(map(len, members))
            assert edges <= touched + factors - (factors > 0)  # a forest has fewer edges than nodes
            for count, which in zip(counts, forest, strict=True):
                count[which] += 1
        for count, rho in zip(counts, cover.appearance, strict=True):
            assert bool((count > 0).all())
            torch.testing.assert_close(count.double() / len(cover.members), rho)


def test_a_tree_is_exact_with_its_tables() -> None:
    rng = np.random.default_rng(0)
    model = GraphicalModel([2, 3, 2, 2, 2])
    model.add_unaries(rng.normal(size=11))
    model.add_table((0, 1, 2), rng.normal(size=(2, 3, 2)))
    model.add_budget((2, 3, 4), at_most=1)
    got, expected = (marginals(model, method, tables=True) for method in ("trw", "brute-force"))
    assert got.status == "exact"
    assert got.log_partition == pytest.approx(expected.log_partition, abs=1e-9)
    assert got.tables is not None
    assert expected.tables is not None
    for ours, theirs in zip([*got.variables, *got.tables], [*expected.variables, *expected.tables], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_convergence_lowers_the_bound_on_grids() -> None:
    batch = grid_models(4, 5, seed=0)
    log_z = log_partition(batch, "exact").value
    bounds = [marginals(batch, "trw", iterations=i).bound for i in (0, 3, 200)]
    assert bool((bounds[0] > bounds[1]).all())
    assert bool((bounds[1] > bounds[2]).all())
    assert bool((bounds[2] >= log_z).all())
    assert float((bounds[2] - log_z).max()) < 1.0


def test_at_a_fixed_point_the_marginals_are_the_gradient_of_the_bound() -> None:
    batch = grid_models(1, 3, seed=1)
    unary = batch.unary.clone().requires_grad_(True)
    log_partition(replace(batch, unary=unary), "trw", tolerance=1e-12, iterations=2000).value.sum().backward()
    assert unary.grad is not None
    for i, s in ((0, 1), (4, 0), (8, 1)):
        values = []
        for step in (-1e-5, 1e-5):
            moved = batch.unary.clone()
            moved[0, i, s] += step
            moved_batch = replace(batch, unary=moved)
            values.append(marginals(moved_batch, "trw", tolerance=1e-12, iterations=2000).bound)
        assert float(unary.grad[0, i, s]) == pytest.approx(float(values[1] - values[0]) / 2e-5, abs=1e-6)


def test_no_time_leaves_a_bound_that_holds() -> None:
    batch = grid_models(1, 5, seed=0)
    answer = marginals(batch, "trw", time_limit=1e-6)
    assert answer.status == ["time-limit"]
    assert bool((answer.bound >= log_partition(batch, "exact").value).all())


def test_auto_shows_a_bound_where_nothing_exact_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.infer.exact.plan import TooLarge
    from fgnn.infer.probability import auto

    def too_large(*_: object, **__: object) -> None:
        raise TooLarge("too wide")

    model = grid_models(1, 5, seed=0).model(0)
    log_z = log_partition(model, "exact").value
    for name in ("marginals_exact", "log_partition_exact"):
        monkeypatch.setattr(auto, name, too_large)
    monkeypatch.setattr(auto, "_BOUND_SECONDS", 0.5)
    answer, alone = marginals(model, "auto"), log_partition(model, "auto")
    assert answer.status == "approximate"
    assert log_z - 1e-9 <= answer.bound < log_z + 1
    assert log_z - 1e-9 <= alone.bound < log_z + 1


@pytest.mark.parametrize(("options", "said"), [({"forests": 0}, "one forest"), ({"damping": 1.0}, "damping")])
def test_options_that_make_no_sense_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        marginals(GraphicalModel([2]), "trw", **options)
