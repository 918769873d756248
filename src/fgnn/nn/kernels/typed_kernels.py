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

from fgnn.nn.kernels.tiles import hidden, larger, load_block, upstream


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
def typed_nodes(
    dst, src, kind, weight, source, destination, ptr, order, node_ptr, grad, arg, d_dst, d_src, items, D, S, first, V,
    N: tl.constexpr, M: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Shared structure: for each item and node, the sum over its edges of σ'(·) · Qᵀ g.

    The program's node is one of V from ``first`` on; nodes are the D destinations, then the S sources.
    """
    v = tl.program_id(0) % V + first
    item = (tl.program_id(0) // V) * BI + tl.arange(0, BI)
    live = item < items
    wide = item.to(tl.int64)
    n0 = tl.program_id(1) * BN
    total = tl.zeros((BI, BN), tl.float32)
    for k in range(tl.load(node_ptr + v).to(tl.int32), tl.load(node_ptr + v + 1).to(tl.int32)):
        at = tl.load(order + k)
        d = tl.load(destination + at)
        place = (at - tl.load(ptr + d)).to(tl.int32)
        q = tl.load(kind + at)
        p = tl.zeros((BI, BN), tl.float32)
        for m0 in range(0, M, BM):
            g = upstream(grad, arg, wide * D + d, place, live, m0, M, BM, MAX, CT)
            w = load_matrix(weight, q, n0, m0, N, M, BN, BM)
            p = tl.dot(g, w.to(CT), p, input_precision=PREC)
        if RELU:
            src_row = wide * S + tl.load(source + at)
            h = hidden(dst, src, wide * D + d, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
            p = tl.where(h > 0, p, 0.0)
        total += p
    inner = n0 + tl.arange(0, BN)
    keep = live[:, None] & (inner < N)[None, :]
    if v < D:
        row = wide * D + v
        tl.store(d_dst + row[:, None] * N + inner[None, :], total.to(d_dst.dtype.element_ty), mask=keep)
    else:
        row = wide * S + (v - D)
        tl.store(d_src + row[:, None] * N + inner[None, :], total.to(d_src.dtype.element_ty), mask=keep)


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
def typed_weight(
    dst, src, source, destination, ptr, order, kind_ptr, grad, arg, d_weight, items, D, S, T, splits,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """A share of dW = Σ g hᵀ over the edges of one type and all items, (splits, T, M, N)."""
    t = tl.program_id(0)
    share = tl.program_id(1)
    n0 = (tl.program_id(2) % tl.cdiv(N, BN)) * BN
    m0 = (tl.program_id(2) // tl.cdiv(N, BN)) * BM
    tiles = tl.cdiv(items, BI)
    if BY_ITEM:
        begin = tl.full((), 0, tl.int32)
        count = tiles
    else:
        begin = tl.load(kind_ptr + t).to(tl.int32)
        count = (tl.load(kind_ptr + t + 1).to(tl.int32) - begin) * tiles
    acc = tl.zeros((BM, BN), tl.float32)
    for q in range(share, count, splits):
        item = (q % tiles) * BI + tl.arange(0, BI)
        live = item < items
        wide = item.to(tl.int64)
        if BY_ITEM:
            place = t
            dst_row = wide
            src_row = (wide // D) * S + tl.load(source + (wide % D) * A + t, mask=live, other=0)
        else:
            at = tl.load(order + begin + q // tiles)
            d = tl.load(destination + at)
            place = (at - tl.load(ptr + d)).to(tl.int32)
            dst_row = wide * D + d
            src_row = wide * S + tl.load(source + at)
        h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
        g = upstream(grad, arg, dst_row, place, live, m0, M, BM, MAX, CT)
        acc = tl.dot(tl.trans(g), h, acc, input_precision=PREC)
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    out_at = ((share * T + t).to(tl.int64) * M + column[:, None]) * N + inner[None, :]
    tl.store(d_weight + out_at, acc, mask=(column < M)[:, None] & (inner < N)[None, :])
