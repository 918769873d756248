"""Shapes of neighbourhoods on surfaces whose shape is known, and intensity and returns as features."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn.points import Cloud
from fgnn.points.echoes import echo_features, raw_echoes
from fgnn.points.neighbourhood import SHAPE_COLUMNS, columns_around, neighbourhood_shape

RNG = np.random.default_rng(0)


def surface(kind: str, count: int = 400) -> np.ndarray:
    xyz = RNG.uniform(0, 10, (count, 3))
    if kind == "roof":
        xyz[:, 2] = 3 + 0.5 * xyz[:, 0]
    elif kind == "wall":
        xyz[:, 1] = 2.0
    return xyz.astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "flat", "upright"), [("roof", True, 1 - 1 / np.sqrt(1.25)), ("wall", True, 1.0), ("crown", False, None)]
)
def test_planes_are_flat_and_crowns_are_not(kind: str, flat: bool, upright: float | None) -> None:
    planarity, scatter, tilt, _, radius = np.median(neighbourhood_shape(surface(kind), (12,)), axis=0)
    assert (scatter < 0.01) == flat
    assert (planarity > 0.3) or not flat
    assert radius > 0
    if upright is not None:
        assert tilt == pytest.approx(upright, abs=0.02)


def test_shapes_agree_with_a_plain_loop() -> None:
    xyz = surface("crown", 40)
    columns = neighbourhood_shape(xyz, (5, 9))
    for p in range(len(xyz)):
        order = np.argsort(((xyz - xyz[p]) ** 2).sum(1), kind="stable")
        for n, k in enumerate((5, 9)):
            near = xyz[order[:k]].astype(np.float64)
            values, vectors = np.linalg.eigh(np.cov(near.T, bias=True))
            expected = [
                (values[1] - values[0]) / values[2], values[0] / values[2], 1 - abs(vectors[2, 0]),
                np.arcsinh(xyz[p, 2] - near[:, 2].mean()), np.arcsinh(np.linalg.norm(near[-1] - xyz[p])),
            ]  # fmt: skip
            found = columns[p, SHAPE_COLUMNS * n : SHAPE_COLUMNS * (n + 1)]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-3)


def test_few_points_have_no_shape() -> None:
    assert not neighbourhood_shape(np.ones((2, 3), np.float32), (8,)).any()
    assert columns_around(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_what_is_above_and_below() -> None:
    xyz = np.array([[0.5, 0.5, 0], [1.5, 0.5, 4], [8.5, 0.5, 9]], np.float32)
    above, below, count = columns_around(xyz).T
    np.testing.assert_allclose(np.sinh(above), [4, 0, 0], atol=1e-5)
    np.testing.assert_allclose(np.sinh(below), [0, 4, 0], atol=1e-5)
    np.testing.assert_allclose(np.expm1(count), [2, 2, 1], rtol=1e-4)


def test_missing_echoes_are_flagged() -> None:
    xyz = np.zeros((3, 3))
    assert not echo_features(raw_echoes(Cloud(xyz, {}))).any()
    fields = {"return_number": np.array([1, 1, 2]), "number_of_returns": np.array([1, 2, 2])}
    fields["intensity"] = np.array([100, 100, 400])
    found = echo_features(raw_echoes(Cloud(xyz, fields)))
    np.testing.assert_array_equal(found[:, 1:4], [[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    np.testing.assert_array_equal(found[:, 4:], 1)
    assert found[0, 0] == 0 < found[2, 0]
    fields["intensity"] = np.zeros(3)
    fields["return_number"] = np.zeros(3, int)
    assert not echo_features(raw_echoes(Cloud(xyz, fields))).any()  # zeros mean unknown
