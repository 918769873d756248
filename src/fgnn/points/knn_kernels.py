"""k nearest neighbours on the GPU without an N×N matrix, in two passes over the points.

A tile of BQ queries meets the points in blocks. First pass: for each query, the smallest distance in each of BC
interleaved classes of points; the k-th smallest of these bounds the k-th distance, and few points lie within it.
Second pass: those points are collected as keys (distance bits above index, so ties go to the lower index), and the k
smallest keys are written in order. Keys take (tiles, CAP, BQ) entries.
With a grid, only the cells around the tile are visited, widening until the bound proves that no other can matter.
Distances are squared differences summed from x to z in float32 without fused multiply-add, as on the CPU.
"""

# mypy: ignore-errors
# (Triton kernel arguments have no annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def coordinates(queries, q, mask, Q):
    """x, y and z of some queries."""
    x = tl.load(queries + q, mask=mask, other=0.0)
    y = tl.load(queries + Q + q, mask=mask, other=0.0)
    return x, y, tl.load(queries + 2 * Q + q, mask=mask, other=0.0)


@triton.jit
def squared(points, p, mask, qx, qy, qz, N):
    """Squared distances of a tile of queries to a block of points; infinite outside the mask.  # shape: (BP, BQ)"""
    x = tl.load(points + p, mask=mask, other=float("inf"))
    y = tl.load(points + N + p, mask=mask, other=0.0)
    z = tl.load(points + 2 * N + p, mask=mask, other=0.0)
    dx = qx[None, :] - x[:, None]
    dy = qy[None, :] - y[:, None]
    dz = qz[None, :] - z[:, None]
    return dx * dx + dy * dy + dz * dz


@triton.jit
def kth(low, K: tl.constexpr, BP: tl.constexpr):
    """The K-th smallest of each column."""
    line = tl.arange(0, BP)[:, None]
    for _ in range(K - 1):
        low = tl.where(line == tl.argmin(low, 0)[None, :], float("inf"), low)
    return tl.min(low, 0)


@triton.jit
def collect(
    points, names, own, qx, qy, qz, bound, live, keys, counts, start, stop, N,
    BQ: tl.constexpr, BP: tl.constexpr, CAP: tl.constexpr, HAS_NAMES: tl.constexpr, SELF: tl.constexpr,
):  # fmt: skip
    """Second pass over points start..stop: collect keys of points within each query's bound."""
    for p0 in range(start // BP * BP, stop, BP):
        p = p0 + tl.arange(0, BP)
        here = (p >= start) & (p < stop)
        d = squared(points, p, here, qx, qy, qz, N)
        name = tl.load(names + p, mask=here, other=0).to(tl.int32) if HAS_NAMES else p
        hit = live[None, :] & here[:, None] & (d <= bound[None, :])
        if not SELF:
            hit = hit & (name[:, None] != own[None, :])
        # stride 2: otherwise counters and keys get different layouts, and everything is computed twice
        column = tl.arange(0, BQ)[None, :]
        slot = tl.atomic_add(counts + column * 2 + tl.zeros((BP, 1), tl.int32), 1, mask=hit, sem="relaxed")
        key = (d.to(tl.int32, bitcast=True).to(tl.int64) << 32) | name[:, None].to(tl.int64)
        tl.store(keys + slot * BQ + column, key, mask=hit & (slot < CAP))


@triton.jit
def clear(counts, BQ: tl.constexpr):
    """Set this tile's counters to zero, visible to all threads."""
    tl.store(counts + tl.arange(0, BQ) * 2, tl.zeros((BQ,), tl.int32))
    tl.debug_barrier()


@triton.jit
def write_first(keys, counts, index, distance, row, live, K: tl.constexpr, BQ: tl.constexpr, CAP: tl.constexpr):
    """Write the K smallest keys of each query, in order, to its row; keys are distinct."""
    tl.debug_barrier()
    column = tl.arange(0, BQ)
    slot = tl.arange(0, CAP)[:, None]
    count = tl.load(counts + column * 2, volatile=True)
    key = tl.load(keys + slot * BQ + column[None, :], mask=slot < count[None, :], other=0x7FFFFFFFFFFFFFFF)
    for k in range(K):
        least = tl.min(key, 0)
        key = tl.where(key == least[None, :], 0x7FFFFFFFFFFFFFFF, key)
        tl.store(index + row * K + k, least & 0xFFFFFFFF, mask=live)
        tl.store(distance + row * K + k, (least >> 32).to(tl.int32).to(tl.float32, bitcast=True), mask=live)


@triton.jit
def nearest_brute(
    points, queries, keys, counts, index, distance, N, Q,
    K: tl.constexpr, BQ: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr, CAP: tl.constexpr, SELF: tl.constexpr,
):  # fmt: skip
    """Search all points of the cloud for a tile of queries; points (B, 3, N), queries (B, 3, Q)."""
    cloud = tl.program_id(1).to(tl.int64)
    tile = cloud * tl.num_programs(0) + tl.program_id(0)
    keys += tile * CAP * BQ
    counts += tile * BQ * 2
    clear(counts, BQ)
    points += cloud * 3 * N
    queries += cloud * 3 * Q
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    live = q < Q
    qx, qy, qz = coordinates(queries, q, live, Q)
    low = tl.full((BC, BQ), float("inf"), tl.float32)
    for p0 in range(0, N, BC):
        p = p0 + tl.arange(0, BC)
        d = squared(points, p, p < N, qx, qy, qz, N)
        if not SELF:
            d = tl.where(p[:, None] == q[None, :], float("inf"), d)
        low = tl.minimum(low, d)
    bound = kth(low, K, BC)
    collect(points, None, q, qx, qy, qz, bound, live, keys, counts, 0, N, N, BQ, BP, CAP, False, SELF)
    write_first(keys, counts, index, distance, cloud * Q + q, live, K, BQ, CAP)


@triton.jit
def widened(low, high, reach, size):
    """A range of cells along one axis, extended by ``reach`` both ways within the grid."""
    return tl.maximum(low - reach, 0), tl.minimum(high + reach, size - 1)


@triton.jit
def cell_line(starts, r, xa, xb, ya, yb, za, GX, GY, N, everything):
    """Range of the points in the r-th line of cells along x, or of all points."""
    row = ((za + r // (yb - ya + 1)) * GY + ya + r % (yb - ya + 1)) * GX
    start = tl.where(everything, 0, tl.load(starts + row + xa))
    return start, tl.where(everything, N, tl.load(starts + row + xb + 1))


@triton.jit
def nearest_grid(
    points, names, queries, cells, own, tiles, starts, keys, counts, index, distance, size, N, Q, GX, GY, GZ,
    K: tl.constexpr, BQ: tl.constexpr, BP: tl.constexpr, CAP: tl.constexpr, SELF: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """Search the cells around a tile of queries, or all points if that takes more than MOST lines of cells.

    Args:
        points: (3, N) sorted by cell, x fastest; names: (N,) their indices; starts: (cells + 1,) first point per cell.
        queries: (6, Q) in Morton order: coordinates, then the same in units of cells.
        cells: (3, Q) cell of each query; own: (Q,) its index, the row of its result.
        tiles: (programs + 1,) first query of each program; at most BQ queries, all of one block of cells.
        size: (1,) side of a cell.
    """
    side = tl.load(size)
    keys += tl.program_id(0).to(tl.int64) * CAP * BQ
    counts += tl.program_id(0) * BQ * 2
    clear(counts, BQ)
    stop = tl.load(tiles + tl.program_id(0) + 1)
    q = tl.load(tiles + tl.program_id(0)) + tl.arange(0, BQ)
    live = q < stop
    at = tl.minimum(q, stop - 1)
    qx = tl.load(queries + at)
    qy = tl.load(queries + Q + at)
    qz = tl.load(queries + 2 * Q + at)
    ux = tl.load(queries + 3 * Q + at)
    uy = tl.load(queries + 4 * Q + at)
    uz = tl.load(queries + 5 * Q + at)
    cx = tl.load(cells + at)
    cy = tl.load(cells + Q + at)
    cz = tl.load(cells + 2 * Q + at)
    name = tl.load(own + at).to(tl.int32)
    x0, x1 = tl.min(cx, 0), tl.max(cx, 0)
    y0, y1 = tl.min(cy, 0), tl.max(cy, 0)
    z0, z1 = tl.min(cz, 0), tl.max(cz, 0)
    bound = tl.full((BQ,), float("inf"), tl.float32)
    reach = tl.full((), 1, tl.int32)
    searching = tl.full((), 1, tl.int32)
    while searching > 0:
        xa, xb = widened(x0, x1, reach, GX)
        ya, yb = widened(y0, y1, reach, GY)
        za, zb = widened(z0, z1, reach, GZ)
        low = tl.full((BP, BQ), float("inf"), tl.float32)
        lines = (yb - ya + 1) * (zb - za + 1)
        everything = lines > MOST
        for r in range(tl.where(everything, 1, lines)):
            start, end = cell_line(starts, r, xa, xb, ya, yb, za, GX, GY, N, everything)
            for p0 in range(start // BP * BP, end, BP):
                p = p0 + tl.arange(0, BP)
                here = (p >= start) & (p < end)
                d = squared(points, p, here, qx, qy, qz, N)
                if not SELF:
                    d = tl.where(tl.load(names + p, mask=here, other=-1)[:, None] == name[None, :], float("inf"), d)
                low = tl.minimum(low, d)
        bound = kth(low, K, BP)
        # distance, in cells, to the nearest boundary with unvisited cells beyond it
        free = tl.full((BQ,), float("inf"), tl.float32)
        free = tl.where(xa > 0, tl.minimum(free, ux - xa), free)
        free = tl.where(ya > 0, tl.minimum(free, uy - ya), free)
        free = tl.where(za > 0, tl.minimum(free, uz - za), free)
        free = tl.where(xb < GX - 1, tl.minimum(free, xb + 1 - ux), free)
        free = tl.where(yb < GY - 1, tl.minimum(free, yb + 1 - uy), free)
        free = tl.where(zb < GZ - 1, tl.minimum(free, zb + 1 - uz), free)
        # the margins, 0.001 cells and 1e-5 of the square, are far above rounding errors
        free = tl.maximum(free - 0.001, 0.0) * side
        whole = (xa == 0) & (ya == 0) & (za == 0) & (xb == GX - 1) & (yb == GY - 1) & (zb == GZ - 1)
        proven = (bound <= free * free * 0.99999) | (~live)
        searching = tl.where(whole | everything, 0, 1 - tl.min(proven.to(tl.int32), 0))
        reach = tl.where(searching > 0, reach * 2, reach)
    xa, xb = widened(x0, x1, reach, GX)
    ya, yb = widened(y0, y1, reach, GY)
    za, zb = widened(z0, z1, reach, GZ)
    lines = (yb - ya + 1) * (zb - za + 1)
    everything = lines > MOST
    for r in range(tl.where(everything, 1, lines)):
        start, end = cell_line(starts, r, xa, xb, ya, yb, za, GX, GY, N, everything)
        collect(points, names, name, qx, qy, qz, bound, live, keys, counts, start, end, N, BQ, BP, CAP, True, SELF)
    write_first(keys, counts, index, distance, name.to(tl.int64), live, K, BQ, CAP)


@triton.jit
def crowded(
    points, queries, own, tiles, counts, index, distance, N, Q,
    K: tl.constexpr, BQ: tl.constexpr, BP: tl.constexpr, CAP: tl.constexpr, SELF: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """Queries with more than CAP candidates, because many points coincide: one pass per neighbour."""
    cloud = tl.program_id(1).to(tl.int64)
    tile = cloud * tl.num_programs(0) + tl.program_id(0)
    count = tl.load(counts + tile * BQ * 2 + tl.arange(0, BQ) * 2)
    begin = tl.load(tiles + tl.program_id(0)) if GRID else tl.program_id(0) * BQ
    stop = tl.load(tiles + tl.program_id(0) + 1) if GRID else Q
    q = begin + tl.arange(0, BQ)
    many = (q < stop) & (count > CAP)
    if tl.max(many.to(tl.int32), 0) > 0:
        points += cloud * 3 * N
        queries += cloud * 3 * Q
        qx, qy, qz = coordinates(queries, q, many, Q)
        name = tl.load(own + q, mask=many, other=0).to(tl.int32) if GRID else q
        row = (cloud * Q + name) * K
        last = tl.full((BQ,), -1, tl.int64)
        for k in range(K):
            best = tl.full((BP, BQ), 0x7FFFFFFFFFFFFFFF, tl.int64)
            for p0 in range(0, N, BP):
                p = p0 + tl.arange(0, BP)
                d = squared(points, p, p < N, qx, qy, qz, N)
                key = (d.to(tl.int32, bitcast=True).to(tl.int64) << 32) | p[:, None].to(tl.int64)
                left = (p < N)[:, None] & (key > last[None, :])
                if not SELF:
                    left = left & (p[:, None] != name[None, :])
                best = tl.minimum(best, tl.where(left, key, 0x7FFFFFFFFFFFFFFF))
            last = tl.min(best, 0)
            tl.store(index + row + k, last & 0xFFFFFFFF, mask=many)
            tl.store(distance + row + k, (last >> 32).to(tl.int32).to(tl.float32, bitcast=True), mask=many)
