"""Kernels of a small linear layer on many rows, or of two at once: one pass over the rows each way.

.. math:: y &= \\sigma(x \\Theta^\\top + \\beta), \\qquad \\bar z = \\sigma'(\\cdot)\\, \\bar y \\\\
          \\bar x &= \\bar z \\Theta, \\quad \\bar\\Theta = \\bar z^\\top x, \\quad \\bar\\beta = \\sum \\bar z

Such a layer is limited by memory bandwidth, so x, Θ and β are read in the precision they are stored in and rounded in
registers, instead of being copied to half precision first.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_tile(
    x, weight, bias, out, tile, rows, K: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """BR rows of y, all of its M columns."""
    r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
    k = tl.arange(0, BK)
    o = tl.arange(0, BM)
    xs = tl.load(x + r[:, None] * K + k[None, :], mask=(r < rows)[:, None] & (k < K)[None, :], other=0)
    w = tl.load(weight + o[None, :] * K + k[:, None], mask=(o < M)[None, :] & (k < K)[:, None], other=0)
    y = tl.dot(xs.to(CT), w.to(CT), input_precision=PREC)
    if HAS_BIAS:
        # rounded like the operands, as in a half-precision product
        y += tl.load(bias + o, mask=o < M, other=0).to(CT).to(tl.float32)[None, :]
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    keep = (r < rows)[:, None] & (o < M)[None, :]
    tl.store(out + r[:, None] * M + o[None, :], y.to(out.dtype.element_ty), mask=keep)


@triton.jit
def linear_forward(
    x, weight, bias, out, rows, x2, weight2, out2, rows2,
    K: tl.constexpr, K2: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A tile of y; if K2 > 0, further tiles belong to a second layer, without bias."""
    tile = tl.program_id(0)
    if K2 > 0:
        tiles = tl.cdiv(rows, BR)
        if tile < tiles:
            forward_tile(x, weight, bias, out, tile, rows, K, M, BR, BK, BM, RELU, HAS_BIAS, CT, PREC)
        else:
            forward_tile(x2, weight2, bias, out2, tile - tiles, rows2, K2, M, BR, BK2, BM, RELU, False, CT, PREC)
    else:
        forward_tile(x, weight, bias, out, tile, rows, K, M, BR, BK, BM, RELU, HAS_BIAS, CT, PREC)


@triton.jit
def backward_share(
    x, weight, y, grad, d_x, partial, share, shares, rows, row_stride, column_stride,
    K: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, RELU: tl.constexpr,
    HAS_BIAS: tl.constexpr, NEED_X: tl.constexpr, NEED_WEIGHT: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A share of the rows: the gradient at x, and this share's sums for Θ (M, K) and β (M,) in ``partial``."""
    k = tl.arange(0, BK)
    o = tl.arange(0, BM)
    matrix = (o < M)[:, None] & (k < K)[None, :]
    w = tl.load(weight + o[:, None] * K + k[None, :], mask=matrix, other=0).to(CT)
    d_weight = tl.zeros((BM, BK), tl.float32)
    d_bias = tl.zeros((BM,), tl.float32)
    for tile in range(share, tl.cdiv(rows, BR), shares):
        r = (tile * BR + tl.arange(0, BR)).to(tl.int64)
        live = r < rows
        mask = live[:, None] & (o < M)[None, :]
        g = tl.load(grad + r[:, None] * row_stride + o[None, :] * column_stride, mask=mask, other=0)
        if RELU:
            positive = tl.load(y + r[:, None] * M + o[None, :], mask=mask, other=0) > 0
            g = tl.where(positive, g, tl.zeros_like(g))
        z = g.to(CT)
        inside = live[:, None] & (k < K)[None, :]
        if NEED_X:
            back = tl.dot(z, w, input_precision=PREC)
            tl.store(d_x + r[:, None] * K + k[None, :], back.to(d_x.dtype.element_ty), mask=inside)
        if NEED_WEIGHT:
            xs = tl.load(x + r[:, None] * K + k[None, :], mask=inside, other=0).to(CT)
            d_weight = tl.dot(tl.trans(z), xs, d_weight, input_precision=PREC)
            if HAS_BIAS:
                d_bias += tl.sum(g.to(tl.float32), 0)
    if NEED_WEIGHT:
        tl.store(partial + o[:, None] * K + k[None, :], d_weight, mask=matrix)
        if HAS_BIAS:
            tl.store(partial + M * K + o, d_bias, mask=o < M)


@triton.jit
def linear_backward(
    x, weight, y, grad, d_x, partial, rows, row_stride, column_stride,
    x2, weight2, grad2, d_x2, rows2, row_stride2, column_stride2, shares,
    K: tl.constexpr, K2: tl.constexpr, M: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    BM: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr, NEED_X: tl.constexpr, NEED_X2: tl.constexpr,
    NEED_WEIGHT: tl.constexpr, CT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The gradients of one layer, or of two: programs from ``shares`` on belong to the second.

    A share's sums are one row of ``partial``: Θ and, with HAS_BIAS, β of the first layer, then Θ of the second.
    """
    pid = tl.program_id(0)
    entries = M * K + M * HAS_BIAS
    if K2 > 0:
        if pid < shares:
            mine = partial + pid.to(tl.int64) * (entries + M * K2)
            backward_share(
                x, weight, y, grad, d_x, mine, pid, shares, rows, row_stride, column_stride,
                K, M, BR, BK, BM, RELU, HAS_BIAS, NEED_X, NEED_WEIGHT, CT, PREC,
            )  # fmt: skip
        else:
            mine = partial + (pid - shares).to(tl.int64) * (entries + M * K2) + entries
            backward_share(
                x2, weight2, y, grad2, d_x2, mine, pid - shares, shares, rows2, row_stride2, column_stride2,
                K2, M, BR, BK2, BM, False, False, NEED_X2, NEED_WEIGHT, CT, PREC,
            )  # fmt: skip
    else:
        mine = partial + pid.to(tl.int64) * entries
        backward_share(
            x, weight, y, grad, d_x, mine, pid, shares, rows, row_stride, column_stride,
            K, M, BR, BK, BM, RELU, HAS_BIAS, NEED_X, NEED_WEIGHT, CT, PREC,
        )  # fmt: skip
