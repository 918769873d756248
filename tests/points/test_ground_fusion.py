"""Ground decided on by a network and SMRF together: features against plain loops, and places the network got wrong."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn.errors import InputError
from fgnn.points import Cloud
from fgnn.points.cloud import HeldCloud
from fgnn.points.ground import smrf
from fgnn.points.ground_fusion import FEATURES, GroundFusion, block_features, fuse, fusion_features
from fgnn.points.tiles import TileStore
from fgnn.schema import parse, plain
from tests.points.test_heights import land

CLASSES = ("ground", "low vegetation", "other")
# The network decides, SMRF decides.
NETWORK = GroundFusion(tuple(float(name == "logit") for name in FEATURES))
FILTER = GroundFusion(tuple(-float(name == "margin") for name in FEATURES))


def votes_for(ground: np.ndarray, seed: int = 0) -> np.ndarray:
    """Votes of four tiles, right where ``ground`` is."""
    rng = np.random.default_rng(seed)
    p = np.where(ground, rng.uniform(0.6, 0.99, len(ground)), rng.uniform(0.01, 0.4, len(ground)))
    return 4 * np.stack([p, (1 - p) / 3, 2 * (1 - p) / 3], axis=1).astype(np.float32)


def plane_by_loop(point: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Height over a weighted plane through the twelve nearest, by least squares with the same ridge; and its slope."""
    distance = np.hypot(*(others - point)[:, :2].T)
    near = np.argsort(distance)[:12]
    w = 1 / (distance[near] ** 2 + 0.25)
    w /= w.sum()
    offset = others[near] - point
    centred = offset - w @ offset
    spread = w @ centred[:, :2] ** 2
    ridge = 0.05 * spread.sum() + 1e-3
    normal = (centred[:, :2] * w[:, None]).T @ centred[:, :2] + ridge * np.eye(2)
    slope = np.linalg.solve(normal, (centred[:, :2] * w[:, None]).T @ centred[:, 2])
    mean = w @ offset
    return float(slope @ mean[:2] - mean[2]), float(np.hypot(*slope))


def test_features_equal_plain_loops() -> None:
    xyz, ground = land(0.2, points=1500)
    votes = votes_for(ground)
    p = votes / votes.sum(1, keepdims=True)
    wanted = np.zeros(len(xyz), bool)
    wanted[::50] = True
    x = fusion_features(xyz, p.argmax(1) == 0, wanted, p[wanted], CLASSES)
    exact = np.arange(len(xyz))
    for row, point in zip(x, np.flatnonzero(wanted), strict=True):
        others = xyz[ground & (exact != point)].astype(np.float64)
        height, slope = plane_by_loop(xyz[point].astype(np.float64), others)
        np.testing.assert_allclose(
            row[[1, 4, 5]], [min(slope, 1), min(abs(height), 1), np.clip(height, -1, 1)], atol=1e-4
        )
        np.testing.assert_allclose(row[0], np.log(p[point, 0] / (1 - p[point, 0])), rtol=1e-4)
    # the raster of `smrf` begins at the lowest point, this one at a whole metre
    assert (x[:, 3].astype(bool) == smrf(xyz.astype(np.float64))[wanted]).mean() > 0.9
    np.testing.assert_array_equal(x[:, 2] <= 0, x[:, 3] > 0)
    np.testing.assert_array_equal(x[:, 6], p[wanted, 1])
    np.testing.assert_array_equal(x[:, 7], 0)  # there is no class building
    np.testing.assert_allclose(x[:, 8], x[:, 0] * x[:, 1], rtol=1e-5)
    house = ~ground[wanted]
    assert (np.sinh(x[house, 13]) > 3).all()  # above a wide opening
    assert np.median(np.sinh(x[~house, 13])) < 1
    assert x.shape == (wanted.sum(), len(FEATURES))


def test_every_labelled_point_is_in_one_block_whatever_the_extent() -> None:
    rng = np.random.default_rng(2)
    count = 1500
    xyz = np.column_stack([rng.uniform(-200, 200, (count, 2)), rng.uniform(0, 1, count)])
    votes = votes_for(rng.uniform(size=count) < 0.5)
    votes[::7] = 0
    found = []
    for part in (np.arange(count), np.flatnonzero(np.abs(xyz).max(1) < 140)):
        with TileStore(HeldCloud(Cloud(xyz[part])), size=64.0) as store:
            place = np.asarray(store.place)
            values = np.full((count, len(FEATURES)), np.nan, np.float32)
            for slots, x in block_features(store, votes[part][place], CLASSES):
                assert np.isnan(values[part[place[slots]]]).all()
                values[part[place[slots]]] = x
        np.testing.assert_array_equal(np.isnan(values[part]).any(1), part % 7 == 0)
        found.append(values)
    inner = (np.abs(xyz[:, :2]) < 50).all(1)  # far from where the second scan ends
    margin = FEATURES.index("margin")  # empty cells take the mean of the eight nearest, and there are ties among these
    np.testing.assert_allclose(found[0][inner, margin], found[1][inner, margin], atol=0.05)
    np.testing.assert_array_equal(*(np.delete(f[inner], margin, axis=1) for f in found))


@pytest.mark.parametrize("rule", [NETWORK, FILTER])
def test_the_rule_decides(rule: GroundFusion) -> None:
    """The network takes the house for ground and misses a corner of the land; the filter does neither."""
    xyz, ground = land(0.1)
    wrong = ground ^ (np.abs(xyz[:, :2] - 30) < 5).all(1) ^ (xyz[:, :2] < 12).all(1)
    before = votes_for(wrong)
    with TileStore(HeldCloud(Cloud(xyz.astype(np.float64))), size=64.0) as store:
        place = np.asarray(store.place)
        votes = before[place]
        fuse(store, votes, CLASSES, rule)
        label = np.empty(len(xyz), int)
        label[place] = votes.argmax(1)
    errors = ((label == 0) != ground).mean()
    assert errors == ((before.argmax(1) == 0) != ground).mean() if rule is NETWORK else errors < 0.04
    assert (label[(label != 0) & wrong] == 2).all()  # the likeliest other class


def test_rules_are_read_strictly() -> None:
    assert parse(GroundFusion, plain(FILTER)) == FILTER
    for values in (
        {"weights": [1.0] * 7},
        {"weights": ["a"] * 15},
        {"weights": [1.0] * 15, "tolerance": {"base": -1.0}},
    ):
        with pytest.raises(InputError):
            parse(GroundFusion, values)
