r"""Kernels of Q at the positions of a scope, for up to four groups at once; only φ and Q reach memory.

.. math:: \varphi(t_a) = W_2 \mathrm{ReLU}(W_1 t_a + b_1) + b_2, \qquad Q(t_a) = \sum_\tau \varphi_\tau(t_a)\, W_\tau
"""

# mypy: ignore-errors
# ruff: noqa: SIM102 (the outer condition is known to the compiler)
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_mlp_kernels import hidden_before
from fgnn.nn.backends.triton.edge_tile import larger
from fgnn.nn.backends.triton.group_choice import pick


@triton.jit
def rows_of(x, count, width, BR: tl.constexpr, BC: tl.constexpr):
    """x (count, width) in float32, zero beyond."""
    r = tl.arange(0, BR)
    c = tl.arange(0, BC)
    inside = (r < count)[:, None] & (c < width)[None, :]
    return tl.load(x + r[:, None] * width + c[None, :], mask=inside, other=0).to(tl.float32)


@triton.jit
def columns_of(x, count, C, c, BR: tl.constexpr):
    """Some columns of x (count, C) in float32, zero beyond."""
    r = tl.arange(0, BR)
    inside = (r < count)[:, None] & (c < C)[None, :]
    return tl.load(x + r[:, None] * C + c[None, :], mask=inside, other=0).to(tl.float32)


@triton.jit
def forward_block(
    t, w1, b1, w2, b2, weight, phi, q, A, D: tl.constexpr, T, C, H: tl.constexpr, BA: tl.constexpr, BD: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A block of columns of Q (A, C); the first block also writes φ (A, T)."""
    a = tl.arange(0, BA)
    k = tl.arange(0, BT)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    _, before = hidden_before(t, w1, b1, a, a < A, D, H, BD)
    j = tl.arange(0, H)
    w = tl.load(w2 + k[None, :] * H + j[:, None], mask=(k < T)[None, :], other=0).to(tl.float32)
    y = tl.dot(larger(before, 0.0), w, input_precision=PREC)
    y += tl.load(b2 + k, mask=k < T, other=0).to(tl.float32)[None, :]
    if tl.program_id(0) == 0:
        inside = (a < A)[:, None] & (k < T)[None, :]
        tl.store(phi + a[:, None] * T + k[None, :], y.to(phi.dtype.element_ty), mask=inside)
    matrix = tl.dot(y, columns_of(weight, T, C, c, BT), input_precision=PREC)
    tl.store(q + a[:, None] * C + c[None, :], matrix.to(q.dtype.element_ty), mask=(a < A)[:, None] & (c < C)[None, :])


@triton.jit
def positions_forward(
    t0, w10, b10, w20, b20, weight0, phi0, q0, A0, t1, w11, b11, w21, b21, weight1, phi1, q1, A1,
    t2, w12, b12, w22, b22, weight2, phi2, q2, A2, t3, w13, b13, w23, b23, weight3, phi3, q3, A3, T, C,
    D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, D3: tl.constexpr, H: tl.constexpr, BA: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A block of columns of one group's Q; a group with D = 0 is absent."""
    group = tl.program_id(1)
    if group == 0:
        forward_block(t0, w10, b10, w20, b20, weight0, phi0, q0, A0, D0, T, C, H, BA, BD, BT, BC, PREC)
    if D1 > 0:
        if group == 1:
            forward_block(t1, w11, b11, w21, b21, weight1, phi1, q1, A1, D1, T, C, H, BA, BD, BT, BC, PREC)
    if D2 > 0:
        if group == 2:
            forward_block(t2, w12, b12, w22, b22, weight2, phi2, q2, A2, D2, T, C, H, BA, BD, BT, BC, PREC)
    if D3 > 0:
        if group == 3:
            forward_block(t3, w13, b13, w23, b23, weight3, phi3, q3, A3, D3, T, C, H, BA, BD, BT, BC, PREC)


@triton.jit
def positions_backward(
    q0, splits0, weight0, phi0, d_weight0, d_phi0, A0, q1, splits1, weight1, phi1, d_weight1, d_phi1, A1,
    q2, splits2, weight2, phi2, d_weight2, d_phi2, A2, q3, splits3, weight3, phi3, d_weight3, d_phi3, A3, T, C,
    G: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient at a block of columns of one group's W (T, C), and this block's share of that at φ (blocks, A, T).

    The gradient at Q is given by shares (splits, A, C), of which BS are loaded at once. Positions are few: a product
    of matrices would be padded to several times its size.
    """
    group = tl.program_id(1)
    A = pick(group, A0, A1, A2, A3, G)
    splits = pick(group, splits0, splits1, splits2, splits3, G)
    phi = pick(group, phi0, phi1, phi2, phi3, G)
    d_phi = pick(group, d_phi0, d_phi1, d_phi2, d_phi3, G)
    s = tl.arange(0, BS)[:, None]
    k = tl.arange(0, BT)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    weight = columns_of(pick(group, weight0, weight1, weight2, weight3, G), T, C, c, BT)
    d_w = tl.zeros((BT, BC), tl.float32)
    for a in range(A):
        at = pick(group, q0, q1, q2, q3, G) + a * C + c[None, :]
        shares = tl.zeros((BS, BC), tl.float32)
        for first in range(0, splits, BS):
            inside = (first + s < splits) & (c < C)[None, :]
            shares += tl.load(at + (first + s) * A * C, mask=inside, other=0)
        g = tl.sum(shares, 0)
        y = tl.load(phi + a * T + k, mask=k < T, other=0).to(tl.float32)
        d_w += y[:, None] * g[None, :]
        tl.store(d_phi + (tl.program_id(0) * A + a) * T + k, tl.sum(weight * g[None, :], 1), mask=k < T)
    d_weight = pick(group, d_weight0, d_weight1, d_weight2, d_weight3, G)
    tl.store(d_weight + k[:, None] * C + c[None, :], d_w, mask=(k < T)[:, None] & (c < C)[None, :])


@triton.jit
def backward_net(
    t, w1, b1, w2, d_phi, d_w1, d_b1, d_w2, d_b2, A, blocks, T, D: tl.constexpr, H: tl.constexpr, BA: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The gradients at both layers of φ, from shares (blocks, A, T) of the one at φ."""
    a = tl.arange(0, BA)
    d = tl.arange(0, BD)
    j = tl.arange(0, H)
    k = tl.arange(0, BT)
    g = tl.zeros((BA, BT), tl.float32)
    for block in range(blocks):
        g += rows_of(d_phi + block * A * T, A, T, BA, BT)
    x, before = hidden_before(t, w1, b1, a, a < A, D, H, BD)
    h = larger(before, 0.0)
    w = tl.load(w2 + k[:, None] * H + j[None, :], mask=(k < T)[:, None], other=0).to(tl.float32)
    back = tl.where(before > 0, tl.dot(g, w, input_precision=PREC), 0.0)
    tl.store(d_w1 + j[None, :] * D + d[:, None], tl.dot(tl.trans(x), back, input_precision=PREC), mask=(d < D)[:, None])
    tl.store(d_b1 + j, tl.sum(back, 0))
    tl.store(d_w2 + k[:, None] * H + j[None, :], tl.dot(tl.trans(g), h, input_precision=PREC), mask=(k < T)[:, None])
    tl.store(d_b2 + k, tl.sum(g, 0), mask=k < T)


@triton.jit
def sum_columns(shares, splits, width, total, c, BS: tl.constexpr, BC: tl.constexpr):
    """Some columns of the sum of shares (splits, width) over the first axis."""
    s = tl.arange(0, BS)[:, None]
    found = tl.zeros((BS, BC), tl.float32)
    for first in range(0, splits, BS):
        inside = (first + s < splits) & (c < width)[None, :]
        found += tl.load(shares + (first + s) * width + c[None, :], mask=inside, other=0)
    tl.store(total + c, tl.sum(found, 0), mask=c < width)


@triton.jit
def networks_backward(
    t0, w10, b10, w20, phi0, p0, r0, s0, u0, A0, t1, w11, b11, w21, phi1, p1, r1, s1, u1, A1,
    t2, w12, b12, w22, phi2, p2, r2, s2, u2, A2, t3, w13, b13, w23, phi3, p3, r3, s3, u3, A3, blocks, T,
    others, splits, width, total,
    D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, D3: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    BS: tl.constexpr, BA: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The gradients at the networks of G groups, one program each; a group with D = 0 is absent.

    The other programs sum ``others`` (splits, width), shares of other gradients.
    """
    group = tl.program_id(0)
    if others is not None:
        if group >= G:
            sum_columns(others, splits, width, total, (group - G) * BC + tl.arange(0, BC), BS, BC)
    if group == 0:
        backward_net(t0, w10, b10, w20, phi0, p0, r0, s0, u0, A0, blocks, T, D0, H, BA, BD, BT, PREC)
    if D1 > 0:
        if group == 1:
            backward_net(t1, w11, b11, w21, phi1, p1, r1, s1, u1, A1, blocks, T, D1, H, BA, BD, BT, PREC)
    if D2 > 0:
        if group == 2:
            backward_net(t2, w12, b12, w22, phi2, p2, r2, s2, u2, A2, blocks, T, D2, H, BA, BD, BT, PREC)
    if D3 > 0:
        if group == 3:
            backward_net(t3, w13, b13, w23, phi3, p3, r3, s3, u3, A3, blocks, T, D3, H, BA, BD, BT, PREC)
