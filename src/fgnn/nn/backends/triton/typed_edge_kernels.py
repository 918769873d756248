"""Kernels where many items meet the same edge matrix: a program takes BI items and one matrix at a time.

Two uses, told apart by BY_ITEM:

- *shared structure* (False): the items are samples over one graph, the program has one destination d and goes through
  its edges; every item uses the same source and the same matrix.
- *places* (True): all destinations have A edges and the matrix depends on the place alone; the items are the
  destinations of all samples, the program goes through the A places, and sources differ from item to item.
"""

# mypy: ignore-errors
# (the arguments are of Triton's language, which has no annotations for them)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.tiles import hidden, larger, load_block, upstream


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
    column = m0 + tl.arange(0, BM)
    keep = live[:, None] & (column < M)[None, :]
    at = dst_row[:, None] * M + column[None, :]
    tl.store(out + at, best.to(out.dtype.element_ty), mask=keep)
    if MAX:
        tl.store(arg + at, first.to(arg.dtype.element_ty), mask=keep)


@triton.jit
def row_block(x, row, mask, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The first columns of some rows of x, as they lie."""
    column = tl.arange(0, BLOCK)
    return tl.load(x + row[:, None] * WIDTH + column[None, :], mask=mask, other=0)


@triton.jit
def typed_nodes(
    dst, src, weight, walk, node_ptr, grad, arg, d_dst, d_src, items, D, S, first, V,
    N: tl.constexpr, M: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Shared structure: for each item and node, the sum over its edges of σ'(·) · Qᵀ g.

    The program's node is one of V from ``first`` on; nodes are the D destinations, then the S sources. ``walk`` lists
    their edges: destination, place, source and type of each. AHEAD, where one block of columns holds all: what all
    edges of a node share is read once, and the numbers of the next edge are on their way while a product runs.
    """
    v = tl.program_id(0) % V + first
    item = (tl.program_id(0) // V) * BI + tl.arange(0, BI)
    live = item < items
    wide = item.to(tl.int64)
    n0 = tl.program_id(1) * BN
    inner = n0 + tl.arange(0, BN)
    keep = live[:, None] & (inner < N)[None, :]
    total = tl.zeros((BI, BN), tl.float32)
    start = tl.load(node_ptr + v).to(tl.int32)
    stop = tl.load(node_ptr + v + 1).to(tl.int32)
    if AHEAD:
        some = live[:, None] & (tl.arange(0, BM) < M)[None, :]
        if v < D:
            row = wide * D + v
            g = row_block(grad, row, some, M, BM)
            won = row_block(arg, row, some, M, BM) if MAX else g
            b = row_block(dst, row, keep, N, BN) if HAS_DST else total
            h = row_block(src, wide * S + tl.load(walk + start * 4 + 2, mask=start < stop, other=0), keep, N, BN)
            s = tl.load(walk + start * 4 + 6, mask=start + 1 < stop, other=0)
            for k in tl.range(start, stop, num_stages=1):
                next_h = row_block(src, wide * S + s, keep, N, BN)
                s = tl.load(walk + k * 4 + 10, mask=k + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + k * 4 + 3), 0, 0, N, M, BN, BM)
                mine = tl.where(won == (k - start).to(arg.dtype.element_ty), g, tl.zeros_like(g)) if MAX else g
                p = tl.dot(mine.to(CT), w.to(CT), input_precision=PREC)
                if RELU:
                    p = tl.where((h + b if HAS_DST else h) > 0, p, 0.0)
                total += p
                h = next_h
        else:
            h = row_block(src, wide * S + (v - D), keep, N, BN)
            row = wide * D + tl.load(walk + start * 4, mask=start < stop, other=0)
            g = row_block(grad, row, some, M, BM)
            won = row_block(arg, row, some, M, BM) if MAX else g
            b = row_block(dst, row, keep, N, BN) if HAS_DST else total
            d = tl.load(walk + start * 4 + 4, mask=start + 1 < stop, other=0)
            for k in tl.range(start, stop, num_stages=1):
                row = wide * D + d
                next_g = row_block(grad, row, some, M, BM)
                next_won = row_block(arg, row, some, M, BM) if MAX else next_g
                next_b = row_block(dst, row, keep, N, BN) if HAS_DST else b
                d = tl.load(walk + k * 4 + 8, mask=k + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + k * 4 + 3), 0, 0, N, M, BN, BM)
                place = tl.load(walk + k * 4 + 1).to(arg.dtype.element_ty)
                mine = tl.where(won == place, g, tl.zeros_like(g)) if MAX else g
                p = tl.dot(mine.to(CT), w.to(CT), input_precision=PREC)
                if RELU:
                    p = tl.where((h + b if HAS_DST else h) > 0, p, 0.0)
                total += p
                g = next_g
                won = next_won
                b = next_b
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
        at = (wide * D + v)[:, None] * N + inner[None, :]
        tl.store(d_dst + at, total.to(d_dst.dtype.element_ty), mask=keep)
    else:
        at = (wide * S + (v - D))[:, None] * N + inner[None, :]
        tl.store(d_src + at, total.to(d_src.dtype.element_ty), mask=keep)


@triton.jit
def places_backward(
    dst, src, weight, source, grad, arg, d_dst, d_src, items, D, S, E,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    NEED_DST: tl.constexpr, NEED_SRC: tl.constexpr, ATOMIC: tl.constexpr,
):  # fmt: skip
    """Places: dst's gradient summed over the places, src's added at each source (or kept by edge)."""
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
                row = (wide // D) * E + (wide % D) * A + j
                tl.store(d_src + row[:, None] * N + inner[None, :], p, mask=keep)
        total += p
    if NEED_DST:
        tl.store(d_dst + wide[:, None] * N + inner[None, :], total.to(d_dst.dtype.element_ty), mask=keep)


@triton.jit
def step_rows(
    q, count, edges, begin, source, by_kind, items, D, S, t, A: tl.constexpr, BI: tl.constexpr, BY_ITEM: tl.constexpr
):
    """Where the numbers of one step lie: rows of dst and of src, the place, and which items are real."""
    if BY_ITEM:
        item = q * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64)
        src_row = (dst_row // D) * S + tl.load(source + (dst_row % D) * A + t, mask=live, other=0)
        place = t
    else:
        # item by item, then edge by edge: all programs are at the same items, which stay in the cache
        item = (q // edges) * BI + tl.arange(0, BI)
        live = (item < items) & (item * 0 + q < count)
        at = by_kind + (begin + q % edges) * 4
        dst_row = item.to(tl.int64) * D + tl.load(at, mask=q < count, other=0)
        src_row = item.to(tl.int64) * S + tl.load(at + 2, mask=q < count, other=0)
        place = tl.load(at + 1, mask=q < count, other=0)
    return dst_row, src_row, place, live


@triton.jit
def step_numbers(
    dst, src, grad, arg, dst_row, src_row, live, n0, m0, N: tl.constexpr, M: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    """The numbers themselves, as they lie: src, dst, the gradient, and who attained the maximum."""
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    of_h = live[:, None] & (inner < N)[None, :]
    of_g = live[:, None] & (column < M)[None, :]
    h = tl.load(src + src_row[:, None] * N + inner[None, :], mask=of_h, other=0)
    b = tl.load(dst + dst_row[:, None] * N + inner[None, :], mask=of_h, other=0) if HAS_DST else h
    g_at = dst_row[:, None] * M + column[None, :]
    g = tl.load(grad + g_at, mask=of_g, other=0)
    won = tl.load(arg + g_at, mask=of_g, other=0) if MAX else g
    return h, b, g, won


@triton.jit
def typed_weight(
    dst, src, source, by_kind, kind_ptr, grad, arg, d_weight, items, D, S, T, splits,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """A share of dW = Σ g hᵀ over the edges of one type and all items, (splits, T, M, N).

    ``by_kind`` lists edges by type: destination, place, source and type of each. The numbers of the next step, and
    where those of the step after it lie, are on their way while a product runs.
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
    h, b, g, won = step_numbers(dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX)
    dst_row, src_row, place, live = step_rows(
        share + splits, count, edges, begin, source, by_kind, items, D, S, t, A, BI, BY_ITEM
    )  # fmt: skip
    for q in tl.range(share, count, splits, num_stages=1):
        next_h, next_b, next_g, next_won = step_numbers(
            dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX
        )
        soon = place
        dst_row, src_row, place, live = step_rows(
            q + 2 * splits, count, edges, begin, source, by_kind, items, D, S, t, A, BI, BY_ITEM
        )
        if HAS_DST:
            h += b
        if RELU:
            h = tl.maximum(h, tl.zeros_like(h), propagate_nan=tl.PropagateNan.ALL)
        if MAX:
            g = tl.where(won == now.to(arg.dtype.element_ty), g, tl.zeros_like(g))
        acc = tl.dot(tl.trans(g.to(CT)), h.to(CT), acc, input_precision=PREC)
        h, b, g, won, now = next_h, next_b, next_g, next_won, soon
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    out_at = ((share * T + t).to(tl.int64) * M + column[:, None]) * N + inner[None, :]
    tl.store(d_weight + out_at, acc, mask=(column < M)[:, None] & (inner < N)[None, :])
