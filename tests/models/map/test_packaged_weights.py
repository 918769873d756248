"""The weights that come with the package: small, whole, and as good as their cards say."""

from __future__ import annotations

import json

import pytest
import torch

from fgnn.models.map.learned import load_network
from fgnn.tasks.evaluate_map import data_to_test, evaluate_network
from fgnn.tasks.map import data_sets, draw_many
from fgnn.weights import load_weights, weight_names
from fgnn.weights.cards import weights_folder

MAP = [name for name in weight_names() if load_weights(name).card.get("task") == "map"]


def test_all_weights_together_are_small() -> None:
    total = sum(p.stat().st_size for p in weights_folder().glob("*.safetensors"))
    assert 0 < total <= 25 * 10**6


@pytest.mark.parametrize("name", weight_names())
def test_a_card_stands_beside_the_weights_and_in_them(name: str) -> None:
    card = load_weights(name).card
    beside = json.loads((weights_folder() / f"{name}.json").read_text(encoding="utf-8"))
    assert card == beside
    assert {"recipe", "data", "seed", "hours", "hardware", "metrics", "command"} <= card.keys()


@pytest.mark.parametrize("name", MAP)
def test_map_weights_are_as_good_as_their_card_says(name: str) -> None:
    network, card = load_network(name)
    for kind, data in data_to_test(card, None, None, name).items():
        examples = draw_many(data_sets(data), 48, 99, "test", torch.device("cpu"))
        found = evaluate_network(network, examples)
        told = card["results"][kind]["raw"]
        slack = 4 * told["deviation"] + 0.005  # the card's ± is of means over 32
        assert found.raw.agreement == pytest.approx(told["agreement"], abs=slack)
        assert found.decoded.feasible == 1.0
