"""Weights whose card was altered are used or refused in one line: no traceback, no gigabytes, no endless work."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fgnn
from fgnn.data import ChainMAP
from fgnn.models import PointConfig, PointNetwork
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points import Cloud
from fgnn.points.segment_pieces import Cut
from fgnn.schema import plain
from fgnn.tasks.evaluate_map import data_to_test
from fgnn.tasks.map import MAPTask
from fgnn.weights import load_weights, save_weights
from fgnn.weights.cards import read_card
from fgnn.weights.store import save_tensors
from tests.fuzz.altered import alterations, attempt
from tests.tasks.helpers import small_recipe


def _map(folder: Path) -> tuple[Path, dict[str, Any]]:
    task = MAPTask(small_recipe())
    save_weights(folder / "map.safetensors", task.network.state_dict(), {"name": "map", **task.card()})
    return folder / "map.safetensors", {"name": "map", **task.card()}


def _use_map(file: Path) -> None:
    models = ChainMAP(1, 8, 4, 2).sample(2)
    network, card = fgnn.models.load_network(file)
    assert read_card(file) == card
    data_to_test(card, None, None, file)
    reason = network.family.refusal(models)
    if reason is None:
        assert torch.isfinite(network(models)).all()


def _points(folder: Path) -> tuple[Path, dict[str, Any]]:
    config = PointConfig(k=4, bases=2, notation="Input - FGNN(4) - FC(N)")
    cut = Cut(size=20.0, points=64, scale=10.0, heights=(3.0,))
    card = {
        "name": "points", "task": "points", "network": plain(config), "classes": ["ground", "other"], "categories": [],
        "parts": [], "features": cut.columns, "inputs": "scan: tile",
        "data": {"scans": {"root": "scans", **plain(cut)}},
    }  # fmt: skip
    torch.manual_seed(0)
    save_weights(folder / "points.safetensors", PointNetwork(config, cut.columns, 2).state_dict(), card)
    return folder / "points.safetensors", card


def _use_points(file: Path) -> None:
    cloud = Cloud(np.random.default_rng(0).random((100, 3)) * 30)
    segmenter = load_segmenter(file)
    assert len(fgnn.points.segment_cloud(cloud, segmenter).label) == 100


CARDS = {"map": (_map, _use_map), "points": (_points, _use_points)}


def check(kind: str, folder: Path, count: int | None) -> tuple[int, int]:
    """Use the altered cards of one kind; return how many were used, of how many."""
    make, use = CARDS[kind]
    file, card = make(folder)
    tensors = dict(load_weights(file).tensors)
    use(file)
    cases = list(alterations(json.loads(json.dumps(card))))
    if count is not None:
        cases = random.Random(0).sample(cases, count)
    used = 0
    for what, values in cases:
        save_tensors(file, tensors, values, "fgnn-weights-1")
        used += attempt(what, partial(use, file), str(file))
    return used, len(cases)


@pytest.mark.parametrize("kind", CARDS)
def test_an_altered_card_is_used_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    used, count = check(kind, tmp_path, 200)
    assert 5 < used < count // 2  # what nobody reads may change, and some values are as good as others


@pytest.mark.slow
@pytest.mark.parametrize("kind", CARDS)
def test_every_alteration_of_a_card(kind: str, tmp_path: Path) -> None:
    assert check(kind, tmp_path, None)[1] > 500
