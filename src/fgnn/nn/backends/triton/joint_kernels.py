"""Kernels for sums of shares and for sums of two tensors, several in one launch."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_tile(x, y, rows, columns, tile, R: tl.constexpr, C: tl.constexpr):
    """C columns of y = Σ_r x_r, if there are so many; the number of the tile for the next sum."""
    tiles = tl.cdiv(columns, C)
    if (tile >= 0) & (tile < tiles):
        c = tile * C + tl.arange(0, C)
        total = tl.zeros((R, C), tl.float32)
        for begin in range(0, rows, R):
            r = begin + tl.arange(0, R)
            at = r[:, None].to(tl.int64) * columns + c[None, :]
            total += tl.load(x + at, mask=(r < rows)[:, None] & (c < columns)[None, :], other=0)
        tl.store(y + c, tl.sum(total, 0), mask=c < columns)
    return tile - tiles


@triton.jit(do_not_specialize=[f"rows{k}" for k in range(8)])
def sum_shares(
    x0, y0, rows0, columns0, x1, y1, rows1, columns1, x2, y2, rows2, columns2, x3, y3, rows3, columns3,
    x4, y4, rows4, columns4, x5, y5, rows5, columns5, x6, y6, rows6, columns6, x7, y7, rows7, columns7,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Up to eight sums; a program computes C columns of one. Those without columns are absent."""
    tile = sum_tile(x0, y0, rows0, columns0, tl.program_id(0), R, C)
    tile = sum_tile(x1, y1, rows1, columns1, tile, R, C)
    tile = sum_tile(x2, y2, rows2, columns2, tile, R, C)
    tile = sum_tile(x3, y3, rows3, columns3, tile, R, C)
    tile = sum_tile(x4, y4, rows4, columns4, tile, R, C)
    tile = sum_tile(x5, y5, rows5, columns5, tile, R, C)
    tile = sum_tile(x6, y6, rows6, columns6, tile, R, C)
    sum_tile(x7, y7, rows7, columns7, tile, R, C)


@triton.jit
def add_tile(a, b, y, count, tile, B: tl.constexpr):
    """B entries of y = a + b, if there are so many; the number of the tile for the next sum."""
    tiles = tl.cdiv(count, B)
    if (tile >= 0) & (tile < tiles):
        i = tile * B + tl.arange(0, B)
        total = tl.load(a + i, mask=i < count).to(tl.float32) + tl.load(b + i, mask=i < count).to(tl.float32)
        tl.store(y + i, total.to(y.dtype.element_ty), mask=i < count)
    return tile - tiles


@triton.jit
def add_pairs(
    a0, b0, y0, count0, a1, b1, y1, count1, a2, b2, y2, count2, a3, b3, y3, count3, B: tl.constexpr,
):  # fmt: skip
    """Up to four sums of two tensors; a program computes B entries of one. Those without entries are absent."""
    tile = add_tile(a0, b0, y0, count0, tl.program_id(0), B)
    tile = add_tile(a1, b1, y1, count1, tile, B)
    tile = add_tile(a2, b2, y2, count2, tile, B)
    add_tile(a3, b3, y3, count3, tile, B)
