"""The gradient at the matrices that many items share: a program takes one matrix, and a share of its edges and items.

BY_ITEM selects one of two uses, as in ``typed_edge_kernels``.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import finish_factors, load_factors
from fgnn.nn.backends.triton.group_choice import group_of, pick


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
    dst0, src0, source0, by_kind0, kind_ptr0, grad0, arg0, d_weight0, D0, S0, T0, splits0,
    dst1, src1, source1, by_kind1, kind_ptr1, grad1, arg1, d_weight1, D1, S1, T1, splits1,
    dst2, src2, source2, by_kind2, kind_ptr2, grad2, arg2, d_weight2, D2, S2, T2, splits2,
    dst3, src3, source3, by_kind3, kind_ptr3, grad3, arg3, d_weight3, D3, S3, T3, splits3,
    items,
    G: tl.constexpr, N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, BY_ITEM: tl.constexpr, MAX: tl.constexpr,
    CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A share of dW = Σ g hᵀ over the edges of one type and all items, (splits, T, M, N) for each of G groups.

    ``by_kind`` lists edges by type: destination, place, source and type of each. While a product runs, the operands of
    the next step are loaded, and the addresses of the step after it.
    """
    k, at = group_of(tl.program_id(0), T0 * splits0, T1 * splits1 if G > 2 else 0, T2 * splits2 if G > 3 else 0, G)
    dst = pick(k, dst0, dst1, dst2, dst3, G) if HAS_DST else src0
    src = pick(k, src0, src1, src2, src3, G)
    source = pick(k, source0, source1, source2, source3, G)
    grad = pick(k, grad0, grad1, grad2, grad3, G)
    arg = pick(k, arg0, arg1, arg2, arg3, G)
    d_weight = pick(k, d_weight0, d_weight1, d_weight2, d_weight3, G)
    D = pick(k, D0, D1, D2, D3, G)
    S = pick(k, S0, S1, S2, S3, G)
    T = pick(k, T0, T1, T2, T3, G)
    splits = pick(k, splits0, splits1, splits2, splits3, G)
    t = at % T
    share = at // T
    n0 = (tl.program_id(1) % tl.cdiv(N, BN)) * BN
    m0 = (tl.program_id(1) // tl.cdiv(N, BN)) * BM
    tiles = tl.cdiv(items, BI)
    if BY_ITEM:
        by_kind = source
        begin = tl.full((), 0, tl.int32)
        edges = tl.full((), 1, tl.int32)
        count = tiles
    else:
        by_kind = pick(k, by_kind0, by_kind1, by_kind2, by_kind3, G)
        kind_ptr = pick(k, kind_ptr0, kind_ptr1, kind_ptr2, kind_ptr3, G)
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
