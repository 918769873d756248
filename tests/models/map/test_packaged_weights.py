"""The packaged weights: small, complete, and as accurate as their cards state."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fgnn import ModelBatch, solve
from fgnn.data import ChainMAP, GridMAP
from fgnn.models.map.learned import choose_weights, load_network, score
from fgnn.tasks.evaluate_map import data_to_test, evaluate_network
from fgnn.tasks.map import data_sets, draw_many
from fgnn.weights import load_weights, weight_names
from fgnn.weights.cards import weights_folder
from tools.guide_models import draw, structures

MAP = [name for name in weight_names() if load_weights(name).card.get("task") == "map" and name != "guide-pairs"]


def test_all_weights_together_are_small() -> None:
    total = sum(p.stat().st_size for p in weights_folder().glob("*.safetensors"))
    assert 0 < total <= 30 * 10**6


@pytest.mark.parametrize("name", weight_names())
def test_the_card_beside_the_weights_equals_the_card_in_them(name: str) -> None:
    card = load_weights(name).card
    beside = json.loads((weights_folder() / f"{name}.json").read_text(encoding="utf-8"))
    assert card == beside
    assert {"recipe", "data", "seed", "hours", "hardware", "metrics", "command"} <= card.keys()


@pytest.mark.parametrize("name", MAP)
def test_map_weights_are_as_accurate_as_their_card_states(name: str) -> None:
    network, card = load_network(name)
    for kind, data in data_to_test(card, None, None, name).items():
        examples = draw_many(data_sets(data), 48, 99, "test", torch.device("cpu"))
        measured = evaluate_network(network, examples)
        stated = card["results"][kind]["raw"]
        slack = 4 * stated["deviation"] + 0.005  # the card's ± is that of means over 32 instances
        assert measured.raw.agreement == pytest.approx(stated["agreement"], abs=slack)
        assert measured.decoded.feasible == 1.0


def test_the_guide_is_as_accurate_on_fresh_models_as_its_card_states() -> None:
    network, card = load_network("guide-pairs")
    rng = np.random.default_rng(99)
    shares = []
    for count, pairs in structures(rng)[::4]:  # grids and graphs
        batch = ModelBatch.stack([draw(count, pairs, rng) for _ in range(24)])
        shares.append((score(network, batch).argmax(2) == solve(batch, "exact").assignment).double().mean().item())
    assert np.mean(shares) == pytest.approx(card["metrics"]["agreement"], abs=0.05)


def test_pairs_without_budgets_are_given_to_the_guide() -> None:
    rng = np.random.default_rng(0)
    for count, pairs in structures(rng)[:3]:
        assert choose_weights(ModelBatch.stack([draw(count, pairs, rng)])) == "guide-pairs"
    assert choose_weights(GridMAP(8, 8).sample(1, seed=0)) == "deep-grid"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("deep-map-joint", ChainMAP(3), [-12.7679, -13.2307, -13.3626, 12.7599]),
        ("deep-grid", GridMAP(8, 8), [-9.8987, -10.0474, -10.1211, -10.1398]),
    ],
)
def test_deep_weights_give_the_scores_they_were_packaged_with(
    name: str, data: ChainMAP | GridMAP, expected: list[float]
) -> None:
    network, card = load_network(name)
    with torch.no_grad():
        scores = network(data.sample(1, seed=5))[0, :4]
    assert (scores[:, 1] - scores[:, 0]).tolist() == pytest.approx(expected, abs=1e-3)
    assert network.config.ignored.isdisjoint(card["network"])
