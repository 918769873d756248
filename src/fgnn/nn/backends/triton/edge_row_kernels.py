"""Kernels over rows of edges: a row holds up to W edges of one destination, a program takes BR rows.

.. math:: m_e = \\sum_\\tau \\varphi_{e\\tau} W_\\tau h_e, \\qquad h_e = \\sigma(dst_{d(e)} + src_{s(e)})

The tile's h is gathered once and stays in registers while W_τ streams past; the sum over τ and over the columns of h
is one accumulation on the matrix units. With types instead of φ, φ_eτ is 1 if τ is the edge's type.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import (
    edge_tile,
    finish_factors,
    finished,
    hidden,
    load_block,
    load_factors,
    reduce_rows,
    store_rows,
    upstream,
)


@triton.jit
def listed_at(x, at, live, E):
    """Entries of a list of E indices, as int64; any of them where ``live`` is False."""
    if x.dtype.element_ty == tl.int64:
        # Masked by ``live``, Triton 3.6 and 3.7 move this load to another layout without the mask, and fail.
        return tl.load(x + tl.minimum(at, E - 1))
    return tl.load(x + at, mask=live, other=0).to(tl.int64)


@triton.jit
def edge_rows(
    pid, source, edge, table, rows, total, D, S, E, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
    HAS_EDGE: tl.constexpr, OWN_COEF: tl.constexpr,
):  # fmt: skip
    """Where a tile's operands are: rows of src, dst and φ; places; live mask; edge and list position in all samples."""
    sample, destination, at, place, live = edge_tile(pid, table, rows, total, A, W, BR)
    src_row = sample * S + listed_at(source, at, live, E)
    e = listed_at(edge, at, live, E) if HAS_EDGE else at
    by_sample = sample * E + e
    return src_row, sample * D + destination, by_sample if OWN_COEF else e, place, live, by_sample, sample * E + at


@triton.jit
def coefficient(coef, e, t, live, T, TYPED: tl.constexpr):
    """φ_τ of each edge."""
    if TYPED:
        return (tl.load(coef + e, mask=live, other=-1) == t).to(tl.float32)
    return tl.load(coef + e * T + t, mask=live, other=0).to(tl.float32)


@triton.jit
def rows_forward(
    dst, src, coef, weight, source, edge, table, out, arg, rows, total, D, S, E, T,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, HAS_EDGE: tl.constexpr, TYPED: tl.constexpr,
    OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The reduced messages of each row and, for a maximum, the places that attained it."""
    pid = tl.program_id(0)
    m0 = tl.program_id(1) * BM
    src_row, dst_row, e, _, live, _, _ = edge_rows(
        pid, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
    )
    column = m0 + tl.arange(0, BM)
    acc = tl.zeros((BR * W, BM), tl.float32)
    for n0 in range(0, N, BN):
        inner = n0 + tl.arange(0, BN)
        h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
        w_at = weight + column[None, :].to(tl.int64) * N + inner[:, None]  # shape: (BN, BM), W transposed
        mask = (inner < N)[:, None] & (column < M)[None, :]
        f = coefficient(coef, e, 0, live, T, TYPED).to(CT)
        w = load_block(w_at, mask, (N % BN == 0) and (M % BM == 0))
        # Loaded ahead by hand: pipelined by Triton 3.6, products overlap with writes to their operands.
        for t in tl.range(T, num_stages=1):
            ahead = tl.minimum(t + 1, T - 1)
            next_f = coefficient(coef, e, ahead, live, T, TYPED).to(CT)
            next_w = load_block(w_at + ahead.to(tl.int64) * (N * M), mask, (N % BN == 0) and (M % BM == 0))
            acc = tl.dot(h * f[:, None], w.to(CT), acc, input_precision=PREC)
            f = next_f
            w = next_w
    value, first = reduce_rows(acc, live, W, BR, BM, MAX)
    row = pid * BR + tl.arange(0, BR)
    store_rows(out, row.to(tl.int64), row < total, m0, value, M, BM)
    if MAX:
        store_rows(arg, row.to(tl.int64), row < total, m0, first, M, BM)


@triton.jit
def rows_backward(
    dst, src, coef, weight, source, edge, table, grad, arg, d_dst, d_src, d_coef, rows, total, D, S, E, edges,
    T: tl.constexpr, N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr,
    HAS_EDGE: tl.constexpr, TYPED: tl.constexpr, OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr, NEED_DST: tl.constexpr, NEED_SRC: tl.constexpr, ATOMIC: tl.constexpr, NEED_COEF: tl.constexpr,
):  # fmt: skip
    """Gradients at dst (summed over a row), at src (added at each edge's source, or stored by edge) and at φ.

    With g the gradient at a message and P_τ = W_τᵀ g: dh = Σ_τ φ_τ P_τ and dφ_τ = P_τ · h. The latter is collected for
    BT values of τ and then stored, (column blocks, edges, T).
    """
    pid = tl.program_id(0)
    n0 = tl.program_id(1) * BN
    src_row, dst_row, e, place, live, by_sample, listed = edge_rows(
        pid, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
    )
    inner = n0 + tl.arange(0, BN)
    column = tl.arange(0, BM)
    h = hidden(dst, src, dst_row, src_row, live, n0, N, BN, RELU, HAS_DST, CT)
    d_coef_at = (tl.program_id(1).to(tl.int64) * edges + by_sample) * T
    dh = tl.zeros((BR * W, BN), tl.float32)
    w_at = weight + column[:, None].to(tl.int64) * N + inner[None, :]
    mask = (column < M)[:, None] & (inner < N)[None, :]
    if M <= BM:
        g = upstream(grad, arg, dst_row, place[:, None], live, 0, M, BM, MAX, CT)
    for t0 in tl.static_range(0, T, BT):
        tau = t0 + tl.arange(0, BT)
        d_phi = tl.zeros((BR * W, BT), tl.float32)
        for t in range(t0, t0 + BT if t0 + BT < T else T):
            f = coefficient(coef, e, t, live, T, TYPED)
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
                    p = finished(tl.dot(g, w.to(CT), p, input_precision=PREC), live, PREC)
            dh += p * f[:, None]
            if NEED_COEF:
                d_f = tl.sum(p * h.to(tl.float32), 1)
                d_phi = tl.where(tau[None, :] == t, d_f[:, None], d_phi)
        if NEED_COEF:
            at_phi = d_coef + d_coef_at[:, None] + tau[None, :]
            tl.store(at_phi, d_phi.to(d_coef.dtype.element_ty), mask=live[:, None] & (tau < T)[None, :])
    if RELU:
        dh = tl.where(h > 0, dh, 0.0)
    if NEED_SRC:
        if ATOMIC:
            keep = live[:, None] & (inner < N)[None, :]
            tl.atomic_add(d_src + src_row[:, None] * N + inner[None, :], dh, mask=keep, sem="relaxed")
        else:
            store_rows(d_src, listed, live, n0, dh, N, BN)
    if NEED_DST:
        row = pid * BR + tl.arange(0, BR)
        total_dh = tl.sum(tl.reshape(tl.where(live[:, None], dh, 0.0), (BR, W, BN)), 1)
        store_rows(d_dst, row.to(tl.int64), row < total, n0, total_dh, N, BN)


@triton.jit
def coefficients(coef, e, t, live, T, TYPED: tl.constexpr, CT: tl.constexpr):
    """φ of each edge for several τ."""
    if TYPED:
        return (tl.load(coef + e, mask=live, other=-1)[:, None] == t[None, :]).to(CT)
    return tl.load(coef + e[:, None] * T + t[None, :], mask=live[:, None] & (t < T)[None, :], other=0).to(CT)


@triton.jit
def rows_weight(
    dst, src, coef, source, edge, table, grad, arg, d_weight, rows, total, D, S, E, T, splits,
    N: tl.constexpr, M: tl.constexpr, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, RELU: tl.constexpr, HAS_DST: tl.constexpr, HAS_EDGE: tl.constexpr,
    TYPED: tl.constexpr, OWN_COEF: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """A share of dW_τ = Σ_e φ_eτ g_e h_eᵀ for BT values of τ, (splits, T, M, N).

    AHEAD: software pipelining for a program that fills a processor alone. While a product runs, the operands of the
    next tile are loaded, and the addresses of the tile after it.
    """
    t0 = tl.program_id(0) * BT
    share = tl.program_id(1)
    n0 = (tl.program_id(2) % tl.cdiv(N, BN)) * BN
    m0 = (tl.program_id(2) // tl.cdiv(N, BN)) * BM
    t = t0 + tl.arange(0, BT)
    acc = tl.zeros((BT * BN, BM), tl.float32)
    if AHEAD:
        src_row, dst_row, e, now, live, _, _ = edge_rows(
            share, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
        )
        h, b, g, won = load_factors(
            dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX
        )  # fmt: skip
        f = coefficients(coef, e, t, live, T, TYPED, CT)
        src_row, dst_row, e, place, live, _, _ = edge_rows(
            share + splits, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
        )
    # A plain gradient would make the compiler run products into the next iteration, see `finished`.
    ONE_STAGE: tl.constexpr = AHEAD or not (MAX or PREC == "tf32x3")
    for pid in tl.range(share, tl.cdiv(total, BR), splits, num_stages=1 if ONE_STAGE else None):
        if AHEAD:
            next_h, next_b, next_g, next_won = load_factors(
                dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX
            )
            next_f = coefficients(coef, e, t, live, T, TYPED, CT)
            soon = place
            src_row, dst_row, e, place, live, _, _ = edge_rows(
                pid + 2 * splits, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
            )
        else:
            src_row, dst_row, e, now, live, _, _ = edge_rows(
                pid, source, edge, table, rows, total, D, S, E, A, W, BR, HAS_EDGE, OWN_COEF
            )
            h, b, g, won = load_factors(
                dst, src, grad, arg, dst_row, src_row, live, n0, m0, N, M, BN, BM, HAS_DST, MAX
            )  # fmt: skip
            f = coefficients(coef, e, t, live, T, TYPED, CT)
        h, g = finish_factors(h, b, g, won, now[:, None], RELU, HAS_DST, MAX)
        x = tl.reshape(f[:, :, None] * h.to(CT)[:, None, :], (BR * W, BT * BN))
        acc = tl.dot(tl.trans(x), g.to(CT), acc, input_precision=PREC)
        if AHEAD:
            h, b, g, won, f, now = next_h, next_b, next_g, next_won, next_f, soon
    line = tl.arange(0, BT * BN)
    tau = t0 + line // BN
    inner = n0 + line % BN
    column = m0 + tl.arange(0, BM)
    out_at = ((share * T + tau).to(tl.int64)[:, None] * M + column[None, :]) * N + inner[:, None]
    tl.store(d_weight + out_at, acc, mask=((tau < T) & (inner < N))[:, None] & (column < M)[None, :])


@triton.jit
def segment(ptr, nodes, total, BD: tl.constexpr):
    """BD nodes: index over all samples, live mask, sample, and the start and number of their entries."""
    v = tl.program_id(0) * BD + tl.arange(0, BD)
    live = v < total
    start = tl.load(ptr + v % nodes, mask=live, other=0).to(tl.int64)
    count = tl.load(ptr + v % nodes + 1, mask=live, other=0).to(tl.int64) - start
    return v, live, (v // nodes).to(tl.int64), start, count


@triton.jit
def combine_rows(
    partial, place, row_ptr, out, arg, rows, D, total,
    M: tl.constexpr, W: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The first maximum over the rows of each destination; -inf for one without rows."""
    d, live, sample, start, count = segment(row_ptr, D, total, BD)
    column = tl.program_id(1) * BM + tl.arange(0, BM)
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
    store_rows(out, d.to(tl.int64), live, tl.program_id(1) * BM, best, M, BM)
    store_rows(arg, d.to(tl.int64), live, tl.program_id(1) * BM, first, M, BM)


@triton.jit
def segment_sum(
    values, order, ptr, out, length, nodes, total,
    N: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HAS_ORDER: tl.constexpr,
):  # fmt: skip
    """(B, length, N) to (B, nodes, N): the sum of each node's entries, in the order of the list."""
    v, live, sample, start, count = segment(ptr, nodes, total, BD)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BD, BN), tl.float32)
    for r in range(tl.max(count, 0)):
        here = r < count
        at = start + r
        if HAS_ORDER:
            at = tl.load(order + at, mask=here, other=0).to(tl.int64)
        mask = here[:, None] & (column < N)[None, :]
        acc += tl.load(values + (sample * length + at)[:, None] * N + column[None, :], mask=mask, other=0)
    store_rows(out, v.to(tl.int64), live, tl.program_id(1) * BN, acc, N, BN)
