"""Farthest-point sampling: spread, nested, and the kernel's indices equal to the loop's."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from fgnn.models.points.farthest import by_kernel, by_loop, farthest

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)


def crowded(clouds: int, points: int) -> Tensor:
    """Clouds whose last third repeats their first: ties, and distances of zero."""
    xyz = torch.rand(clouds, points, 3, generator=torch.Generator().manual_seed(4))
    xyz[:, -(points // 3) :] = xyz[:, : points // 3]
    return xyz


def test_a_smaller_sample_of_farthest_points_is_a_prefix_of_the_larger() -> None:
    points = crowded(3, 60)
    larger = farthest(points, 50)
    for count in (1, 7, 50):
        assert torch.equal(farthest(larger, count), larger[:, :count])
        assert torch.equal(farthest(points, count), larger[:, :count])


def test_farthest_points_spread() -> None:
    line = torch.arange(11.0)[None, :, None].expand(1, 11, 3)
    assert sorted(farthest(line, 3)[0, :, 0].tolist()) == [0.0, 5.0, 10.0]


@interpreted
def test_the_kernel_chooses_the_same_points_as_the_loop() -> None:
    points = crowded(2, 45)
    assert torch.equal(by_kernel(points, 44), by_loop(points, 44))


@pytest.mark.gpu
def test_the_kernel_chooses_the_same_points_on_a_gpu() -> None:
    points = crowded(8, 2048).cuda()
    assert torch.equal(by_kernel(points, 768), by_loop(points, 768))
