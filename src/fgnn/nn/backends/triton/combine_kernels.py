"""Kernels that combine the aggregates of up to four groups, add a bias and apply ReLU."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_forward(
    x0, x1, x2, x3, bias, empty, y, which, rows, D,
    M: tl.constexpr, P: tl.constexpr, MAX: tl.constexpr, RELU: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_EMPTY: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = σ(max or sum of the parts + bias), zero at empty destinations, and the part that gets the gradient."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    live = (row < rows)[:, None] & (column < M)[None, :]
    at = row[:, None] * M + column[None, :]
    total = tl.load(x0 + at, mask=live, other=0.0).to(tl.float32)
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
        total += tl.load(bias + column, mask=column < M, other=0.0).to(tl.float32)[None, :]
    if RELU:
        winner = tl.where(total <= 0, 255, winner)
        total = tl.where(total <= 0, 0.0, total)
    if HAS_EMPTY:
        alone = tl.load(empty + row % D, mask=row < rows, other=0) != 0
        winner = tl.where(alone[:, None], 255, winner)
        total = tl.where(alone[:, None], 0.0, total)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=live)
    tl.store(which + at, winner.to(tl.uint8), mask=live)


@triton.jit
def combine_backward(
    grad, which, d0, d1, d2, d3, partial, rows, steps,
    M: tl.constexpr, P: tl.constexpr, MAX: tl.constexpr, HAS_BIAS: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradient at each part, and a share of its sum over the rows: (shares, M)."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros((C,), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * R + tl.arange(0, R)
        live = (row < rows)[:, None] & (column < M)[None, :]
        at = row[:, None] * M + column[None, :]
        g = tl.load(grad + at, mask=live, other=0.0)
        w = tl.load(which + at, mask=live, other=255).to(tl.int32)
        g = tl.where(w == 255, 0.0, g)
        if HAS_BIAS:
            total += tl.sum(g.to(tl.float32), 0)
        for k in tl.static_range(P):
            target = d0 if k == 0 else (d1 if k == 1 else (d2 if k == 2 else d3))
            mine = tl.where(w == k, g, 0.0) if MAX else g
            tl.store(target + at, mine.to(target.dtype.element_ty), mask=live)
    if HAS_BIAS:
        tl.store(partial + tl.program_id(0).to(tl.int64) * M + column, total, mask=column < M)
