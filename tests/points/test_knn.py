"""Nearest neighbours: exact, ordered by (distance, index), identical on every path."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fgnn.points.knn import knn

GPU = torch.cuda.is_available()
TRITON = find_spec("triton") is not None
INTERPRETED = TRITON and os.environ.get("TRITON_INTERPRET") == "1" and version("triton") >= "3.9"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not (GPU and TRITON), reason="no CUDA device with triton")]


def brute(points: Tensor, k: int, queries: Tensor | None = None, include_self: bool = True) -> tuple[Tensor, Tensor]:
    """All distances in float32, sorted by (distance, index)."""
    p = points.float().numpy()
    q = p if queries is None else queries.float().numpy()
    delta = [q[:, None, axis] - p[None, :, axis] for axis in range(3)]
    d = delta[0] * delta[0] + delta[1] * delta[1] + delta[2] * delta[2]
    if queries is None and not include_self:
        np.fill_diagonal(d, np.inf)
    order = np.argsort(d, axis=1, kind="stable")[:, :k]
    return torch.from_numpy(order), torch.from_numpy(np.take_along_axis(d, order, 1))


def clouds() -> dict[str, Tensor]:
    """Hard clouds: lattices, coinciding points, planes, lines, outliers."""
    make = torch.Generator().manual_seed(0)
    lattice = torch.stack(torch.meshgrid(*[torch.arange(4.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    crowd = torch.cat([torch.zeros(70, 3), torch.rand(10, 3, generator=make)])
    plane = torch.rand(90, 3, generator=make) * torch.tensor([1.0, 1.0, 0.0])
    far = torch.rand(90, 3, generator=make)
    far[0] = 1e3
    return {
        "random": torch.rand(90, 3, generator=make),
        "lattice": lattice,
        "crowd": crowd[torch.randperm(80, generator=make)],
        "plane": plane,
        "line": torch.rand(70, 1, generator=make) * torch.tensor([1.0, 2.0, 3.0]),
        "far": far,
        "one place": torch.ones(70, 3),
        "sheets": torch.cat([plane * 20, plane * 20 + torch.tensor([500.0, 0.0, 0.0])]),
    }


CLOUDS = clouds()


@pytest.fixture(params=["cells", "tree", "all pairs"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of the CPU."""
    module = importlib.import_module("fgnn.points.knn")  # the package exports a function of that name
    monkeypatch.setattr(module, "_FEW", 1000 if request.param == "all pairs" else 0)
    if request.param == "tree":
        monkeypatch.setattr("fgnn.points.knn_cells._MOST_IN_A_CELL", 0)


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("name", CLOUDS)
def test_the_search_on_the_cpu_is_exact(name: str, include_self: bool) -> None:
    index, distance = knn(CLOUDS[name], 6, include_self=include_self)
    wanted, squared = brute(CLOUDS[name], 6, include_self=include_self)
    assert torch.equal(distance, squared)
    assert torch.equal(index, wanted)


@given(st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=1, max_size=40), st.integers(1, 40))
def test_ties_go_to_the_lower_index(places: list[tuple[int, int, int]], k: int) -> None:
    points = torch.tensor(places, dtype=torch.float32)
    k = min(k, len(places))
    assert torch.equal(knn(points, k)[0], brute(points, k)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("fgnn.points.knn"), "_FEW", 0)
        assert torch.equal(knn(points, k)[0], brute(points, k)[0])


@pytest.mark.usefixtures("search")
def test_batches_and_other_queries() -> None:
    make = torch.Generator().manual_seed(1)
    points, queries = torch.rand(3, 50, 3, generator=make), torch.rand(3, 7, 3, generator=make) * 2
    queries[0, 0], queries[1, 1] = 1e9, -300.0  # far outside
    index, distance = knn(points, 4, queries)
    assert index.shape == distance.shape == (3, 7, 4)
    for b in range(3):
        wanted, squared = brute(points[b], 4, queries[b])
        assert torch.equal(index[b], wanted)
        assert torch.equal(distance[b], squared)


def test_a_distant_origin_costs_no_precision_in_float64() -> None:
    near = torch.rand(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moved = near.mul(2**20).round().div(2**20) + torch.tensor([500_000.0, 5_000_000.0, 0.0], dtype=torch.float64)
    local = moved - moved.amin(0)
    assert torch.equal(knn(moved, 5)[0], brute(local, 5)[0])


def test_features_of_any_length() -> None:
    make = torch.Generator().manual_seed(3)
    x = torch.randn(2, 60, 17, generator=make)
    index, distance = knn(x, 5, include_self=False)
    exact = torch.cdist(x.double(), x.double()).square()
    exact.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    values, wanted = exact.topk(5, largest=False)
    assert torch.equal(index, wanted)
    torch.testing.assert_close(distance.double(), values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        (torch.rand(4), 1, "Expected points"),
        (torch.rand(4, 3), 5, "Expected k from 1 to 4"),
        (torch.rand(4, 3), 0, "Expected k from 1 to 4"),
        (torch.full((4, 3), torch.nan), 1, "finite"),
    ],
)
def test_invalid_input_is_rejected(points: Tensor, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        knn(points, k)


@interpreted
@pytest.mark.parametrize("name", ["random", "lattice", "crowd"])
def test_the_tile_kernel_is_exact(name: str) -> None:
    from fgnn.points.knn_gpu import by_tiles

    for exclude in (False, True):
        index, distance = by_tiles(CLOUDS[name][None, :72], None, 4, exclude)
        wanted, squared = brute(CLOUDS[name][:72], 4, include_self=not exclude)
        assert torch.equal(index[0], wanted)
        assert torch.equal(distance[0], squared)


@interpreted
@pytest.mark.parametrize("name", ["random", "plane"])
def test_the_grid_kernel_is_exact(name: str) -> None:
    from fgnn.points.knn_gpu import by_grid

    index, distance = by_grid(CLOUDS[name][:60], None, 3, False)
    wanted, squared = brute(CLOUDS[name][:60], 3)
    assert torch.equal(index, wanted)
    assert torch.equal(distance, squared)


def _hard_clouds(count: int) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(4)
    cube = torch.rand(count, 3, generator=make)
    sphere = torch.nn.functional.normalize(torch.randn(count, 3, generator=make), dim=1)
    rounded = (cube * 20).round()
    crowd = torch.where(torch.rand(count, 1, generator=make) < 0.1, 0.0, cube)
    far = cube.clone()
    far[::1000] *= 100
    return {"cube": cube, "sphere": sphere, "rounded": rounded, "crowd": crowd, "far": far}


@pytest.mark.parametrize("name", ["cube", "sphere", "rounded", "crowd", "far"])
@pytest.mark.parametrize(("count", "k"), [(3000, 16), (40_000, 16), (3000, 40)])
class TestOnTheGPU:
    """Both kernels equal the CPU bit for bit."""

    pytestmark = gpu

    def test_equals_the_tree(self, name: str, count: int, k: int) -> None:
        points = _hard_clouds(count)[name]
        for include_self in (True, False):
            index, distance = knn(points.cuda(), k, include_self=include_self)
            wanted, squared = knn(points, k, include_self=include_self)
            assert torch.equal(distance.cpu(), squared)
            assert torch.equal(index.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not (GPU and TRITON), reason="no CUDA device with triton")
@pytest.mark.parametrize("count", [1000, 40_000])
def test_other_queries_on_the_gpu(count: int) -> None:
    make = torch.Generator().manual_seed(5)
    points, queries = torch.rand(count, 3, generator=make), torch.rand(500, 3, generator=make) * 3 - 1
    index, distance = knn(points.cuda(), 9, queries.cuda())
    wanted, squared = knn(points, 9, queries)
    assert torch.equal(distance.cpu(), squared)
    assert torch.equal(index.cpu(), wanted)
