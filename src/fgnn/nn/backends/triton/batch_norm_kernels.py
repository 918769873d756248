"""Kernels of batch normalisation followed by ReLU: column sums in shares, then one pass over the rows.

A launch serves G jobs of the same width, up to four. Tiles have R rows and C columns. The program that finishes last
adds up the shares of its columns, in a fixed order, so results are deterministic. Statistics are (G, 2, width): means
and 1 / deviations.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl

from fgnn.nn.backends.triton.edge_tile import larger
from fgnn.nn.backends.triton.group_choice import group_of, pick


@triton.jit
def tile_of(start, rows, column, width):
    """Offsets of the entries of some rows, and the live mask."""
    row = start.to(tl.int64)
    live = (row < rows)[:, None] & (column < width)[None, :]
    return row[:, None] * width + column[None, :], live


@triton.jit
def job_of(rows0, rows1, rows2, G: tl.constexpr, R: tl.constexpr):
    """The job of a program over all tiles, and its tile there."""
    return group_of(tl.program_id(0), tl.cdiv(rows0, R), tl.cdiv(rows1, R) if G > 2 else 0,
                    tl.cdiv(rows2, R) if G > 3 else 0, G)  # fmt: skip


@triton.jit
def store_share(partial, first, second, column, width, shares, done, G: tl.constexpr):
    """Write one share's two rows of column sums; whether all shares of this job and these columns are written now.

    ``done`` counts them.
    """
    out = partial + tl.program_id(0) * 2 * width + column
    tl.store(out, tl.sum(first, 0), mask=column < width)
    tl.store(out + width, tl.sum(second, 0), mask=column < width)
    tl.debug_barrier()  # all threads have written before one of them counts
    done += tl.program_id(0) % G * tl.num_programs(1) + tl.program_id(1)
    return tl.atomic_add(done, 1, sem="acq_rel") == shares - 1


@triton.jit
def add_shares(partial, column, width, shares, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """The two rows of column sums over all shares of this program's job, which other programs wrote."""
    first = tl.zeros((R, C), tl.float32)
    second = tl.zeros((R, C), tl.float32)
    for begin in range(0, shares, R):
        share = begin + tl.arange(0, R)
        live = (share < shares)[:, None] & (column < width)[None, :]
        at = partial + (share * G + tl.program_id(0) % G)[:, None] * 2 * width + column[None, :]
        first += tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
        second += tl.load(at + width, mask=live, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def origin_of(x, rows, column, width):
    """x₀, the mean of up to 16 first rows: squares of distances from it keep their digits far from zero."""
    at, live = tile_of(tl.arange(0, 16), rows, column, width)
    first = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    return tl.sum(first, 0) / tl.minimum(rows, 16)


@triton.jit
def statistics(
    x0, x1, x2, x3, bias0, bias1, bias2, bias3, mean0, mean1, mean2, mean3, var0, var1, var2, var3,
    tracked0, tracked1, tracked2, tracked3, rows0, rows1, rows2, rows3, partial, done, stats, width, steps, shares, eps,
    momentum, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    HAS_BIAS: tl.constexpr, RUNNING: tl.constexpr, TRACKED: tl.constexpr,
):  # fmt: skip
    """Statistics of each column, the running ones (mean and var), and the number of batches they are of (tracked).

    A share is Σ (x - x₀) and Σ (x - x₀)². The bias affects only the running mean.
    """
    job, share = tl.program_id(0) % G, tl.program_id(0) // G
    x, rows = pick(job, x0, x1, x2, x3, G), pick(job, rows0, rows1, rows2, rows3, G)
    column = tl.program_id(1) * C + tl.arange(0, C)
    origin = origin_of(x, rows, column, width)
    total = tl.zeros((R, C), tl.float32)
    square = tl.zeros((R, C), tl.float32)
    for step in tl.range(0, steps, num_stages=3):  # prefetch the next tiles
        start = (share * steps + step) * R + tl.arange(0, R)
        at, live = tile_of(start, rows, column, width)
        v = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
        v = tl.where(live, v - origin[None, :], 0.0)
        total += v
        square += v * v
    if store_share(partial, total, square, column, width, shares, done, G):
        inside = column < width
        sum1, sum2 = add_shares(partial, column, width, shares, G, R, C)
        offset = sum1 / rows
        variance = larger(sum2 / rows - offset * offset, 0.0)
        centre = origin + offset
        tl.store(stats + job * 2 * width + column, centre, mask=inside)
        tl.store(stats + (job * 2 + 1) * width + column, 1.0 / tl.sqrt(variance + eps), mask=inside)
        if RUNNING:
            if HAS_BIAS:
                centre += tl.load(pick(job, bias0, bias1, bias2, bias3, G) + column, mask=inside, other=0.0)
            mean = pick(job, mean0, mean1, mean2, mean3, G) + column
            old = tl.load(mean, mask=inside, other=0.0)
            tl.store(mean, old + momentum * (centre - old), mask=inside)
            var = pick(job, var0, var1, var2, var3, G) + column
            old = tl.load(var, mask=inside, other=0.0)
            unbiased = variance * (rows / (rows - 1.0))
            tl.store(var, old + momentum * (unbiased - old), mask=inside)
        if TRACKED:
            once = tl.program_id(1) == 0
            tracked = pick(job, tracked0, tracked1, tracked2, tracked3, G)
            tl.store(tracked, tl.load(tracked, mask=once) + 1, mask=once)


@triton.jit
def columns_of(stats, weight, beta, column, width):
    """The mean, 1 / deviation, scale and shift of each column, shared by all rows."""
    inside = column < width
    return (
        tl.load(stats + column, mask=inside, other=0.0)[None, :],
        tl.load(stats + width + column, mask=inside, other=0.0)[None, :],
        tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :],
        tl.load(beta + column, mask=inside, other=0.0).to(tl.float32)[None, :],
    )


@triton.jit
def apply(
    x0, x1, x2, x3, weight0, weight1, weight2, weight3, beta0, beta1, beta2, beta3, residual0, residual1, residual2,
    residual3, y0, y1, y2, y3, rows0, rows1, rows2, rows3, stats, width,
    RELU: tl.constexpr, HAS_RESIDUAL: tl.constexpr, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = σ((x - mean) / deviation · weight + beta) + residual."""
    job, tile = job_of(rows0, rows1, rows2, G, R)
    weight = pick(job, weight0, weight1, weight2, weight3, G)
    beta = pick(job, beta0, beta1, beta2, beta3, G)
    column = tl.program_id(1) * C + tl.arange(0, C)
    centre, scale, w, b = columns_of(stats + job * 2 * width, weight, beta, column, width)
    rows = pick(job, rows0, rows1, rows2, rows3, G)
    at, live = tile_of(tile * R + tl.arange(0, R), rows, column, width)
    v = tl.load(pick(job, x0, x1, x2, x3, G) + at, mask=live, other=0.0).to(tl.float32)
    v = (v - centre) * scale * w + b
    if RELU:
        v = larger(v, 0.0)
    y = pick(job, y0, y1, y2, y3, G)
    if HAS_RESIDUAL:
        residual = pick(job, residual0, residual1, residual2, residual3, G)
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
    dy0, dy1, dy2, dy3, x0, x1, x2, x3, weight0, weight1, weight2, weight3, beta0, beta1, beta2, beta3,
    rows0, rows1, rows2, rows3, stats, partial, done, sums, width, steps, shares,
    RELU: tl.constexpr, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g z, the gradients at beta and weight, and zeros, (G, 3, width)."""
    job, share = tl.program_id(0) % G, tl.program_id(0) // G
    x, dy = pick(job, x0, x1, x2, x3, G), pick(job, dy0, dy1, dy2, dy3, G)
    weight = pick(job, weight0, weight1, weight2, weight3, G)
    beta = pick(job, beta0, beta1, beta2, beta3, G)
    column = tl.program_id(1) * C + tl.arange(0, C)
    centre, scale, w, b = columns_of(stats + job * 2 * width, weight, beta, column, width)
    rows = pick(job, rows0, rows1, rows2, rows3, G)
    first = tl.zeros((R, C), tl.float32)
    second = tl.zeros((R, C), tl.float32)
    for step in tl.range(0, steps, num_stages=3):  # prefetch the next tiles
        start = (share * steps + step) * R + tl.arange(0, R)
        at, live = tile_of(start, rows, column, width)
        g, z = upstream_of(dy, x, at, live, centre, scale, w, b, RELU)
        first += g
        second += g * z
    if store_share(partial, first, second, column, width, shares, done, G):
        inside = column < width
        sum1, sum2 = add_shares(partial, column, width, shares, G, R, C)
        out = sums + job * 3 * width + column
        tl.store(out, sum1, mask=inside)
        tl.store(out + width, sum2, mask=inside)
        tl.store(out + 2 * width, tl.zeros_like(sum1), mask=inside)


@triton.jit
def apply_gradient(
    dy0, dy1, dy2, dy3, x0, x1, x2, x3, weight0, weight1, weight2, weight3, beta0, beta1, beta2, beta3,
    rows0, rows1, rows2, rows3, stats, dx0, dx1, dx2, dx3, sums, width,
    RELU: tl.constexpr, G: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dx = weight / deviation · (g - (Σ g + z Σ g z) / rows)."""
    job, tile = job_of(rows0, rows1, rows2, G, R)
    x, dy = pick(job, x0, x1, x2, x3, G), pick(job, dy0, dy1, dy2, dy3, G)
    weight = pick(job, weight0, weight1, weight2, weight3, G)
    beta = pick(job, beta0, beta1, beta2, beta3, G)
    column = tl.program_id(1) * C + tl.arange(0, C)
    inside = column < width
    centre, scale, w, b = columns_of(stats + job * 2 * width, weight, beta, column, width)
    first = tl.load(sums + job * 3 * width + column, mask=inside, other=0.0)[None, :]
    second = tl.load(sums + (job * 3 + 1) * width + column, mask=inside, other=0.0)[None, :]
    rows = pick(job, rows0, rows1, rows2, rows3, G)
    at, live = tile_of(tile * R + tl.arange(0, R), rows, column, width)
    g, z = upstream_of(dy, x, at, live, centre, scale, w, b, RELU)
    v = w * scale * (g - (first + z * second) / rows)
    dx = pick(job, dx0, dx1, dx2, dx3, G)
    tl.store(dx + at, v.to(dx.dtype.element_ty), mask=live)
