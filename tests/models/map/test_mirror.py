"""Mirror images of models."""

from __future__ import annotations

import pytest
import torch

from fgnn.data import ChainMAP, GridMAP
from fgnn.models.map.config import NetworkConfig
from fgnn.models.map.equivalent import mirrored
from fgnn.models.map.family import Family
from fgnn.models.map.learned import score
from fgnn.models.map.network import MAPNetwork
from fgnn.nn import ResidualNetwork
from fgnn.pgm import GraphicalModel, ModelBatch


@pytest.mark.parametrize("data", [ChainMAP(1), ChainMAP(2), ChainMAP(3, 12, 5), GridMAP(3, 4), GridMAP(4, 4, (3, 3))])
def test_the_mirror_image_gives_the_mirrored_assignment_the_same_score(data: ChainMAP | GridMAP) -> None:
    batch = data.sample(20, seed=1)
    image = mirrored(batch)
    assert image is not None
    x = torch.randint(0, 2, (20, batch.num_variables), generator=torch.Generator().manual_seed(2))
    x[0] = 0
    for assignment in (x, data.labels(batch)):
        torch.testing.assert_close(image.score(assignment.flip(1)), batch.score(assignment))


def test_the_mirror_image_of_the_mirror_image_is_the_model() -> None:
    batch = ChainMAP(3).sample(3, seed=4)
    once = mirrored(batch)
    assert once is not None
    twice = mirrored(once)
    assert twice is not None
    assert torch.equal(twice.unary, batch.unary)
    assert torch.equal(twice.tables[0].values, batch.tables[0].values)
    assert torch.equal(twice.budgets[0].at_most, batch.budgets[0].at_most)


@pytest.mark.parametrize(
    ("states", "scope"), [([2, 2, 2], (0, 1)), ([2, 2, 3], (0, 2)), ([2, 2, 2, 2], (1, 3))], ids=str
)
def test_other_structures_have_no_mirror_image(states: list[int], scope: tuple[int, ...]) -> None:
    model = GraphicalModel(states)
    model.add_table(scope, torch.zeros([states[i] for i in scope]).numpy())
    assert mirrored(ModelBatch.stack([model])) is None


def test_structured_factors_have_no_mirror_image() -> None:
    model = GraphicalModel([2, 2])
    model.add_linear((0, 1), [1, 2], at_most=1)
    model.add_linear((1, 0), [1, 2], at_most=1)
    assert mirrored(ModelBatch.stack([model])) is None


def test_scores_of_both_ways_are_equivariant_under_mirroring() -> None:
    torch.manual_seed(0)
    batch = ChainMAP(2, length=12, window=4, budget=2).sample(6, seed=5)
    network = MAPNetwork(NetworkConfig("deep", width=8, blocks=2, bases=2), Family.of(batch, any_size=True)).eval()
    with torch.no_grad():
        assert isinstance(network.body, ResidualNetwork)
        network.body.readout.weight.normal_()
    image = mirrored(batch)
    assert image is not None
    one, two = score(network, batch, both_ways=True), score(network, image, both_ways=True)
    torch.testing.assert_close(one, two.flip(1))
    assert not torch.allclose(score(network, batch), score(network, image).flip(1))
