"""Kernels of small linear layers on many rows, up to four at once: one pass over the rows each way.

.. math:: y &= \\sigma(x \\Theta^\\top + \\beta), \\qquad \\bar z = \\sigma'(\\cdot)\\, \\bar y \\\\
          \\bar x &= \\bar z \\Theta, \\quad \\bar\\Theta = \\bar z^\\top x, \\quad \\bar\\beta = \\sum \\bar z

Such a layer is limited by memory bandwidth, so x, Θ and β are read in the precision they are stored in and rounded in
registers, instead of being copied to half precision first.
"""

# mypy: ignore-errors
# ruff: noqa: SIM102 (the outer condition is known to the compiler)
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_share(
    x, weight, bias, out, share, shares, rows, K: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A share of the tiles of y, BR rows each. Θ is read once; the next x is on its way while a tile is computed."""
    k = tl.arange(0, BK)
    o = tl.arange(0, BM)
    w = tl.load(weight + o[None, :] * K + k[:, None], mask=(o < M)[None, :] & (k < K)[:, None], other=0).to(CT)
    if bias is not None:
        # rounded like the operands, as in a half-precision product
        b = tl.load(bias + o, mask=o < M, other=0).to(CT).to(tl.float32)
    for tile in range(share, tl.cdiv(rows, BR), shares):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        xs = tl.load(x + r[:, None] * K + k[None, :], mask=(r < rows)[:, None] & (k < K)[None, :], other=0)
        y = tl.dot(xs.to(CT), w, input_precision=PREC)
        if bias is not None:
            y += b[None, :]
        if RELU:
            y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
        keep = (r < rows)[:, None] & (o < M)[None, :]
        tl.store(out + r[:, None] * M + o[None, :], y.to(out.dtype.element_ty), mask=keep)


@triton.jit
def linear_forward(
    x0, w0, b0, y0, rows0, x1, w1, b1, y1, rows1, x2, w2, b2, y2, rows2, x3, w3, b3, y3, rows3, shares,
    K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr, BK0: tl.constexpr, BK1: tl.constexpr,
    BK2: tl.constexpr, BK3: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr, RELU: tl.constexpr,
    CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Up to four layers; each has ``shares`` programs. A layer with K = 0 is absent."""
    layer = tl.program_id(0) // shares
    share = tl.program_id(0) % shares
    if layer == 0:
        forward_share(x0, w0, b0, y0, share, shares, rows0, K0, M, BR, BK0, BM, RELU, CT, PREC)
    if K1 > 0:
        if layer == 1:
            forward_share(x1, w1, b1, y1, share, shares, rows1, K1, M, BR, BK1, BM, RELU, CT, PREC)
    if K2 > 0:
        if layer == 2:
            forward_share(x2, w2, b2, y2, share, shares, rows2, K2, M, BR, BK2, BM, RELU, CT, PREC)
    if K3 > 0:
        if layer == 3:
            forward_share(x3, w3, b3, y3, share, shares, rows3, K3, M, BR, BK3, BM, RELU, CT, PREC)


@triton.jit
def backward_share(
    x, weight, y, grad, d_x, partial, share, shares, rows,
    K: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, HAS_BIAS: tl.constexpr,
    NEED_WEIGHT: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A share of the rows: the gradient at x, and this share's sums for Θ (M, K) and β (M,) in ``partial``."""
    k = tl.arange(0, BK)
    o = tl.arange(0, BM)
    matrix = (o < M)[:, None] & (k < K)[None, :]
    w = tl.load(weight + o[:, None] * K + k[None, :], mask=matrix, other=0).to(CT)
    d_weight = tl.zeros((BM, BK), tl.float32)
    # The sum for β is a product too: a sum over the rows of a tile would pass through shared memory for every tile.
    ones = tl.full((BR, 16), 1.0, tl.float32).to(CT)
    d_bias = tl.zeros((BM, 16), tl.float32)
    for tile in range(share, tl.cdiv(rows, BR), shares):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        live = r < rows
        at = r[:, None] * M + o[None, :]
        mask = live[:, None] & (o < M)[None, :]
        g = tl.load(grad + at, mask=mask, other=0)
        if y is not None:
            g = tl.where(tl.load(y + at, mask=mask, other=0) > 0, g, tl.zeros_like(g))
        z = g.to(CT)
        inside = live[:, None] & (k < K)[None, :]
        if NEED_WEIGHT:
            xs = tl.load(x + r[:, None] * K + k[None, :], mask=inside, other=0).to(CT)
            d_weight = tl.dot(tl.trans(z), xs, d_weight, input_precision=PREC)
            if HAS_BIAS:
                d_bias = tl.dot(tl.trans(z), ones, d_bias, input_precision=PREC)
        if d_x is not None:
            back = tl.dot(z, w, input_precision=PREC)
            tl.store(d_x + r[:, None] * K + k[None, :], back.to(d_x.dtype.element_ty), mask=inside)
    if NEED_WEIGHT:
        tl.store(partial + o[:, None] * K + k[None, :], d_weight, mask=matrix)
        if HAS_BIAS:
            column = tl.where(tl.arange(0, 16)[None, :] == 0, d_bias, 0.0)
            tl.store(partial + M * K + o, tl.sum(column, 1), mask=o < M)


@triton.jit
def linear_backward(
    x0, w0, y0, g0, d0, rows0, x1, w1, y1, g1, d1, rows1, x2, w2, y2, g2, d2, rows2, x3, w3, y3, g3, d3, rows3,
    partial, shares, entries,
    K0: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr, K3: tl.constexpr, BK0: tl.constexpr, BK1: tl.constexpr,
    BK2: tl.constexpr, BK3: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr, BIASES: tl.constexpr,
    AT1: tl.constexpr, AT2: tl.constexpr, AT3: tl.constexpr, NEED_WEIGHT: tl.constexpr, CT: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """The gradients of up to four layers; each has ``shares`` programs, and y if it ends with a ReLU.

    A share's sums are one row of ``partial``, where those of layer j begin at ATj: Θ and, if bit j of BIASES is set, β.
    """
    layer = tl.program_id(0) // shares
    share = tl.program_id(0) % shares
    mine = partial + share.to(tl.int64) * entries
    if layer == 0:
        backward_share(
            x0, w0, y0, g0, d0, mine, share, shares, rows0, K0, M, BR, BK0, BM, BIASES & 1, NEED_WEIGHT, CT, PREC
        )
    if K1 > 0:
        if layer == 1:
            backward_share(
                x1, w1, y1, g1, d1, mine + AT1, share, shares, rows1, K1, M, BR, BK1, BM, BIASES & 2, NEED_WEIGHT, CT,
                PREC,
            )  # fmt: skip
    if K2 > 0:
        if layer == 2:
            backward_share(
                x2, w2, y2, g2, d2, mine + AT2, share, shares, rows2, K2, M, BR, BK2, BM, BIASES & 4, NEED_WEIGHT, CT,
                PREC,
            )  # fmt: skip
    if K3 > 0:
        if layer == 3:
            backward_share(
                x3, w3, y3, g3, d3, mine + AT3, share, shares, rows3, K3, M, BR, BK3, BM, BIASES & 8, NEED_WEIGHT, CT,
                PREC,
            )  # fmt: skip
