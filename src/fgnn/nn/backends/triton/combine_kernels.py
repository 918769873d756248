"""Kernels that combine the aggregates of up to four groups, or finish each of them: add a bias and apply ReLU."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.group_choice import group_of, pick


@triton.jit
def combine_forward(
    x0, x1, x2, x3, bias0, bias1, bias2, bias3, empty0, empty1, empty2, empty3, y0, y1, y2, y3,
    which0, which1, which2, which3, rows0, rows1, rows2, rows3, D0, D1, D2, D3,
    M: tl.constexpr, G: tl.constexpr, P: tl.constexpr, MAX: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_EMPTY: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = σ(max or sum of the parts + bias), zero at empty destinations, and the part that gets the gradient.

    There are G results of one part each, or one result of P parts.
    """
    e, tile = group_of(tl.program_id(0), tl.cdiv(rows0, R), tl.cdiv(rows1, R) if G > 2 else 0,
                       tl.cdiv(rows2, R) if G > 3 else 0, G)  # fmt: skip
    rows = pick(e, rows0, rows1, rows2, rows3, G)
    y = pick(e, y0, y1, y2, y3, G)
    which = pick(e, which0, which1, which2, which3, G)
    row = tile.to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    live = (row < rows)[:, None] & (column < M)[None, :]
    at = row[:, None] * M + column[None, :]
    total = tl.load(pick(e, x0, x1, x2, x3, G) + at, mask=live, other=0.0).to(tl.float32)
    winner = tl.zeros((R, C), tl.int32)
    for k in tl.static_range(1, P):
        source = x1 if k == 1 else (x2 if k == 2 else x3)
        part = tl.load(source + at, mask=live, other=0.0).to(tl.float32)
        if MAX:
            wins = (part > total) | (part != part)
            total = tl.where(wins, part, total)
            winner = tl.where(wins, k, winner)
        else:
            total += part
    if HAS_BIAS:
        bias = pick(e, bias0, bias1, bias2, bias3, G)
        total += tl.load(bias + column, mask=column < M, other=0.0).to(tl.float32)[None, :]
    if RELU:
        winner = tl.where(total <= 0, 255, winner)
        total = tl.where(total <= 0, 0.0, total)
    if HAS_EMPTY:
        empty = pick(e, empty0, empty1, empty2, empty3, G)
        alone = tl.load(empty + row % pick(e, D0, D1, D2, D3, G), mask=row < rows, other=0) != 0
        winner = tl.where(alone[:, None], 255, winner)
        total = tl.where(alone[:, None], 0.0, total)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=live)
    tl.store(which + at, winner.to(tl.uint8), mask=live)


@triton.jit
def combine_backward(
    grad0, grad1, grad2, grad3, which0, which1, which2, which3, d0, d1, d2, d3, rows0, rows1, rows2, rows3,
    partial, steps,
    M: tl.constexpr, G: tl.constexpr, P: tl.constexpr, MAX: tl.constexpr, HAS_BIAS: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """The gradient at each part, and a share of its sum over the rows: (shares, G, M)."""
    e = tl.program_id(0) % G
    share = (tl.program_id(0) // G).to(tl.int64)
    rows = pick(e, rows0, rows1, rows2, rows3, G)
    grad = pick(e, grad0, grad1, grad2, grad3, G)
    which = pick(e, which0, which1, which2, which3, G)
    column = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros((C,), tl.float32)
    for step in range(steps):
        row = (share * steps + step) * R + tl.arange(0, R)
        live = (row < rows)[:, None] & (column < M)[None, :]
        at = row[:, None] * M + column[None, :]
        g = tl.load(grad + at, mask=live, other=0.0)
        w = tl.load(which + at, mask=live, other=255).to(tl.int32)
        g = tl.where(w == 255, 0.0, g)
        if HAS_BIAS:
            total += tl.sum(g.to(tl.float32), 0)
        for k in tl.static_range(P):
            target = pick(e, d0, d1, d2, d3, G) if k == 0 else (d1 if k == 1 else (d2 if k == 2 else d3))
            mine = tl.where(w == k, g, 0.0) if MAX else g
            tl.store(target + at, mine.to(target.dtype.element_ty), mask=live)
    if HAS_BIAS:
        tl.store(partial + tl.program_id(0).to(tl.int64) * M + column, total, mask=column < M)
