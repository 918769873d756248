"""Kernels of a two-layer network on the features of each edge; the hidden layer never reaches memory."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import larger


@triton.jit
def hidden_before(t, w1, b1, e, live, D: tl.constexpr, H: tl.constexpr, BD: tl.constexpr):
    """The edges' features (BE, BD), and W₁ t + b₁ (BE, H), both in float32.

    Its sign decides which units pass a gradient, so it is computed to that precision; the product is a small one.
    """
    d = tl.arange(0, BD)
    j = tl.arange(0, H)
    x = tl.load(t + e[:, None].to(tl.int64) * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0)
    w = tl.load(w1 + j[None, :] * D + d[:, None], mask=(d < D)[:, None], other=0)
    x = x.to(tl.float32)
    before = tl.dot(x, w.to(tl.float32), input_precision="tf32x3") + tl.load(b1 + j).to(tl.float32)[None, :]
    return x, before


@triton.jit
def edge_mlp_forward(
    t, w1, b1, w2, b2, out, edges, T,
    D: tl.constexpr, H: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """φ = W₂ ReLU(W₁ t + b₁) + b₂ of a tile of edges."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    live = e < edges
    _, before = hidden_before(t, w1, b1, e, live, D, H, BD)
    h = larger(before, 0.0)
    j = tl.arange(0, H)
    k = tl.arange(0, BT)
    w = tl.load(w2 + k[None, :] * H + j[:, None], mask=(k < T)[None, :], other=0).to(tl.float32)
    y = tl.dot(h, w, input_precision=PREC) + tl.load(b2 + k, mask=k < T, other=0).to(tl.float32)[None, :]
    at = e[:, None].to(tl.int64) * T + k[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=live[:, None] & (k < T)[None, :])


@triton.jit
def edge_mlp_backward(
    t, w1, b1, w2, grad, d_w1, d_b1, d_w2, d_b2, edges, T, by_edge, by_term, shares, by_share,
    D: tl.constexpr, H: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """A share of the gradients at both layers, which begin ``by_share`` entries apart; recomputes the hidden layer."""
    share = tl.program_id(0)
    j = tl.arange(0, H)
    k = tl.arange(0, BT)
    d = tl.arange(0, BD)
    w = tl.load(w2 + k[:, None] * H + j[None, :], mask=(k < T)[:, None], other=0).to(tl.float32)
    sum_w1 = tl.zeros((BD, H), tl.float32)
    sum_b1 = tl.zeros((H,), tl.float32)
    sum_w2 = tl.zeros((BT, H), tl.float32)
    sum_b2 = tl.zeros((BT,), tl.float32)
    for block in range(share, tl.cdiv(edges, BE), shares):
        e = block * BE + tl.arange(0, BE)
        live = e < edges
        x, before = hidden_before(t, w1, b1, e, live, D, H, BD)
        h = larger(before, 0.0)
        at = e[:, None].to(tl.int64) * by_edge + k[None, :].to(tl.int64) * by_term
        g = tl.load(grad + at, mask=live[:, None] & (k < T)[None, :], other=0).to(tl.float32)
        back = tl.where(before > 0, tl.dot(g, w, input_precision=PREC), 0.0)
        sum_w2 = tl.dot(tl.trans(g), h, sum_w2, input_precision=PREC)
        sum_w1 = tl.dot(tl.trans(x), back, sum_w1, input_precision=PREC)
        sum_b2 += tl.sum(g, 0)
        sum_b1 += tl.sum(back, 0)
    begin = share * by_share
    tl.store(d_w1 + begin + j[None, :] * D + d[:, None], sum_w1, mask=(d < D)[:, None])
    tl.store(d_b1 + begin + j, sum_b1)
    tl.store(d_w2 + begin + k[:, None] * H + j[None, :], sum_w2, mask=(k < T)[:, None])
    tl.store(d_b2 + begin + k, sum_b2, mask=k < T)
