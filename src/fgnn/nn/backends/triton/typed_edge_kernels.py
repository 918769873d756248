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
    finished,
    hidden,
    larger,
    load_block,
    load_rows,
    store_rows,
    upstream,
)
from fgnn.nn.backends.triton.group_choice import group_of, pick


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
    dst0, src0, kind0, weight0, source0, ptr0, out0, arg0, D0, S0,
    dst1, src1, kind1, weight1, source1, ptr1, out1, arg1, D1, S1,
    dst2, src2, kind2, weight2, source2, ptr2, out2, arg2, D2, S2,
    dst3, src3, kind3, weight3, source3, ptr3, out3, arg3, D3, S3,
    items, nodes,
    G: tl.constexpr, N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr,
    CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """For each item and destination the maximum (and its first place) or the sum over the edges.

    Destinations are those of G groups, D0 and D1 and so on, ``nodes`` in all.
    """
    m0 = tl.program_id(1) * BM
    k, d = group_of(tl.program_id(0) % nodes, D0, D1, D2, G)
    dst = pick(k, dst0, dst1, dst2, dst3, G) if HAS_DST else src0
    src = pick(k, src0, src1, src2, src3, G)
    weight = pick(k, weight0, weight1, weight2, weight3, G)
    source = pick(k, source0, source1, source2, source3, G)
    out = pick(k, out0, out1, out2, out3, G)
    arg = pick(k, arg0, arg1, arg2, arg3, G)
    D = pick(k, D0, D1, D2, D3, G)
    S = pick(k, S0, S1, S2, S3, G)
    if BY_ITEM:
        item = tl.program_id(0) * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64)
        start = tl.full((), 0, tl.int32)
        stop = tl.full((), A, tl.int32)
    else:
        kind = pick(k, kind0, kind1, kind2, kind3, G)
        ptr = pick(k, ptr0, ptr1, ptr2, ptr3, G)
        item = (tl.program_id(0) // nodes) * BI + tl.arange(0, BI)
        live = item < items
        dst_row = item.to(tl.int64) * D + d
        start = tl.load(ptr + d).to(tl.int32)
        stop = tl.load(ptr + d + 1).to(tl.int32)
    best = tl.full((BI, BM), float("-inf") if MAX else 0.0, tl.float32)
    first = tl.zeros((BI, BM), tl.int32)
    for j in range(start, stop):
        if BY_ITEM:
            q = j
            src_row = (item // D).to(tl.int64) * S + tl.load(source + (dst_row % D) * A + j, mask=live, other=0)
        else:
            q = tl.load(kind + j)
            src_row = item.to(tl.int64) * S + tl.load(source + j)
        acc = tl.zeros((BI, BM), tl.float32)
        for n0 in range(0, N, BN):
            h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
            w = load_matrix(weight, q, n0, m0, N, M, BN, BM)
            acc = tl.dot(h, tl.trans(w).to(CT), acc, input_precision=PREC)
            if N > BN:
                acc = finished(acc, live, PREC)
        if MAX:
            first = tl.where(acc <= best, first, j - start)
            best = larger(best, acc)
        else:
            best = finished(best + acc, live, PREC)
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
    dst0, src0, weight0, walk0, node_ptr0, grad0, arg0, d_dst0, d_src0, D0, S0, first0, V0,
    dst1, src1, weight1, walk1, node_ptr1, grad1, arg1, d_dst1, d_src1, D1, S1, first1, V1,
    dst2, src2, weight2, walk2, node_ptr2, grad2, arg2, d_dst2, d_src2, D2, S2, first2, V2,
    dst3, src3, weight3, walk3, node_ptr3, grad3, arg3, d_dst3, d_src3, D3, S3, first3, V3,
    items, nodes,
    G: tl.constexpr, N: tl.constexpr, M: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Shared structure: for each item and node, the sum over its edges of σ'(·) · Qᵀ g.

    The program's node is one of V of its group from ``first`` on, of ``nodes`` in all; a group's nodes are its D
    destinations, then its S sources. ``walk`` lists their edges: destination, place, source and type of each. AHEAD
    (one block holds all columns): load what all edges of a node share once, and load the operands of the next edge
    while a product runs.
    """
    k, v = group_of(tl.program_id(0) % nodes, V0, V1, V2, G)
    dst = pick(k, dst0, dst1, dst2, dst3, G) if HAS_DST else src0
    src = pick(k, src0, src1, src2, src3, G)
    weight = pick(k, weight0, weight1, weight2, weight3, G)
    walk = pick(k, walk0, walk1, walk2, walk3, G)
    node_ptr = pick(k, node_ptr0, node_ptr1, node_ptr2, node_ptr3, G)
    grad = pick(k, grad0, grad1, grad2, grad3, G)
    arg = pick(k, arg0, arg1, arg2, arg3, G)
    d_dst = pick(k, d_dst0, d_dst1, d_dst2, d_dst3, G)
    d_src = pick(k, d_src0, d_src1, d_src2, d_src3, G)
    D = pick(k, D0, D1, D2, D3, G)
    S = pick(k, S0, S1, S2, S3, G)
    v += pick(k, first0, first1, first2, first3, G)
    item = (tl.program_id(0) // nodes) * BI + tl.arange(0, BI)
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
            for e in tl.range(start, stop, num_stages=1):
                next_h = load_rows(src, wide * S + s, live, 0, N, BN)
                s = tl.load(walk + e * 4 + 10, mask=e + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + e * 4 + 3), 0, 0, N, M, BN, BM)
                total += back_product(g, won, e - start, h, b, w, RELU, HAS_DST, MAX, CT, PREC)
                h = next_h
        else:
            h = load_rows(src, wide * S + (v - D), live, 0, N, BN)
            row = wide * D + tl.load(walk + start * 4, mask=start < stop, other=0)
            g = load_rows(grad, row, live, 0, M, BM)
            won = load_rows(arg, row, live, 0, M, BM) if MAX else g
            b = load_rows(dst, row, live, 0, N, BN) if HAS_DST else total
            d = tl.load(walk + start * 4 + 4, mask=start + 1 < stop, other=0)
            for e in tl.range(start, stop, num_stages=1):
                row = wide * D + d
                next_g = load_rows(grad, row, live, 0, M, BM)
                next_won = load_rows(arg, row, live, 0, M, BM) if MAX else next_g
                next_b = load_rows(dst, row, live, 0, N, BN) if HAS_DST else b
                d = tl.load(walk + e * 4 + 8, mask=e + 2 < stop, other=0)
                w = load_matrix(weight, tl.load(walk + e * 4 + 3), 0, 0, N, M, BN, BM)
                place = tl.load(walk + e * 4 + 1)
                total += back_product(g, won, place, h, b, w, RELU, HAS_DST, MAX, CT, PREC)
                g, won, b = next_g, next_won, next_b
    else:
        for e in range(start, stop):
            d = tl.load(walk + e * 4)
            place = tl.load(walk + e * 4 + 1)
            q = tl.load(walk + e * 4 + 3)
            p = tl.zeros((BI, BN), tl.float32)
            for m0 in range(0, M, BM):
                g = upstream(grad, arg, wide * D + d, place, live, m0, M, BM, MAX, CT)
                w = load_matrix(weight, q, n0, m0, N, M, BN, BM)
                p = tl.dot(g, w.to(CT), p, input_precision=PREC)
                if M > BM or not RELU:
                    p = finished(p, live, PREC)
            if RELU:
                src_row = wide * S + tl.load(walk + e * 4 + 2)
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
            if M > BM or not RELU:
                p = finished(p, live, PREC)
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
