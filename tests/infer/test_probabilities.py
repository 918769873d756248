"""Claims about probabilities, checked in exact integers: no answer is called exact that is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fgnn
from fgnn.infer import sample
from fgnn.infer.probability.precision import centred
from tools.check_probabilities import Truth, check_many, check_marginals, run_batch
from tools.check_proofs import Models, Structure


def chain(constant: float = 0.0, unit: float = 1.0) -> fgnn.GraphicalModel:
    """Six variables whose tables carry a constant each."""
    rng = np.random.default_rng(0)
    model = fgnn.GraphicalModel([3] * 6)
    model.add_unaries(unit * np.round(rng.normal(size=18), 3))
    for i in range(5):
        model.add_table((i, i + 1), unit * np.round(rng.normal(size=(3, 3)) * 8) / 8 + constant)
    return model


def test_a_batch_of_every_number_type_is_right() -> None:
    counts: dict[str, int] = {}
    for number in range(8):
        part, faults = run_batch(1, number, 24)
        assert faults == []
        counts = {claim: counts.get(claim, 0) + count for claim, count in (counts | part).items()}
    assert {"marginals, exact", "marginals, auto", "log Z alone", "M best", "samples", "CRF"} <= set(counts)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_models() -> None:
    results = check_many(10_000, seed=2)
    assert results["faults"] == []
    assert results["claims"]["marginals, exact"] > 5_000


def test_the_checker_finds_a_wrong_probability() -> None:
    structure = Structure((2,), (), ())
    models = Models(structure, [np.array([[0, 1]])], np.zeros((1, 0, 2), np.int64), [0], np.ones(1))
    answers = fgnn.marginals(models.batch(torch.float64), "exact")
    assert check_marginals(models, Truth.of(models), answers) == []
    answers.variables[0][0] = torch.tensor([0.5, 0.5])
    assert "is off by 0.23" in check_marginals(models, Truth.of(models), answers)[0]


@pytest.mark.parametrize("method", ["exact", "brute-force", "auto", "sum-product"])
def test_constants_change_no_probability(method: str) -> None:
    plain, shifted = (fgnn.marginals(chain(c), method) for c in (0.0, 2.0**40))
    for one, other in zip(plain.variables, shifted.variables, strict=True):
        assert np.allclose(one, other, atol=1e-9)
    assert shifted.status == "exact"
    assert shifted.log_partition - 5 * 2.0**40 == pytest.approx(plain.log_partition, abs=1e-3)


@pytest.mark.parametrize("method", ["exact", "brute-force", "auto"])
def test_numbers_too_large_for_their_differences_are_not_called_exact(method: str) -> None:
    frustrated = fgnn.GraphicalModel([2, 2, 2])
    for a, b in ((0, 1), (1, 2), (0, 2)):
        frustrated.add_table((a, b), np.array([[-1e12, 0.0], [0.3, -1e12]]))
    answer = fgnn.marginals(frustrated, method)
    assert answer.status == "approximate"
    assert all(abs(p.sum() - 1) < 1e-9 for p in answer.variables)
    assert not fgnn.log_partition(frustrated, method).exact


def test_the_gradient_of_log_z_does_not_see_the_constants() -> None:
    gradients = []
    for constant in (0.0, 2.0**30):
        batch = fgnn.ModelBatch.stack([chain(constant)])
        batch.unary.requires_grad_()
        fgnn.log_partition(batch).value.sum().backward()
        gradients.append(batch.unary.grad)
    assert gradients[0] is not None
    assert torch.allclose(gradients[0], gradients[1], atol=1e-9)


def test_small_models_are_left_as_they_are() -> None:
    batch = fgnn.ModelBatch.stack([chain()], dtype=torch.float32)
    assert centred(batch)[0] is batch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_sums_in_types_without_precision_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="Expected sums in"):
        fgnn.marginals(chain(), "exact", dtype=dtype)


def test_ties_between_large_scores_are_drawn_equally_often() -> None:
    model = fgnn.GraphicalModel([2, 2])
    model.add_table((0, 1), [[-1e15, 0.0], [0.0, -1e15]])
    model.add_unary(0, [-1e15, -1e15])
    model.add_unary(1, [-3e15, -3e15])
    drawn = np.asarray(sample(model, 400, seed=0))
    assert 150 < drawn[:, 0].sum() < 250
    assert (drawn[:, 0] != drawn[:, 1]).all()
