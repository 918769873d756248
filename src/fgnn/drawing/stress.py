r"""Layout by stress majorisation: distances on paper close to distances in the graph.

.. math:: \min_p \sum_{u < v} d_{uv}^{-2} (\lVert p_u - p_v \rVert - d_{uv})^2

with the length of the shortest path between two nodes as :math:`d_{uv}`. Each iteration minimises a convex
bound (SMACOF).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # shape: (n, 2)

_ITERATIONS = 60
_PUSHES = 200


def stress_layout(count: int, scopes: Sequence[Sequence[int]], *, length: float, room: float) -> Points:
    """Places of ``count`` variables, then of the factors, with edges of about ``length`` and ``room`` between nodes."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components, shortest_path

    n = count + len(scopes)
    variables = [i for scope in scopes for i in scope]
    factors = [count + c for c, scope in enumerate(scopes) for _ in scope]
    # variables of a large factor need a circle around it
    steps = [max(1.0, 0.22 * len(scope)) for scope in scopes for _ in scope]
    graph = coo_matrix((steps, (variables, factors)), shape=(n, n)).tocsr()
    parts, part_of = connected_components(graph, directed=False)
    boxes = []
    for part in range(parts):
        nodes = np.flatnonzero(part_of == part)
        distance = shortest_path(graph[nodes][:, nodes], directed=False)
        boxes.append((nodes, spread(length * majorise(distance), room)))
    return _pack(n, boxes, gap=1.6 * room)


def majorise(distance: NDArray[np.float64]) -> Points:
    """Points whose distances approximate a matrix of graph distances."""
    n = len(distance)
    if n == 1:
        return np.zeros((1, 2))
    points = _classical(distance)
    weights = 1.0 / (distance + np.eye(n)) ** 2
    np.fill_diagonal(weights, 0.0)
    laplacian = np.diag(weights.sum(1)) - weights
    inverse = np.linalg.inv(laplacian + 1.0 / n)  # on centred points the shift changes nothing
    ratio = weights * distance
    for _ in range(_ITERATIONS):
        b = -ratio / np.maximum(_distances(points), 1e-9)
        np.fill_diagonal(b, 0.0)
        np.fill_diagonal(b, -b.sum(1))
        points = inverse @ (b @ points)
    return _level(points)


def _classical(distance: NDArray[np.float64]) -> Points:
    """Classical scaling, with a little noise: nodes with the same distances to all others would coincide."""
    n = len(distance)
    squares = distance**2
    centred = -0.5 * (squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean())
    values, vectors = np.linalg.eigh(centred)
    points = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-6))
    # eigenvectors have no sign of their own
    points *= np.where(points[np.abs(points).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    return np.asarray(points + np.random.default_rng(0).normal(scale=0.05, size=(n, 2)))


def _level(points: Points) -> Points:
    """Turn the points so that their longest extent is horizontal."""
    centred = points - points.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes * np.where(axes[[0, 1], np.abs(axes).argmax(1)] < 0, -1.0, 1.0)[:, None]
    return np.asarray(centred @ axes.T)


def spread(points: Points, room: float) -> Points:
    """Push nodes apart until every two are at least ``room`` apart."""
    points = points.copy()
    for step in range(_PUSHES):
        gap = points[:, None] - points[None]  # shape: (n, n, 2)
        distance = np.hypot(gap[..., 0], gap[..., 1])
        np.fill_diagonal(distance, np.inf)
        lack = np.maximum(room * 1.05 - distance, 0.0)
        if lack.max(initial=0.0) <= 0.05 * room:
            return points
        points += 0.5 * (gap / np.maximum(distance, 1e-9)[..., None] * lack[..., None]).sum(1)
        if step % 20 == 19:  # a crowd needs more space
            points *= 1.1
    return points * max(1.0, room / max(float(distance.min()), 1e-3 * room))


def _distances(points: Points) -> NDArray[np.float64]:
    return np.asarray(np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1)))


def _pack(n: int, boxes: list[tuple[NDArray[np.int64], Points]], gap: float) -> Points:
    """Components side by side, in rows about as wide as the picture is high, or as the widest component."""
    sizes = [np.ptp(points, axis=0) + gap for _, points in boxes]
    width = max([np.sqrt(1.6 * sum(w * h for w, h in sizes)), *(w for w, _ in sizes)], default=0.0)
    places, x, y, height = np.zeros((n, 2)), 0.0, 0.0, 0.0
    for k in sorted(range(len(boxes)), key=lambda k: -sizes[k][1]):
        nodes, points = boxes[k]
        if x and x + sizes[k][0] > width + 1e-9:
            x, y, height = 0.0, y + height, 0.0
        places[nodes] = points - points.min(0) + (x, y)
        x, height = x + sizes[k][0], max(height, float(sizes[k][1]))
    return places
