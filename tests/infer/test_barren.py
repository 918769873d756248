"""Variables that a sum need not visit."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn import GraphicalModel, ModelBatch, log_partition
from fgnn.infer.probability.barren import without_barren


def network(variables: int, seed: int = 0) -> GraphicalModel:
    """A Bayesian network in which every variable has up to three parents."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 4, variables)
    model = GraphicalModel(cards.tolist())
    for i in range(variables):
        parents = rng.choice(i, size=min(i, 3), replace=False).tolist() if i else []
        p = rng.random((*cards[parents], cards[i]))
        values = np.log(p / p.sum(-1, keepdims=True))
        if parents:
            model.add_table((*parents, i), values)
        else:
            model.add_unary(i, values)
    return model


def test_a_network_without_evidence_sums_to_one_at_any_width() -> None:
    batch = ModelBatch.stack([network(300)])
    assert not without_barren(batch).tables
    answer = log_partition(network(300), time_limit=60)
    assert answer.exact
    assert answer.value == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_evidence_is_summed_over_its_ancestors_only(seed: int) -> None:
    model = network(9, seed)
    rng = np.random.default_rng(seed)
    observed = model.condition({int(i): 0 for i in rng.choice(9, size=2, replace=False)})
    reduced = without_barren(ModelBatch.stack([observed]))
    expected = log_partition(observed, "brute-force").value
    assert log_partition(reduced, "brute-force").value.item() == pytest.approx(expected, abs=1e-9)
    assert log_partition(observed).value == pytest.approx(expected, abs=1e-9)


def test_models_with_nothing_to_leave_out_are_returned_as_they_are() -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.0, 1.0], [2.0, 0.0]])
    batch = ModelBatch.stack([model])
    assert without_barren(batch) is batch
