"""Delaunay triangulation of points in the plane, and walks through it, in compiled loops.

Points are added in the order of their distance from a centre, so each lies outside the hull of those before: it is
joined to the hull's edges that it sees, and edges are flipped until no point lies in the circle of another triangle.

Coordinates are whole numbers of at most `LARGEST`. Differences and the sums of two products of them are then exact in
float64, and so is the side of a line on which a point lies. Only the test for circles rounds; an edge is flipped if the
test is certain.

Edge e of triangle t is 3 t, 3 t + 1 or 3 t + 2 and goes from ``corner[e]`` to that of the next edge, anticlockwise;
``twin[e]`` is the same edge of the other triangle, or -1 on the hull.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.runtime.jit import compiled

Array = NDArray[Any]

# Largest absolute value of a coordinate.
LARGEST = 2.0**25
# Rounding of the test for circles, relative to the sum of its three products.
_ROUNDING = 8 * 2.0**-53
# Edges waiting to be tested. A point has six neighbours on average; edges beyond so many are left as they are.
_WAITING = 4096


@compiled
def side(x: Array, y: Array, a: int, b: int, px: float, py: float) -> float:
    """Twice the area of the triangle of points a, b and p: positive if p is left of the line from a to b."""
    return float((x[b] - x[a]) * (py - y[a]) - (y[b] - y[a]) * (px - x[a]))


@compiled
def _in_circle(x: Array, y: Array, a: int, b: int, c: int, p: int) -> bool:
    """Whether p is certainly in the circle through a, b and c, which are anticlockwise."""
    ax, ay, bx, by, cx, cy = x[a] - x[p], y[a] - y[p], x[b] - x[p], y[b] - y[p], x[c] - x[p], y[c] - y[p]
    u = (ax * ax + ay * ay) * (bx * cy - by * cx)
    v = (bx * bx + by * by) * (cx * ay - cy * ax)
    w = (cx * cx + cy * cy) * (ax * by - ay * bx)
    return bool(u + v + w > _ROUNDING * (abs(u) + abs(v) + abs(w)))


@compiled
def _link(twin: Array, a: int, b: int) -> None:
    if a >= 0:
        twin[a] = b
    if b >= 0:
        twin[b] = a


@compiled
def _flip(x: Array, y: Array, corner: Array, twin: Array, edge: Array, first: int, waiting: Array) -> None:
    """Flip edges around the last corner of a triangle, a new point, until no circle of its triangles holds a point.

    ``first`` is the edge opposite to it; ``edge`` has the edge of the hull that begins at each of its points.
    """
    waiting[0], count = first, 1
    while count:
        count -= 1
        a = waiting[count]
        b = twin[a]
        if b < 0:
            continue
        after, before = a - a % 3 + (a + 1) % 3, a - a % 3 + (a + 2) % 3
        other_after, other_before = b - b % 3 + (b + 1) % 3, b - b % 3 + (b + 2) % 3
        p, q = corner[before], corner[other_before]
        if not _in_circle(x, y, corner[a], corner[after], p, q):
            continue
        corner[a], corner[b] = q, p
        outer, own = twin[other_before], twin[before]
        if outer < 0:
            edge[q] = a
        if own < 0:
            edge[p] = b
        _link(twin, a, outer)
        _link(twin, b, own)
        _link(twin, before, other_before)
        if count + 2 <= len(waiting):
            waiting[count], waiting[count + 1] = a, other_after
            count += 2


@compiled
def _angle(dx: float, dy: float, size: int) -> int:
    """One of ``size`` sectors around the centre."""
    total = abs(dx) + abs(dy)
    share = dx / total if total > 0 else 0.0
    return int((3 - share if dy > 0 else 1 + share) / 4 * size) % size


def _seed(x: Array, y: Array, z: Array, order: Array) -> tuple[Array, int]:
    """The first points on a line, along it, then the first one beside it; and how many of ``order`` they were.

    No points if all are on a line. Of those at the same place, one is returned, with the lowest of their heights.
    """
    a = order[0]
    apart = (x[order] != x[a]) | (y[order] != y[a])
    b = order[int(apart.argmax())]
    beside = (x[b] - x[a]) * (y[order] - y[a]) - (y[b] - y[a]) * (x[order] - x[a])
    used = int((beside != 0).argmax())
    if not beside[used]:
        return order[:0], len(order)
    line, apex = order[:used], order[used]
    along = (x[line] - x[a]) * (x[b] - x[a]) + (y[line] - y[a]) * (y[b] - y[a])
    _, first, place = np.unique(along if beside[used] > 0 else -along, return_index=True, return_inverse=True)
    np.minimum.at(z, line[first][place], z[line])
    return np.append(line[first], apex), used + 1


@compiled
def _seen_from(x: Array, y: Array, following: Array, start: int, p: int) -> int:
    """The first edge of the hull from ``start`` on that p sees, by the point it begins at; -1 if there is none."""
    e = start
    while side(x, y, e, following[e], x[p], y[p]) >= 0:
        e = following[e]
        if e == start:
            return -1
    return e


@compiled
def _merge(x: Array, y: Array, z: Array, following: Array, start: int, p: int) -> None:
    """Lower the point of the hull at the same place as p."""
    e = start
    while x[e] != x[p] or y[e] != y[p]:
        e = following[e]
        if e == start:
            return
    z[e] = min(z[e], z[p])


def triangulate(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """The triangles of at least one point, as ``corner`` and ``twin``; none if all points are on a line.

    Args:
        x: Whole numbers of at most `LARGEST`, (N,), and so ``y``.
        z: Heights; of points at the same place one takes part, with the lowest of their heights, in place.
    """
    order = np.argsort(x * x + y * y, kind="stable")
    chain, used = _seed(x, y, z, order)
    return _grow(x, y, z, order, chain, used)


@compiled
def _grow(x: Array, y: Array, z: Array, order: Array, chain: Array, used: int) -> tuple[Array, Array]:
    """Join all but the first ``used`` points to the fan of triangles from the last of ``chain`` to the others."""
    n, last = len(order), len(chain) - 1
    corner, twin = np.empty(6 * n, np.int32), np.full(6 * n, -1, np.int32)
    following, before, edge = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    waiting, size = np.empty(_WAITING, np.int32), int(np.sqrt(n)) + 1
    near = np.full(size, -1, np.int32)  # a point of the hull in each sector
    count = max(0, 3 * (last - 1))
    for i in range(last + 1):
        p = chain[i]
        following[p], before[p] = chain[(i + 1) % (last + 1)], chain[i - 1]
        edge[p] = 3 * i if i < last - 1 else (count - 2 if i == last - 1 else 2)
        near[_angle(x[p], y[p], size)] = p
        if i < last - 1:
            corner[3 * i], corner[3 * i + 1], corner[3 * i + 2] = p, chain[i + 1], chain[last]
            if i:
                _link(twin, 3 * i - 2, 3 * i + 2)
    for i in range(used, n):
        p = order[i]
        sector = _angle(x[p], y[p], size)
        k = sector
        while near[k] < 0 or following[near[k]] == near[k]:  # the last one written is always of the hull
            k = (k + 1) % size
        start = before[near[k]]
        e = _seen_from(x, y, following, start, p)
        if e < 0:
            _merge(x, y, z, following, start, p)
            continue
        end = following[e]
        corner[count], corner[count + 1], corner[count + 2] = end, e, p
        _link(twin, count, edge[e])
        edge[e], edge[p] = count + 1, count + 2
        _flip(x, y, corner, twin, edge, count, waiting)
        count += 3
        while side(x, y, end, following[end], x[p], y[p]) < 0:
            beyond = following[end]
            corner[count], corner[count + 1], corner[count + 2] = beyond, end, p
            _link(twin, count, edge[end])
            _link(twin, count + 1, edge[p])
            edge[p], following[end] = count + 2, end  # no longer of the hull
            _flip(x, y, corner, twin, edge, count, waiting)
            count, end = count + 3, beyond
        while side(x, y, before[e], e, x[p], y[p]) < 0:
            ahead = before[e]
            corner[count], corner[count + 1], corner[count + 2] = e, ahead, p
            _link(twin, count, edge[ahead])
            _link(twin, count + 2, edge[e])
            edge[ahead], following[e] = count + 1, e
            _flip(x, y, corner, twin, edge, count, waiting)
            count, e = count + 3, ahead
        following[e], before[p], following[p], before[end] = p, e, end, p
        near[sector], near[_angle(x[e], y[e], size)] = p, e
    return corner[:count], twin[:count]


@compiled
def _walk(x: Array, y: Array, corner: Array, twin: Array, px: float, py: float, start: int) -> tuple[int, bool]:
    """The triangle that contains a place, walking from another one; if none does, the last one and False."""
    t, came = start, -1
    for _ in range(len(corner)):
        left = -1
        for e in range(3 * t, 3 * t + 3):
            if e != came and side(x, y, corner[e], corner[e - 2 if e % 3 == 2 else e + 1], px, py) < 0:
                left = e
                break
        if left < 0:
            return t, True
        came = twin[left]
        if came < 0:
            return t, False
        t = came // 3
    return t, False


@compiled
def interpolate(
    x: Array, y: Array, z: Array, corner: Array, twin: Array, px: Array, py: Array, order: Array
) -> tuple[Array, Array, Array, Array]:
    """Height, slope and mean edge of the triangle at each place, and whether there is one.

    Args:
        px: Whole numbers as those of the points, (Q,), and so ``py``.
        order: All places, neighbours after each other.
    """
    height, slope, edge = (np.zeros(len(px)), np.zeros(len(px)), np.zeros(len(px)))
    inside = np.zeros(len(px), np.bool_)
    t = 0
    for i in order:
        t, inside[i] = _walk(x, y, corner, twin, px[i], py[i], t)
        if not inside[i]:
            continue
        a, b, c = corner[3 * t], corner[3 * t + 1], corner[3 * t + 2]
        bx, by, bz, cx, cy, cz = x[b] - x[a], y[b] - y[a], z[b] - z[a], x[c] - x[a], y[c] - y[a], z[c] - z[a]
        area = bx * cy - by * cx
        dx, dy = (bz * cy - cz * by) / area, (cz * bx - bz * cx) / area
        height[i] = z[a] + dx * (px[i] - x[a]) + dy * (py[i] - y[a])
        slope[i] = np.sqrt(dx * dx + dy * dy)
        third = np.sqrt((cx - bx) ** 2 + (cy - by) ** 2)
        edge[i] = (np.sqrt(bx * bx + by * by) + np.sqrt(cx * cx + cy * cy) + third) / 3
    return height, slope, edge, inside
