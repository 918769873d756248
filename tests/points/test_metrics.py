"""Metrics equal an independent count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_jaccard_index

from fgnn.data.shapenet import CATEGORIES, PARTS
from fgnn.points.metrics import confusion, part_ious, scene_score, shape_score


@given(st.integers(0, 2**31), st.integers(2, 8))
def test_pooled_iou_equals_torchmetrics(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    target, predicted = rng.integers(0, classes, 300), rng.integers(0, classes, 300)
    score = scene_score(confusion(target, predicted, classes))
    peer = multiclass_jaccard_index(
        torch.as_tensor(predicted), torch.as_tensor(target), num_classes=classes, average="none"
    )
    np.testing.assert_allclose(score.iou, peer.numpy(), atol=1e-6)
    assert score.accuracy == pytest.approx((target == predicted).mean())


def test_the_mean_ignores_absent_classes() -> None:
    score = scene_score(confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 3))
    assert np.isnan(score.iou[2])
    assert score.mean_iou == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert score.mean_class_accuracy == pytest.approx((1 / 2 + 1) / 2)


def test_unlabelled_points_are_ignored() -> None:
    counts = confusion(np.array([-1, 0, 1]), np.array([1, 0, 1]), 2)
    assert counts.tolist() == [[1, 0], [0, 1]]


def test_counts_are_pooled_before_dividing() -> None:
    small = confusion(np.array([0, 1]), np.array([0, 0]), 2)
    large = confusion(np.array([0] * 8), np.array([0] * 8), 2)
    assert scene_score(small + large).iou[0] == pytest.approx(9 / 10)


def iou_by_hand(target: np.ndarray, predicted: np.ndarray, part: int) -> float:
    both = either = 0
    for t, p in zip(target.tolist(), predicted.tolist(), strict=True):
        both += t == part and p == part
        either += t == part or p == part
    return 1.0 if either == 0 else both / either


@given(st.integers(0, 2**31))
def test_part_iou_equals_a_count_by_hand_absent_parts_included(seed: int) -> None:
    rng = np.random.default_rng(seed)
    category = int(rng.integers(16))
    few = PARTS[category][: 1 + int(rng.integers(len(PARTS[category])))]
    target, predicted = rng.choice(few, 40), rng.choice(PARTS[category], 40)
    expected = [iou_by_hand(target, predicted, part) for part in PARTS[category]]
    np.testing.assert_allclose(part_ious(target, predicted, PARTS[category]), expected)


def test_instance_and_class_means_differ() -> None:
    plane, bag = PARTS[0], PARTS[1]
    perfect = np.array([plane[0], plane[1]])
    wrong = np.array([bag[0], bag[0]])
    results = [(0, perfect, perfect), (0, perfect, perfect), (1, wrong, np.array([bag[1], bag[1]]))]
    score = shape_score(results, CATEGORIES, PARTS)
    assert score.category == {"Airplane": 1.0, "Bag": 0.0}
    assert score.instance == pytest.approx(2 / 3)
    assert score.class_average == pytest.approx(1 / 2)
    assert score.shapes["Airplane"] == 2


def test_invalid_labels_are_rejected() -> None:
    with pytest.raises(ValueError, match="Expected as many predictions as targets, 2"):
        confusion(np.array([0, 1]), np.array([0]), 2)
    with pytest.raises(ValueError, match="Expected classes below 2"):
        confusion(np.array([0, 1]), np.array([0, 2]), 2)
