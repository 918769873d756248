"""Exact k nearest neighbours, ordered by (squared distance, index) and identical on every device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.runtime.triton_support import can_launch

# Results are ordered by float32 distances; the float64 order of the tree can differ within this relative margin.
_MARGIN = 1e-5
_TINY = 1e-36
_CHUNK = 1 << 16
# Clouds with more points are searched through a grid of cells on the GPU.
_GRID_FROM = 1 << 15
_WIDEST = 128
# Clouds of so few points are searched without a tree, many at once.
_FEW = 128
# Entries of a block of distances between feature vectors.
_BLOCK = 1 << 24


def knn(
    points: Tensor,
    k: int,
    queries: Tensor | None = None,
    *,
    include_self: bool = True,
) -> tuple[Tensor, Tensor]:
    """The k points nearest to each query, nearest first; ties go to the lower index.

    Squared distances are computed in float32 as ``dx*dx + dy*dy + dz*dz``; the minimum of float64 coordinates is first
    subtracted, so that a distant origin costs no precision. CPU and GPU give the same result, duplicates included.

    Args:
        points: (N, 3) or (B, N, 3); a last dimension other than 3 holds features, compared by matrix products.
        k: Number of neighbours; at most N, or N - 1 without the query itself.
        queries: (M, 3) or (B, M, 3); the points themselves by default.
        include_self: Whether a point is its own neighbour, if the queries are the points.

    Returns:
        Indices (…, M, k) int64 and squared distances (…, M, k) float32.
    """
    if points.dim() not in (2, 3) or (queries is not None and queries.dim() != points.dim()):
        raise ValueError(f"Expected points and queries (N, 3) or (B, N, 3) (got points {tuple(points.shape)})")
    if queries is not None and queries.shape[-1] != points.shape[-1]:
        raise ValueError(f"Expected queries of length {points.shape[-1]} (got {queries.shape[-1]})")
    most = points.shape[-2] - (queries is None and not include_self)
    if not 1 <= k <= most:
        raise ValueError(f"Expected k from 1 to {most}, the number of points (got {k})")
    if points.dim() == 2:
        index, distance = knn(points[None], k, None if queries is None else queries[None], include_self=include_self)
        return index[0], distance[0]
    clouds, targets = _local(points.detach(), None if queries is None else queries.detach())
    exclude = targets is None and not include_self
    if clouds.shape[-1] != 3:
        index, distance = _by_product(clouds, clouds if targets is None else targets, k, exclude)
    elif can_launch(clouds.device) and k <= _WIDEST:
        index, distance = _on_gpu(clouds, targets, k, exclude)
    elif clouds.device.type == "cpu":
        few = clouds.shape[1] <= _FEW and (targets is None or targets.shape[1] <= _FEW)
        index, distance = (_by_pairs if few else _by_cells)(clouds, targets, k, exclude)
    else:
        on_cpu = None if targets is None else targets.cpu()
        index, distance = (x.to(clouds.device) for x in _by_cells(clouds.cpu(), on_cpu, k, exclude))
    return index, distance


def _local(points: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Coordinates as float32; float64 coordinates are first moved to the cloud's lowest corner."""
    if not bool(torch.isfinite(points).all()) or (queries is not None and not bool(torch.isfinite(queries).all())):
        raise ValueError("Expected finite coordinates (got NaN or infinity)")
    if points.dtype == torch.float64:
        origin = points.amin(1, keepdim=True)
        points = points - origin
        queries = None if queries is None else queries.to(torch.float64) - origin
    return points.float().contiguous(), None if queries is None else queries.float().contiguous()


def _by_pairs(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """On the CPU, for many clouds of few points: all distances, of many clouds at once."""
    clouds = points.numpy()
    targets = clouds if queries is None else queries.numpy()
    number = np.arange(clouds.shape[1])
    step = max(_BLOCK // max(targets.shape[1] * len(number), 1), 1)
    keys = []
    for start in range(0, len(clouds), step):
        here, there = targets[start : start + step, :, None], clouds[start : start + step, None]
        delta = [here[..., axis] - there[..., axis] for axis in range(3)]  # each of shape (b, M, N)
        with np.errstate(over="ignore"):
            exact = delta[0] * delta[0] + delta[1] * delta[1] + delta[2] * delta[2]
        if exclude:
            exact[:, number, number] = np.inf
        key = (exact.view(np.int32).astype(np.int64) << 32) | number  # ordered like (distance, index)
        keys.append(np.sort(np.partition(key, k - 1, axis=2)[..., :k], axis=2))
    nearest = np.concatenate(keys)
    distance = (nearest >> 32).astype(np.int32).view(np.float32)
    return torch.from_numpy(nearest & 0xFFFFFFFF), torch.from_numpy(distance)


def _by_cells(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """On the CPU: a grid of cells; clouds with crowded cells are searched through a k-d tree."""
    clouds = points.numpy()
    targets = clouds if queries is None else queries.numpy()
    found: list[tuple[Any, Any] | None] = [None] * len(clouds)
    if find_spec("numba") is not None:
        from fgnn.points.knn_cells import search

        found = search(clouds, targets, k, exclude)
    results = [
        _TreeSearch(clouds[b], targets[b], k, exclude).run() if result is None else result
        for b, result in enumerate(found)
    ]
    index, distance = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*results, strict=True))
    return index, distance


class _TreeSearch:
    """The search of one cloud, (N, 3) and (M, 3) float32: a k-d tree proposes, float32 distances rank."""

    def __init__(self, points: Any, queries: Any, k: int, exclude: bool) -> None:
        self.points, self.queries, self.k, self.exclude = points, queries, k, exclude
        self.index = np.empty((len(queries), k), np.int64)
        self.distance = np.empty((len(queries), k), np.float32)

    def run(self) -> tuple[Any, Any]:
        """Indices and squared distances, both (M, k)."""
        tree, rows = _tree(self.points), np.arange(len(self.queries))
        parts = [self._fill(tree, None, rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)]
        left = np.concatenate(parts)
        if left.size:
            # many points coincide: search distinct places and take the lowest indices at each
            places, members = _places(self.points, self.k + self.exclude)
            tree = _tree(places)
            step = max(_CHUNK // members.shape[1], 1)
            for start in range(0, left.size, step):
                self._fill(tree, members, left[start : start + step])
        return self.index, self.distance

    def _fill(self, tree: Callable[[Any, int], tuple[Any, Any]], members: Any, rows: Any) -> Any:
        """Fill in ``rows``; returns those left because too many points are equally near."""
        k, total = self.k, len(self.points if members is None else members)
        ask = min(k + 2 + self.exclude, total)
        while rows.size and (members is not None or ask <= 8 * k + 64 or ask == total):
            far, near = tree(self.queries[rows], ask)
            if members is not None:
                near = members[near].reshape(len(rows), -1)
            exact = self._rank(rows, near)
            sure = far > exact[:, k - 1].astype(np.float64) * (1 + _MARGIN) + _TINY
            if ask == total:
                sure[:] = True
            self.index[rows[sure]], self.distance[rows[sure]] = near[sure, :k], exact[sure, :k]
            rows = rows[~sure]
            ask = min(2 * ask, total)
        return rows

    def _rank(self, rows: Any, near: Any) -> Any:
        """Sort candidates (M, c) in place by (float32 squared distance, index), self and -1 last; the distances."""
        points, queries = self.points, self.queries[rows]
        delta = [queries[:, None, axis] - points[near, axis] for axis in range(3)]
        exact = delta[0] * delta[0] + delta[1] * delta[1] + delta[2] * delta[2]
        if self.exclude:
            exact[near == rows[:, None]] = np.inf
        exact[near < 0] = np.inf
        key = (exact.view(np.int32).astype(np.int64) << 32) | (near & 0xFFFFFFFF)
        wrong = np.flatnonzero((key[:, 1:] < key[:, :-1]).any(1))  # most rows are already in order
        if wrong.size:
            rank = np.argsort(key[wrong], axis=1)
            near[wrong] = np.take_along_axis(near[wrong], rank, 1)
            exact[wrong] = np.take_along_axis(exact[wrong], rank, 1)
        return exact


def _tree(points: Any) -> Callable[[Any, int], tuple[Any, Any]]:
    """The query of the fastest available k-d tree, in float64 and on all cores.

    It returns the squared distance of the k-th nearest point (M,), and the indices of the k nearest (M, k).
    """
    wide = points.astype(np.float64)
    if find_spec("pykdtree") is not None:
        search, power = partial(import_module("pykdtree.kdtree").KDTree(wide).query, sqr_dists=True), 1
    else:
        from scipy.spatial import cKDTree

        search, power = partial(cKDTree(wide, balanced_tree=False, compact_nodes=False).query, workers=-1), 2

    def query(queries: Any, k: int) -> tuple[Any, Any]:
        far, near = search(queries.astype(np.float64), k=k)
        return far.reshape(-1, k)[:, -1] ** power, near.reshape(-1, k).astype(np.int64)

    return query


def _places(points: Any, most: int) -> tuple[Any, Any]:
    """The distinct places (P, 3), and the lowest ``most`` indices at each, padded with -1 (P, most)."""
    places, owner = np.unique(points + np.float32(0), axis=0, return_inverse=True)  # -0 and +0 are one place
    owner = owner.reshape(-1)
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(len(places) + 1))
    at = starts[:-1, None] + np.arange(most)
    return places, np.where(at < starts[1:, None], order[np.minimum(at, len(order) - 1)], -1)


def _by_product(points: Tensor, queries: Tensor, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    """Features of any length, in blocks of queries, by |q|² − 2 q·p + |p|²."""
    norm = points.square().sum(2)  # shape: (B, N)
    step = max(_BLOCK // max(points.shape[0] * points.shape[1], 1), 1)
    nearest = []
    for start in range(0, queries.shape[1], step):
        part = queries[:, start : start + step]
        block = torch.baddbmm(norm.unsqueeze(1), part, points.transpose(1, 2), alpha=-2)
        block = block + part.square().sum(2, keepdim=True)
        if exclude:
            rows = torch.arange(part.shape[1], device=part.device)
            block[:, rows, rows + start] = float("inf")
        nearest.append(block.topk(k, largest=False, sorted=True))
    index = torch.cat([part.indices for part in nearest], 1)
    return index, torch.cat([part.values for part in nearest], 1).clamp_min(0)


def _on_gpu(points: Tensor, queries: Tensor | None, k: int, exclude: bool) -> tuple[Tensor, Tensor]:
    from fgnn.points.knn_gpu import by_grid, by_tiles

    if points.shape[1] <= _GRID_FROM:
        return by_tiles(points, queries, k, exclude)
    results = [by_grid(cloud, None if queries is None else queries[b], k, exclude) for b, cloud in enumerate(points)]
    index, distance = (torch.stack(tensors) for tensors in zip(*results, strict=True))
    return index, distance
