"""Kernels where many items share each edge matrix: a program takes BI items and one matrix at a time.

BY_ITEM selects one of two uses:

- *shared structure* (False): items are the samples over one graph. A program has one destination d and loops over its
  edges; all items use the same source and the same matrix.
- *places* (True): all destinations have A edges and the matrix depends on the place alone. Items are the destinations
  of all samples; a program loops over the A places, and sources differ by item.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import (
    finish_factors,
    hidden,
    larger,
    load_block,
    load_factors,
    load_rows,
    store_rows,
    upstream,
)


@triton.jit
def load_matrix(weight, kind, n0, m0, N: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):
    """A block of one W, as (BM, BN)."""
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    at = weight + (kind.to(tl.int64) * M + column[:, None]) * N + inner[None, :]
    mask = (column < M)[:, None] & (inner < N)[None, :]
    return load_block(at, mask, (N % BN == 0) and (M % BM == 0))


@triton.jit
def typed_forward(
    dst, src, kind, weight, source, ptr, out, arg, items, D, S,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """For each item and destination the maximum (and its first place) or the sum over the edges."""
    m0 = tl.program_id(1) * BM
    if BY_ITEM:
        item = tl.program_id(0) * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64)
        start = tl.full((), 0, tl.int32)
        stop = tl.full((), A, tl.int32)
    else:
        d = tl.program_id(0) % D
        item = (tl.program_id(0) // D) * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64) * D + d
        start = tl.load(ptr + d).to(tl.int32)
        stop = tl.load(ptr + d + 1).to(tl.int32)
    best = tl.full((BI, BM), float("-inf") if MAX else 0.0, tl.float32)
    first = tl.zeros((BI, BM), tl.int32)
    for j in range(start, stop):
        if BY_ITEM:
            k = j
            src_row = (item // D).to(tl.int64) * S + tl.load(source + (dst_row % D) * A + j, mask=live, other=0)
        else:
            k = tl.load(kind + j)
            src_row = item.to(tl.int64) * S + tl.load(source + j)
        acc = tl.zeros((BI, BM), tl.float32)
        for n0 in range(0, N, BN):
            h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
            w = load_matrix(weight, k, n0, m0, N, M, BN, BM)
            acc = tl.dot(h, tl.trans(w).to(CT), acc, input_precision=PREC)
        if MAX:
            first = tl.where(acc <= best, first, j - start)
            best = larger(best, acc)
        else:
            best += acc
    store_rows(out, dst_row, live, m0, best, M, BM)
    if MAX:
        store_rows(arg, dst_row, live, m0, first, M, BM)


@triton.jit
def back_product(
    g, won, place, h, b, w, RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """σ'(h + b) · Qᵀ g of one edge; for a maximum, g counts only where this place won."""
    if MAX:
        g = tl.where(won == place.to(won.dtype), g, tl.zeros_like(g))
    p = tl.dot(g.to(CT), w.to(CT), input_precision=PREC)
    if RELU:
        p = tl.where((h + b if HAS_DST else h) > 0, p, 0.0)
    return p


@triton.jit
def typed_nodes(
    dst, src, weight, walk, node_ptr, grad, arg, d_dst, d_src, items, D, S, first, V,
    N: tl.constexpr, M: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Shared structure: for each item and node, the sum over its edges of σ'(·) · Qᵀ g.

    The program's node is one of V from ``first`` on; nodes are the D destinations, then the S sources. ``walk`` lists
    their edges: destination, place, source and type of each. AHEAD (one block holds all columns): load what all edges
    of a node share once, and load the operands of the next edge while a product runs.
    """
    v = tl.program_id(0) % V + first
    item = (tl.program_id(0) // V) * BI + tl.arange(0, BI)
    live = item < items
    wide = item.to(tl.int64)
    n0 = tl.program_id(1) * BN
    total = tl.zeros((BI, BN), tl.float32)
    start = tl.load(node_ptr + v).to(tl.int32)
    stop = tl.load(node_ptr + v + 1).to(tl.int32)
    if AHEAD:
        if v < D:
            row = wide * D + v
            g = load_rows(grad, row, live, 0, M, BM)
            won = load_rows(arg, row, live, 0, M, BM) if MAX else g
            b = load_rows(dst, row, live, 0, N, BN) if HAS_DST else total
            s = tl.load(walk + start * 4 + 2, mask=start < stop, other=0)
            h = load_rows(src, wide * S + s, live, 0, N, BN)
            s = tl.load(walk + start * 4 + 6, mask=start + 1 < stop, other=0)
            for k in tl.range(start, stop, num_stages=1):
                next_h = load_rows(src, wide * S + s, live, 0, N, BN)
                s = tl.load(walk + k * 4 + 10, mask=k + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + k * 4 + 3), 0, 0, N, M, BN, BM)
                total += back_product(g, won, k - start, h, b, w, RELU, HAS_DST, MAX, CT, PREC)
                h = next_h
        else:
            h = load_rows(src, wide * S + (v - D), live, 0, N, BN)
            row = wide * D + tl.load(walk + start * 4, mask=start < stop, other=0)
            g = load_rows(grad, row, live, 0, M, BM)
            won = load_rows(arg, row, live, 0, M, BM) if MAX else g
            b = load_rows(dst, row, live, 0, N, BN) if HAS_DST else total
            d = tl.load(walk + start * 4 + 4, mask=start + 1 < stop, other=0)
            for k in tl.range(start, stop, num_stages=1):
                row = wide * D + d
                next_g = load_rows(grad, row, live, 0, M, BM)
                next_won = load_rows(arg, row, live, 0, M, BM) if MAX else next_g
                next_b = load_rows(dst, row, live, 0, N, BN) if HAS_DST else b
                d = tl.load(walk + k * 4 + 8, mask=k + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + k * 4 + 3), 0, 0, N, M, BN, BM)
                place = tl.load(walk + k * 4 + 1)
                total += back_product(g, won, place, h, b, w, RELU, HAS_DST, MAX, CT, PREC)
                g, won, b = next_g, next_won, next_b
    else:
        for k in range(start, stop):
            d = tl.load(walk + k * 4)
            place = tl.load(walk + k * 4 + 1)
            q = tl.load(walk + k * 4 + 3)
            p = tl.zeros((BI, BN), tl.float32)
            for m0 in range(0, M, BM):
                g = upstream(grad, arg, wide * D + d, place, live, m0, M, BM, MAX, CT)
                w = load_matrix(weight, q, n0, m0, N, M, BN, BM)
                p = tl.dot(g, w.to(CT), p, input_precision=PREC)
            if RELU:
                src_row = wide * S + tl.load(walk + k * 4 + 2)
                h = hidden(dst, src, wide * D + d, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
                p = tl.where(h > 0, p, 0.0)
            total += p
    if v < D:
        store_rows(d_dst, wide * D + v, live, n0, total, N, BN)
    else:
        store_rows(d_src, wide * S + (v - D), live, n0, total, N, BN)


@triton.jit
def places_backward(
    dst, src, weight, source, grad, arg, d_dst, d_src, items, D, S, E,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    NEED_DST: tl.constexpr, NEED_SRC: tl.constexpr, ATOMIC: tl.constexpr,
):  # fmt: skip
    """Places: the gradient at dst summed over the places, that at src added at each source (or stored by edge)."""
    item = tl.program_id(0) * BI + tl.arange(0, BI)
    live = item < items
    wide = item.to(tl.int64)
    n0 = tl.program_id(1) * BN
    inner = n0 + tl.arange(0, BN)
    keep = live[:, None] & (inner < N)[None, :]
    total = tl.zeros((BI, BN), tl.float32)
    for j in range(A):
        src_row = (wide // D) * S + tl.load(source + (wide % D) * A + j, mask=live, other=0)
        p = tl.zeros((BI, BN), tl.float32)
        for m0 in range(0, M, BM):
            g = upstream(grad, arg, wide, tl.full((), j, tl.int32), live, m0, M, BM, MAX, CT)
            w = load_matrix(weight, tl.full((), j, tl.int32), n0, m0, N, M, BN, BM)
            p = tl.dot(g, w.to(CT), p, input_precision=PREC)
        if RELU:
            h = hidden(dst, src, wide, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
            p = tl.where(h > 0, p, 0.0)
        if NEED_SRC:
            if ATOMIC:
                tl.atomic_add(d_src + src_row[:, None] * N + inner[None, :], p, mask=keep, sem="relaxed")
            else:
                store_rows(d_src, (wide // D) * E + (wide % D) * A + j, live, n0, p, N, BN)
        total += p
    if NEED_DST:
        store_rows(d_dst, wide, live, n0, total, N, BN)


@triton.jit
def step_rows(
    q, count, edges, begin, source, by_kind, items, D, S, t, A: tl.constexpr, BI: tl.constexpr, BY_ITEM: tl.constexpr
):
    """Where the operands of one step are: rows of dst and src, the place, and the live mask."""
    if BY_ITEM:
        item = q * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64)
        src_row = (dst_row // D) * S + tl.load(source + (dst_row % D) * A + t, mask=live, other=0)
        place = t
    else:
        # edges vary fastest: all programs work on the same items, which stay in the cache
        item = (q // edges) * BI + tl.arange(0, BI)
        live = (item < items) & (item * 0 + q < count)
        at = by_kind + (begin + q % edges) * 4
        dst_row = item.to(tl.int64) * D + tl.load(at, mask=q < count, other=0)
        src_row = item.to(tl.int64) * S + tl.load(at + 2, mask=q < count, other=0)
        place = tl.load(at + 1, mask=q < count, other=0)
    return dst_row, src_row, place, live


@triton.jit
def typed_weight(
    dst, src, source, by_kind, kind_ptr, grad, arg, d_weight, items, D, S, T, splits,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """A share of dW = Σ g hᵀ over the edges of one type and all items, (splits, T, M, N).

    ``by_kind`` lists edges by type: destination, place, source and type of each. While a product runs, the operands of
    the next step are loaded, and the addresses of the step after it.
    """
    t = tl.program_id(0)
    share = tl.program_id(1)
    n0 = (tl.program_id(2) % tl.cdiv(N, BN)) * BN
    m0 = (tl.program_id(2) // tl.cdiv(N, BN)) * BM
    tiles = tl.cdiv(items, BI)
    if BY_ITEM:
        begin = tl.full((), 0, tl.int32)
        edges = tl.full((), 1, tl.int32)
        count = tiles
    else:
        begin = tl.load(kind_ptr + t).to(tl.int32)
        edges = tl.load(kind_ptr + t + 1).to(tl.int32) - begin
        count = edges * tiles
        edges = tl.maximum(edges, 1)
    acc = tl.zeros((BM, BN), tl.float32)
    dst_row, src_row, now, live = step_rows(
        share, count, edges, begin, source, by_kind, items, D, S, t, A, BI, BY_ITEM
    )  # fmt: skip
    h, b, g, won = load_factors(dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX)
    dst_row, src_row, place, live = step_rows(
        share + splits, count, edges, begin, source, by_kind, items, D, S, t, A, BI, BY_ITEM
    )  # fmt: skip
    for q in tl.range(share, count, splits, num_stages=1):
        next_h, next_b, next_g, next_won = load_factors(
            dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX
        )
        soon = place
        dst_row, src_row, place, live = step_rows(
            q + 2 * splits, count, edges, begin, source, by_kind, items, D, S, t, A, BI, BY_ITEM
        )
        h, g = finish_factors(h, b, g, won, now, RELU, HAS_DST, MAX)
        acc = tl.dot(tl.trans(g.to(CT)), h.to(CT), acc, input_precision=PREC)
        h, b, g, won, now = next_h, next_b, next_g, next_won, soon
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    out_at = ((share * T + t).to(tl.int64) * M + column[:, None]) * N + inner[None, :]
    tl.store(d_weight + out_at, acc, mask=(column < M)[:, None] & (inner < N)[None, :])
