"""Kernels of batch normalisation followed by ReLU: column sums in shares, then one pass over the rows.

Tiles have R rows and C columns. Shares are added up in a fixed order, without atomics, so results are deterministic.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import larger


@triton.jit
def tile_of(start, rows, column, width):
    """Offsets of the entries of some rows, and the live mask."""
    row = start.to(tl.int64)
    live = (row < rows)[:, None] & (column < width)[None, :]
    return row[:, None] * width + column[None, :], live


@triton.jit
def store_share(partial, first, second, column, width):
    """Write one share's two rows of column sums."""
    out = partial + tl.program_id(0) * 2 * width + column
    tl.store(out, tl.sum(first, 0), mask=column < width)
    tl.store(out + width, tl.sum(second, 0), mask=column < width)


@triton.jit
def statistics(x, partial, rows, width, steps, R: tl.constexpr, C: tl.constexpr):
    """One share of Σ (x - x₀) and Σ (x - x₀)², with x₀ the first row for precision in columns far from zero."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    origin = tl.load(x + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros((R, C), tl.float32)
    square = tl.zeros((R, C), tl.float32)
    for step in tl.range(0, steps, num_stages=3):  # prefetch the next tiles
        start = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        at, live = tile_of(start, rows, column, width)
        v = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        v = tl.where(live, v - origin[None, :], 0.0)
        total += v
        square += v * v
    store_share(partial, total, square, column, width)


@triton.jit
def add_shares(partial, column, inside, width, shares, S: tl.constexpr, C: tl.constexpr):
    """The two rows of column sums over all shares."""
    first = tl.zeros((S, C), tl.float32)
    second = tl.zeros((S, C), tl.float32)
    for s0 in range(0, shares, S):
        share = s0 + tl.arange(0, S)
        live = (share < shares)[:, None] & inside[None, :]
        at = partial + share[:, None] * 2 * width + column[None, :]
        first += tl.load(at, mask=live, other=0.0)
        second += tl.load(at + width, mask=live, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def finish_statistics(
    x, partial, bias, mean, rstd, running_mean, running_var, tracked, rows, width, shares, eps, momentum,
    HAS_BIAS: tl.constexpr, RUNNING: tl.constexpr, TRACKED: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of each column, the running statistics, and the number of batches they are of.

    The bias affects only the running mean.
    """
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < width
    total, square = add_shares(partial, column, inside, width, shares, S, C)
    offset = total / rows
    variance = larger(square / rows - offset * offset, 0.0)
    centre = tl.load(x + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(mean + column, centre, mask=inside)
    tl.store(rstd + column, 1.0 / tl.sqrt(variance + eps), mask=inside)
    if RUNNING:
        if HAS_BIAS:
            centre += tl.load(bias + column, mask=inside, other=0.0)
        old = tl.load(running_mean + column, mask=inside, other=0.0)
        tl.store(running_mean + column, old + momentum * (centre - old), mask=inside)
        old = tl.load(running_var + column, mask=inside, other=0.0)
        unbiased = variance * (rows / (rows - 1.0))
        tl.store(running_var + column, old + momentum * (unbiased - old), mask=inside)
    if TRACKED:
        first = tl.program_id(0) == 0
        tl.store(tracked, tl.load(tracked, mask=first) + 1, mask=first)


@triton.jit
def columns_of(mean, rstd, weight, beta, column, inside):
    """The mean, 1 / deviation, scale and shift of each column, shared by all rows."""
    return (
        tl.load(mean + column, mask=inside, other=0.0)[None, :],
        tl.load(rstd + column, mask=inside, other=0.0)[None, :],
        tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :],
        tl.load(beta + column, mask=inside, other=0.0).to(tl.float32)[None, :],
    )


@triton.jit
def apply(
    x, mean, rstd, weight, beta, residual, y, rows, width,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = σ((x - mean) / deviation · weight + beta) + residual."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    centre, scale, w, b = columns_of(mean, rstd, weight, beta, column, column < width)
    at, live = tile_of(tl.program_id(0) * R + tl.arange(0, R), rows, column, width)
    v = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    v = (v - centre) * scale * w + b
    if RELU:
        v = larger(v, 0.0)
    if HAS_RESIDUAL:
        # rounded first, as with two separate operations
        v = v.to(y.dtype.element_ty).to(tl.float32) + tl.load(residual + at, mask=live, other=0.0).to(tl.float32)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=live)


@triton.jit
def upstream_of(dy, x, at, live, centre, scale, w, b, RELU: tl.constexpr):
    """The gradient before the ReLU, and the normalised x."""
    g = tl.load(dy + at, mask=live, other=0.0).to(tl.float32)
    z = (tl.load(x + at, mask=live, other=0.0).to(tl.float32) - centre) * scale
    if RELU:
        g = tl.where(z * w + b > 0.0, g, 0.0)
    return g, z


@triton.jit
def gradient_sums(
    dy, x, mean, rstd, weight, beta, partial, rows, width, steps, RELU: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """One share of Σ g and Σ g z: the gradients at beta and weight."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    centre, scale, w, b = columns_of(mean, rstd, weight, beta, column, column < width)
    first = tl.zeros((R, C), tl.float32)
    second = tl.zeros((R, C), tl.float32)
    for step in tl.range(0, steps, num_stages=3):  # prefetch the next tiles
        start = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        at, live = tile_of(start, rows, column, width)
        g, z = upstream_of(dy, x, at, live, centre, scale, w, b, RELU)
        first += g
        second += g * z
    store_share(partial, first, second, column, width)


@triton.jit
def finish_gradient_sums(partial, sums, width, shares, S: tl.constexpr, C: tl.constexpr):
    """Both sums over all shares, and zeros, (3, width)."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < width
    first, second = add_shares(partial, column, inside, width, shares, S, C)
    tl.store(sums + column, first, mask=inside)
    tl.store(sums + width + column, second, mask=inside)
    tl.store(sums + 2 * width + column, tl.zeros_like(first), mask=inside)


@triton.jit
def apply_gradient(
    dy, x, mean, rstd, weight, beta, sums, dx, rows, width, RELU: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """dx = weight / deviation · (g - (Σ g + z Σ g z) / rows)."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    inside = column < width
    centre, scale, w, b = columns_of(mean, rstd, weight, beta, column, inside)
    first = tl.load(sums + column, mask=inside, other=0.0)[None, :]
    second = tl.load(sums + width + column, mask=inside, other=0.0)[None, :]
    at, live = tile_of(tl.program_id(0) * R + tl.arange(0, R), rows, column, width)
    g, z = upstream_of(dy, x, at, live, centre, scale, w, b, RELU)
    v = w * scale * (g - (first + z * second) / rows)
    tl.store(dx + at, v.to(dx.dtype.element_ty), mask=live)
