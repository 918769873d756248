"""The rule for ground is fitted without the scans it is scored on, and its errors are those of the real labelling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.points import Cloud, Segmenter, segment_cloud
from fgnn.points.ground_fusion import FEATURES, GroundFusion
from fgnn.points.ground_surface import Tolerance
from tests.points.test_heights import land
from tools.fit_fusion import LabelledScan, errors, fit, fit_folds, label

CLASSES = ("ground", "low vegetation", "other")
TOWN = Tolerance()


def never(features: np.ndarray) -> np.ndarray:
    raise AssertionError("the network is not needed")


SEGMENTER = Segmenter(never, CLASSES, size=64.0, thin=0.64)


def make_scan(fold: int, folder: Path) -> LabelledScan:
    """A slope with a house that a network takes for ground, and a corner of the land that it misses."""
    xyz, ground = land(0.05 + 0.05 * fold, points=4000, seed=fold)
    rng = np.random.default_rng(fold)
    said = ground ^ (np.abs(xyz[:, :2] - 30) < 5).all(1) ^ (xyz[:, :2] < 15).all(1)
    p = np.where(said, 0.8, 0.2) + rng.uniform(-0.15, 0.15, len(xyz))
    votes = np.stack([p, (1 - p) / 3, 2 * (1 - p) / 3], axis=1).astype(np.float32)
    votes[rng.uniform(size=len(xyz)) < 0.3] = 0  # thinned
    np.save(folder / f"{fold}.npy", votes)
    cloud = Cloud(xyz.astype(np.float64), {"classification": np.where(ground, 2, 101).astype(np.uint8)})
    return label(cloud, fold, SEGMENTER, folder / f"{fold}.npy")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LabelledScan]:
    folder = tmp_path_factory.mktemp("votes")
    return {f"scan{fold}": make_scan(fold, folder) for fold in range(3)}


@pytest.fixture(scope="module")
def rules(scans: dict[str, LabelledScan]) -> dict[int, GroundFusion]:
    return fit_folds(scans)


def test_errors_are_those_of_the_labelling(scans: dict[str, LabelledScan]) -> None:
    scan = scans["scan1"]
    weights = np.array([0.2, 3, -0.7, 1.4, -2, -2, -7, 0, 0, 0, 0, 0, 0, 0, 1])
    segmenter = Segmenter(never, CLASSES, 64.0, thin=0.64, fusion=GroundFusion(tuple(weights), TOWN))
    found = segment_cloud(scan.cloud, segmenter, votes=scan.votes).label == 0
    assert errors(scan, weights)[TOWN] == pytest.approx((found != scan.truth[0]).mean(), abs=0.005)


def test_the_rule_of_a_fold_mends_what_its_network_got_wrong(
    scans: dict[str, LabelledScan], rules: dict[int, GroundFusion]
) -> None:
    assert set(rules) == {-1, 0, 1, 2}
    network = np.eye(len(FEATURES))[0]
    for scan in scans.values():
        rule = rules[scan.fold]
        assert errors(scan, np.array(rule.weights))[rule.tolerance] < 0.5 * errors(scan, network)[TOWN]


def test_the_rule_of_a_fold_does_not_know_its_scans(
    scans: dict[str, LabelledScan], rules: dict[int, GroundFusion]
) -> None:
    np.testing.assert_allclose(rules[2].weights, fit([scans["scan0"], scans["scan1"]]), atol=1e-4)
