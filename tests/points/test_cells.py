"""Neighbours found by cells against all distances; also far outside the points, and for points on a line."""

from __future__ import annotations

import numpy as np
import pytest

from fgnn.points.cells import nearest_values, sort_into_cells


@pytest.mark.parametrize("shape", ["square", "line", "one", "cluster"])
def test_the_nearest_are_those_of_all_distances(shape: str) -> None:
    rng = np.random.default_rng(3)
    xyz = rng.uniform(0, 20, (400 if shape != "one" else 1, 3))
    if shape == "line":
        xyz[:, 0] = 5.0
    if shape == "cluster":
        xyz[:-1] /= 50
    values = rng.uniform(size=(len(xyz), 4)).astype(np.float32)
    at = np.concatenate([rng.uniform(0, 20, (100, 3)), rng.uniform(-300, 300, (40, 3)), xyz[:50]])
    k = min(3, len(xyz))
    found = nearest_values(sort_into_cells(*np.ascontiguousarray(xyz.T)), values, *np.ascontiguousarray(at.T), k)
    distance = np.sqrt(((at[:, None] - xyz) ** 2).sum(2))
    near = np.argsort(distance, axis=1)[:, :k]
    weight = 1 / (np.take_along_axis(distance, near, 1) + 1e-3)
    expected = (weight[..., None] * values[near]).sum(1) / weight.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
