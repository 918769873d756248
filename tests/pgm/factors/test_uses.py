"""Structured factors beyond solvers: files, pictures, networks, gradients, evidence, batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fgnn
from fgnn.infer import best_assignments, sample
from fgnn.models.map.featurise import featurise
from fgnn.pgm import ModelBatch
from fgnn.pgm.conditionals import conditionals
from fgnn.pgm.factors import AllDifferent
from fgnn.pgm.lowering import lower
from fgnn.theory import max_product_network, sum_product_network
from tests.pgm.io.samples import structured


def model_of(seed: int = 0, value: int = 1) -> fgnn.GraphicalModel:
    """Five variables under all four kinds, with numbers of their own."""
    rng = np.random.default_rng(seed)
    model = fgnn.GraphicalModel([2, 2, 2, 3, 3])
    model.add_unaries(rng.normal(size=12))
    model.add_table((0, 3), rng.normal(size=(2, 3)))
    model.add_parity((0, 1, 2), value)
    model.add_all_different((3, 4))
    model.add_pattern((0, 3, 4), [[1, 0, 1], [0, 2, 1]], rng.normal(size=2), default=float(rng.normal()))
    model.add_linear((1, 2, 4), [2, 1, -1], at_most=1)
    return model


def every_state(model: fgnn.GraphicalModel) -> np.ndarray:
    return np.indices(tuple(model.cardinalities)).reshape(model.num_variables, -1).T


def test_models_with_other_numbers_form_a_batch() -> None:
    models = [model_of(seed, value=seed % 2) for seed in range(4)]
    batch = ModelBatch.stack(models)
    x = torch.from_numpy(every_state(models[0]).copy())
    assert np.allclose(batch.score(x.expand(4, -1, -1)), [m.score(x.numpy()) for m in models])
    assert [batch.model(b) for b in range(4)] == models
    assert ModelBatch.concat([batch.select(slice(0, 2)), batch.select(torch.tensor([2, 3]))]).model(3) == models[3]
    solved = fgnn.solve(batch, "exact")
    assert solved.status == ["optimal"] * 4
    assert np.allclose(solved.score, [fgnn.solve(m.expanded(), "brute-force").score for m in models])
    other = model_of()
    other.add_parity((0, 1))
    with pytest.raises(ValueError, match="parity factors in model 1"):
        ModelBatch.stack([models[0], other])


def test_batches_of_other_weights_or_bounds_are_not_concatenated() -> None:
    models = [fgnn.GraphicalModel([2, 2]) for _ in range(2)]
    for model, at_most in zip(models, (1, 2), strict=True):
        model.add_linear((0, 1), [1, 1], at_most=at_most)
    one, two = (ModelBatch.stack([model]) for model in models)
    with pytest.raises(ValueError, match="other linear factors"):
        ModelBatch.concat([one, two])


def test_potentials_that_replace_those_of_the_numbers_are_concatenated() -> None:
    one, two = (ModelBatch.stack([model_of(seed)]) for seed in range(2))
    half = one.with_factors([f.with_potentials(f.potentials(one.dtype) / 2, 1) for f in one.factors])
    x = torch.from_numpy(every_state(model_of()).copy())[None]
    for parts in ([half, two], [two, half]):
        together = ModelBatch.concat(parts).score(x.expand(2, -1, -1))
        torch.testing.assert_close(together, torch.cat([part.score(x) for part in parts]))


def test_evidence_and_conditions() -> None:
    model = model_of()
    evidence = np.array([[1, -1, -1, -1, 0], [-1, 0, -1, 2, -1], [-1] * 5])
    rows = fgnn.marginals(model, "exact", evidence=evidence)
    for row, seen in enumerate(evidence):
        alone = model.condition({i: int(s) for i, s in enumerate(seen) if s >= 0})
        expected = fgnn.marginals(alone.expanded(), "brute-force")
        assert np.isclose(float(rows.log_partition[row]), expected.log_partition)


def test_gradients_of_log_z_are_the_probabilities_of_patterns() -> None:
    model = model_of()
    batch = ModelBatch.stack([model])
    scores = batch.structured[2].numbers["scores"].clone().requires_grad_()
    pattern = replace(batch.structured[2], numbers={**batch.structured[2].numbers, "scores": scores})
    learned = replace(batch, structured=(*batch.structured[:2], pattern, batch.structured[3]))
    fgnn.log_partition(learned, "exact").value.sum().backward()
    x = every_state(model)
    p = np.exp(model.score(x) - fgnn.log_partition(model, "brute-force").value)
    expected = [p[(x[:, [0, 3, 4]] == pattern).all(1)].sum() for pattern in ([1, 0, 1], [0, 2, 1])]
    assert torch.allclose(scores.grad, torch.tensor([[expected]], dtype=torch.float64))


def test_gradients_at_a_fixed_point_of_sum_product_are_those_of_elimination_on_a_tree() -> None:
    rng = np.random.default_rng(5)
    model = fgnn.GraphicalModel([2, 2, 2, 3])
    model.add_unaries(rng.normal(size=9))
    model.add_pattern((0, 1, 3), [[1, 0, 1], [0, 1, 2]], rng.normal(size=2), default=-0.4)
    model.add_parity((1, 2), 1)
    gradients = []
    for method in ("exact", "sum-product"):
        batch = ModelBatch.stack([model, model])
        numbers = {name: v.clone().requires_grad_() for name, v in batch.structured[0].numbers.items()}
        learned = replace(batch, structured=(replace(batch.structured[0], numbers=numbers), batch.structured[1]))
        fgnn.log_partition(learned, method).value.sum().backward()
        gradients.append([tensor.grad for tensor in numbers.values()])
    for exact, messages in zip(*gradients, strict=True):
        torch.testing.assert_close(messages, exact, atol=1e-6, rtol=1e-6)
    with pytest.raises(ValueError, match="trw"):
        fgnn.log_partition(learned, "trw")


def test_samples_and_best_assignments() -> None:
    model = model_of()
    x = every_state(model)
    scores = model.score(x)
    best, values = best_assignments(model, 6)
    assert np.allclose(values, np.sort(scores[np.isfinite(scores)])[::-1][:6])
    assert np.allclose(model.score(best), values)
    drawn = np.asarray(sample(model, 4000, seed=1))
    p = fgnn.marginals(model, "exact").variables
    assert np.isfinite(model.score(drawn)).all()
    for i, marginal in enumerate(p):
        assert np.allclose(np.bincount(drawn[:, i], minlength=len(marginal)) / 4000, marginal, atol=0.04)


def test_conditionals_are_scores_of_single_changes() -> None:
    model = model_of()
    x = np.array([1, 0, 0, 0, 1])
    scores = conditionals(ModelBatch.stack([model]), torch.from_numpy(x)[None])[0]
    for i, k in enumerate(model.cardinalities.tolist()):
        changed = np.repeat(x[None], k, 0)
        changed[:, i] = np.arange(k)
        own, true = scores[i, :k].numpy(), model.score(changed)
        assert np.array_equal(np.isfinite(own), np.isfinite(true))
        both = np.isfinite(true)
        assert np.allclose((own - own[both].max())[both], (true - true[both].max())[both])


def test_networks_of_the_theorem_take_them_as_tables() -> None:
    model = model_of()
    expected = fgnn.solve(
        model, "max-product", iterations=3, damping=0.0, normalise=False, keep_beliefs=True, tolerance=0
    )
    beliefs = max_product_network(model, iterations=3).beliefs()[-1]
    for i, b in enumerate(beliefs):
        assert torch.allclose(b, expected.info["beliefs"][0, i, : len(b)])
    assert len(sum_product_network(model, iterations=2).beliefs()) == 2


def test_networks_read_potentials_as_features() -> None:
    features = featurise(ModelBatch.stack([model_of(s) for s in range(3)]))
    assert list(features.graph.groups) == ["table2x3", "parity", "all-different", "pattern", "linear"]
    assert features.factors["pattern"].shape == (3, 1, 3)
    with pytest.raises(ValueError, match="parity"):
        fgnn.solve(model_of(), "fgnn")


def test_files_graphs_and_pictures(tmp_path: Path) -> None:
    model = model_of()
    fgnn.write_model(model, tmp_path / "m.uai")
    x = every_state(model)
    assert np.allclose(fgnn.read_model(tmp_path / "m.uai").score(x), model.score(x))
    wide = fgnn.GraphicalModel([2] * 40)
    wide.add_parity(range(40))
    with pytest.raises(fgnn.errors.InputError, match=r"parity 0.*\.fgm"):
        fgnn.write_model(wide, tmp_path / "wide.uai")
    fgnn.write_model(wide, tmp_path / "wide.fgm")
    assert fgnn.read_model(tmp_path / "wide.fgm") == wide
    graph = model.to_networkx()
    assert graph.nodes["parity", 0]["value"] == 1
    assert graph.nodes["linear", 0]["at_most"] == 1
    assert fgnn.draw(model, [0, 0, 0, 0, 0]).save(tmp_path / "m.svg").stat().st_size > 1000


def test_an_altered_file_is_read_or_refused(tmp_path: Path) -> None:
    whole, rng = structured(), np.random.default_rng(0)
    read = 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.integers(len(data))] = rng.integers(256)
        (tmp_path / "a.fgm").write_bytes(data)
        try:
            model = fgnn.read_model(tmp_path / "a.fgm")
        except fgnn.errors.InputError:
            continue  # anything else would end the test
        read += 1
        assert model.num_structured == 5
    assert 0 < read < 300


def test_local_search_keeps_the_constraints() -> None:
    from fgnn.infer.local_search.decode import decode

    models = [model_of(seed) for seed in range(4)]
    batch = ModelBatch.stack(models)
    x = decode(batch, torch.zeros_like(batch.unary), samples=4)
    for model, own in zip(models, x.numpy(), strict=True):
        every = every_state(model)
        near = every[(every != own).sum(1) == 1]  # no change of a single variable is better
        assert np.isfinite(model.score(own))
        assert model.score(own) >= model.score(near).max() - 1e-9
    grid = np.arange(16).reshape(4, 4)
    sudoku = fgnn.GraphicalModel([4] * 16)
    sudoku.add_factors(AllDifferent(), [*grid, *grid.T])
    assert lower(ModelBatch.stack([sudoku]), local=True).batch.num_variables == 16
