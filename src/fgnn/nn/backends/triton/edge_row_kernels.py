"""Kernels over rows of edges: a row holds up to W edges of one destination, a program takes BR rows.

.. math:: m_e = \\sum_\\tau \\varphi_{e\\tau} W_\\tau h_e, \\qquad h_e = \\sigma(dst_{d(e)} + src_{s(e)})

The tile's h is gathered once and stays in registers while W_τ streams past it; the sum over τ and over the columns of
h is one accumulation on the matrix units. With types instead of φ, φ_eτ is 1 where τ is the edge's type.
"""

# mypy: ignore-errors
# (the arguments are of Triton's language, which has no annotations for them)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.tiles import edge_ids, edge_tile, hidden, load_block, reduce_rows, upstream


@triton.jit
def coefficient(coef, at, t, live, TYPED: tl.constexpr):
    """φ_τ of each edge."""
    if TYPED:
        return (tl.load(coef + at, mask=live, other=-1) == t).to(tl.float32)
    return tl.load(coef + at + t, mask=live, other=0).to(tl.float32)


@triton.jit
def rows_forward(
    dst, src, coef, weight, source, edge, table, out, arg, rows, total, D, S, E, T,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, HAS_EDGE: tl.constexpr, TYPED: tl.constexpr,
    OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The reduced messages of each row, and which of its places attained a maximum."""
    pid = tl.program_id(0)
    m0 = tl.program_id(1) * BM
    sample, destination, at, _, live = edge_tile(pid, table, rows, total, A, W, BR)
    src_row = sample * S + tl.load(source + at, mask=live, other=0).to(tl.int64)
    dst_row = sample * D + destination
    e = edge_ids(edge, at, live, HAS_EDGE)
    if OWN_COEF:
        e += sample * E
    coef_at = e if TYPED else e * T
    column = m0 + tl.arange(0, BM)
    acc = tl.zeros((BR * W, BM), tl.float32)
    for n0 in range(0, N, BN):
        inner = n0 + tl.arange(0, BN)
        h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
        w_at = weight + column[None, :].to(tl.int64) * N + inner[:, None]  # shape: (BN, BM), W transposed
        mask = (inner < N)[:, None] & (column < M)[None, :]
        for t in range(T):
            f = coefficient(coef, coef_at, t, live, TYPED).to(CT)
            w = load_block(w_at, mask, (N % BN == 0) and (M % BM == 0))
            acc = tl.dot(h * f[:, None], w.to(CT), acc, input_precision=PREC)
            w_at += N * M
    value, first = reduce_rows(acc, live, W, BR, BM, MAX)
    row = pid * BR + tl.arange(0, BR)
    keep = (row < total)[:, None] & (column < M)[None, :]
    out_at = row.to(tl.int64)[:, None] * M + column[None, :]
    tl.store(out + out_at, value.to(out.dtype.element_ty), mask=keep)
    if MAX:
        tl.store(arg + out_at, first.to(arg.dtype.element_ty), mask=keep)


@triton.jit
def rows_backward(
    dst, src, coef, weight, source, edge, table, grad, arg, d_dst, d_src, d_coef, rows, total, D, S, E, edges,
    T: tl.constexpr, N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr,
    HAS_EDGE: tl.constexpr, TYPED: tl.constexpr, OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr, NEED_DST: tl.constexpr, NEED_SRC: tl.constexpr, ATOMIC: tl.constexpr, NEED_COEF: tl.constexpr,
):  # fmt: skip
    """Gradients at dst (summed over a row), at src (added at each edge's source, or kept by edge) and at φ.

    With g the gradient at a message and P_τ = W_τᵀ g: dh = Σ_τ φ_τ P_τ and dφ_τ = P_τ · h, kept for BT values of τ and
    then written, (column blocks, edges, T).
    """
    pid = tl.program_id(0)
    n0 = tl.program_id(1) * BN
    sample, destination, at, place, live = edge_tile(pid, table, rows, total, A, W, BR)
    src_row = sample * S + tl.load(source + at, mask=live, other=0).to(tl.int64)
    dst_row = sample * D + destination
    e = edge_ids(edge, at, live, HAS_EDGE)
    own = sample * E + e
    if OWN_COEF:
        e = own
    coef_at = e if TYPED else e * T
    inner = n0 + tl.arange(0, BN)
    column = tl.arange(0, BM)
    h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
    d_coef_at = (tl.program_id(1).to(tl.int64) * edges + own) * T
    dh = tl.zeros((BR * W, BN), tl.float32)
    w_at = weight + column[:, None].to(tl.int64) * N + inner[None, :]
    mask = (column < M)[:, None] & (inner < N)[None, :]
    if M <= BM:
        g = upstream(grad, arg, dst_row, place[:, None], live, 0, M, BM, MAX, CT)
    for t0 in tl.static_range(0, T, BT):
        tau = t0 + tl.arange(0, BT)
        d_phi = tl.zeros((BR * W, BT), tl.float32)
        for t in range(t0, t0 + BT if t0 + BT < T else T):
            f = coefficient(coef, coef_at, t, live, TYPED)
            if M <= BM:
                w = load_block(w_at, mask, (N % BN == 0) and (M % BM == 0))
                p = tl.dot(g, w.to(CT), input_precision=PREC)
                w_at += N * M
            else:
                p = tl.zeros((BR * W, BN), tl.float32)
                for m0 in range(0, M, BM):
                    g = upstream(grad, arg, dst_row, place[:, None], live, m0, M, BM, MAX, CT)
                    at_w = weight + (t * M + m0 + column[:, None]).to(tl.int64) * N + inner[None, :]
                    w = tl.load(at_w, mask=(m0 + column < M)[:, None] & (inner < N)[None, :], other=0)
                    p = tl.dot(g, w.to(CT), p, input_precision=PREC)
            dh += p * f[:, None]
            if NEED_COEF:
                d_f = tl.sum(p * h.to(tl.float32), 1)
                d_phi = tl.where(tau[None, :] == t, d_f[:, None], d_phi)
        if NEED_COEF:
            at_phi = d_coef + d_coef_at[:, None] + tau[None, :]
            tl.store(at_phi, d_phi.to(d_coef.dtype.element_ty), mask=live[:, None] & (tau < T)[None, :])
    if RELU:
        dh = tl.where(h > 0, dh, 0.0)
    keep = live[:, None] & (inner < N)[None, :]
    if NEED_SRC:
        if ATOMIC:
            tl.atomic_add(d_src + src_row[:, None] * N + inner[None, :], dh, mask=keep, sem="relaxed")
        else:
            tl.store(d_src + (sample * E + at)[:, None] * N + inner[None, :], dh, mask=keep)
    if NEED_DST:
        row = pid * BR + tl.arange(0, BR)
        total_dh = tl.sum(tl.reshape(tl.where(live[:, None], dh, 0.0), (BR, W, BN)), 1)
        row_at = row.to(tl.int64)[:, None] * N + inner[None, :]
        tl.store(
            d_dst + row_at, total_dh.to(d_dst.dtype.element_ty), mask=(row < total)[:, None] & (inner < N)[None, :]
        )


@triton.jit
def edge_rows(
    pid, source, edge, table, rows, total, D, S, E, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
    HAS_EDGE: tl.constexpr, OWN_COEF: tl.constexpr,
):  # fmt: skip
    """Where the numbers of a tile's edges lie: rows of src, of dst and of φ, places, and which edges are real."""
    sample, destination, at, place, live = edge_tile(pid, table, rows, total, A, W, BR)
    src_row = sample * S + tl.load(source + at, mask=live, other=0).to(tl.int64)
    e = edge_ids(edge, at, live, HAS_EDGE)
    if OWN_COEF:
        e += sample * E
    return src_row, sample * D + destination, e, place, live


@triton.jit
def edge_numbers(
    dst, src, coef, grad, arg, src_row, dst_row, e, live, t, n0, m0, T, N: tl.constexpr, M: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, HAS_DST: tl.constexpr, TYPED: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """The numbers themselves, as they lie: src, dst, the gradient, who attained the maximum, and φ for some τ."""
    inner = n0 + tl.arange(0, BN)
    column = m0 + tl.arange(0, BM)
    of_h = live[:, None] & (inner < N)[None, :] if N % BN else live[:, None]
    of_g = live[:, None] & (column < M)[None, :] if M % BM else live[:, None]
    h = tl.load(src + src_row[:, None] * N + inner[None, :], mask=of_h, other=0)
    b = tl.load(dst + dst_row[:, None] * N + inner[None, :], mask=of_h, other=0) if HAS_DST else h
    g_at = dst_row[:, None] * M + column[None, :]
    g = tl.load(grad + g_at, mask=of_g, other=0)
    w = tl.load(arg + g_at, mask=of_g, other=0) if MAX else g
    if TYPED:
        f = (tl.load(coef + e, mask=live, other=-1)[:, None] == t[None, :]).to(CT)
    else:
        f = tl.load(coef + e[:, None] * T + t[None, :], mask=live[:, None] & (t < T)[None, :], other=0).to(CT)
    return h, b, g, w, f


@triton.jit
def rows_weight(
    dst, src, coef, source, edge, table, grad, arg, d_weight, rows, total, D, S, E, T, splits,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, HAS_EDGE: tl.constexpr,
    TYPED: tl.constexpr, OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """A share of dW_τ = Σ_e φ_eτ g_e h_eᵀ for BT values of τ, (splits, T, M, N).

    AHEAD: one program fills a processor, so nothing else hides how long its gathers take; the numbers of the next tile,
    and where those of the tile after it lie, are on their way while a product runs.
    """
    t0 = tl.program_id(0) * BT
    share = tl.program_id(1)
    n0 = (tl.program_id(2) % tl.cdiv(N, BN)) * BN
    m0 = (tl.program_id(2) // tl.cdiv(N, BN)) * BM
    t = t0 + tl.arange(0, BT)
    acc = tl.zeros((BT * BN, BM), tl.float32)
    if AHEAD:
        src_row, dst_row, e, place, live = edge_rows(
            share, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
        )
        h, b, g, w, f = edge_numbers(
            dst, src, coef, grad, arg, src_row, dst_row, e, live, t, n0, m0, T, N, M, BN, BM, HAS_DST, TYPED, MAX, CT
        )
        at = place
        src_row, dst_row, e, place, live = edge_rows(
            share + splits, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
        )
    for pid in tl.range(share, tl.cdiv(total, BR), splits, num_stages=1 if AHEAD else None):
        if AHEAD:
            next_h, next_b, next_g, next_w, next_f = edge_numbers(
                dst, src, coef, grad, arg, src_row, dst_row, e, live, t, n0, m0, T, N, M, BN, BM, HAS_DST, TYPED, MAX,
                CT,
            )  # fmt: skip
            next_at = place
            src_row, dst_row, e, place, live = edge_rows(
                pid + 2 * splits, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
            )
        else:
            src_row, dst_row, e, at, live = edge_rows(
                pid, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
            )
            h, b, g, w, f = edge_numbers(
                dst, src, coef, grad, arg, src_row, dst_row, e, live, t, n0, m0, T, N, M, BN, BM, HAS_DST, TYPED, MAX,
                CT,
            )  # fmt: skip
        if HAS_DST:
            h += b
        if RELU:
            h = tl.maximum(h, tl.zeros_like(h), propagate_nan=tl.PropagateNan.ALL)
        if MAX:
            g = tl.where(w == at[:, None].to(arg.dtype.element_ty), g, tl.zeros_like(g))
        x = tl.reshape(f[:, :, None] * h.to(CT)[:, None, :], (BR * W, BT * BN))
        acc = tl.dot(tl.trans(x), g.to(CT), acc, input_precision=PREC)
        if AHEAD:
            h, b, g, w, f, at = next_h, next_b, next_g, next_w, next_f, next_at
    line = tl.arange(0, BT * BN)
    tau = t0 + line // BN
    inner = n0 + line % BN
    column = m0 + tl.arange(0, BM)
    out_at = ((share * T + tau).to(tl.int64)[:, None] * M + column[None, :]) * N + inner[:, None]
    tl.store(d_weight + out_at, acc, mask=((tau < T) & (inner < N))[:, None] & (column < M)[None, :])


@triton.jit
def combine_rows(
    partial, place, row_ptr, out, arg, rows, D, total,
    M: tl.constexpr, W: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The first maximum over the rows of each destination; -inf for one without rows."""
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    column = tl.program_id(1) * BM + tl.arange(0, BM)
    live = d < total
    sample = (d // D).to(tl.int64)
    start = tl.load(row_ptr + d % D, mask=live, other=0).to(tl.int64)
    count = tl.load(row_ptr + d % D + 1, mask=live, other=0).to(tl.int64) - start
    best = tl.full((BD, BM), float("-inf"), tl.float32)
    first = tl.zeros((BD, BM), tl.int32)
    for r in range(tl.max(count, 0)):
        mask = (r < count)[:, None] & (column < M)[None, :]
        at = (sample * rows + start + r)[:, None] * M + column[None, :]
        value = tl.load(partial + at, mask=mask, other=float("-inf"))
        better = mask & ((value > best) | ((value != value) & (best == best)))
        here = r * W + tl.load(place + at, mask=mask, other=0).to(tl.int64)
        first = tl.where(better, here.to(tl.int32), first)
        best = tl.where(better, value, best)
    keep = live[:, None] & (column < M)[None, :]
    out_at = d.to(tl.int64)[:, None] * M + column[None, :]
    tl.store(out + out_at, best.to(out.dtype.element_ty), mask=keep)
    tl.store(arg + out_at, first.to(arg.dtype.element_ty), mask=keep)


@triton.jit
def segment_sum(
    values, order, ptr, out, length, nodes, total,
    N: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HAS_ORDER: tl.constexpr,
):  # fmt: skip
    """(B, length, N) to (B, nodes, N): for each node the sum of its entries, in the order of the list."""
    v = tl.program_id(0) * BD + tl.arange(0, BD)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    live = v < total
    sample = (v // nodes).to(tl.int64)
    start = tl.load(ptr + v % nodes, mask=live, other=0).to(tl.int64)
    count = tl.load(ptr + v % nodes + 1, mask=live, other=0).to(tl.int64) - start
    acc = tl.zeros((BD, BN), tl.float32)
    for r in range(tl.max(count, 0)):
        here = r < count
        at = start + r
        if HAS_ORDER:
            at = tl.load(order + at, mask=here, other=0).to(tl.int64)
        mask = here[:, None] & (column < N)[None, :]
        acc += tl.load(values + (sample * length + at)[:, None] * N + column[None, :], mask=mask, other=0)
    keep = live[:, None] & (column < N)[None, :]
    tl.store(out + v.to(tl.int64)[:, None] * N + column[None, :], acc.to(out.dtype.element_ty), mask=keep)
