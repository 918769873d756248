"""Farthest point sampling, against the definition."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fgnn.points import sampling
from fgnn.points.sampling import farthest_points

TRITON = find_spec("triton") is not None
INTERPRETED = TRITON and os.environ.get("TRITON_INTERPRET") == "1" and version("triton") >= "3.9"


def cloud(seed: int, clouds: int = 2, points: int = 70) -> Tensor:
    return torch.rand(clouds, points, 3, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.integers(1, 30))
def test_each_choice_is_the_farthest_from_those_before(seed: int, count: int) -> None:
    x = cloud(seed)
    index = farthest_points(x, count)
    for points, chosen in zip(x.double(), index, strict=True):
        far = torch.cdist(points, points)
        assert int(chosen[0]) == int((points - points.mean(0)).norm(dim=1).argmax())
        for k in range(1, count):
            nearest = far[:, chosen[:k]].amin(1)
            assert float(nearest[chosen[k]]) == pytest.approx(float(nearest.max()), abs=1e-6)


def test_a_prefix_is_a_smaller_sample() -> None:
    x = cloud(0)
    assert torch.equal(farthest_points(x, 40)[:, :13], farthest_points(x, 13))


def test_the_first_choice_may_be_given_and_few_places_repeat() -> None:
    x = cloud(1, points=20)
    x[1, 5:] = x[1, :1]  # five places
    index = farthest_points(x, 8, torch.tensor([7, 3]))
    assert index[:, 0].tolist() == [7, 3]
    assert len(set(index[0].tolist())) == 8
    assert set(index[1, :5].tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("count", [0, 71])
def test_an_impossible_count_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 70.*{count}"):
        farthest_points(cloud(0), count)


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
def test_the_kernel_makes_the_same_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    x = cloud(2, clouds=3)
    x[1, 30:] = x[1, :1]
    wanted = farthest_points(x, 40)
    monkeypatch.setattr(sampling, "can_launch", lambda device: True)
    assert torch.equal(farthest_points(x, 40), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize(("points", "count"), [(2048, 512), (1000, 64), (9000, 20)])
def test_a_gpu_makes_the_choices_of_a_cpu(points: int, count: int) -> None:
    x = cloud(3, clouds=5, points=points)
    start = torch.tensor([0, 1, 2, 500, 999])
    assert torch.equal(farthest_points(x.cuda(), count, start.cuda()).cpu(), farthest_points(x, count, start))
