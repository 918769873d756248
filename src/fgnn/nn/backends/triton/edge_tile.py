"""Device functions shared by the kernels over tiles of edges: locate edges, load and store rows, reduce."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def edge_tile(pid, table, rows, total, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr):
    """The edges of rows ``pid * BR ...``, W places a row: sample, destination, list position, place, live mask.

    Uniform arity (A > 0): row r is destination r with A edges. Else ``table`` (4, rows) holds for each row its
    destination, its start and stop in the list of edges, and the number of earlier edges of its destination.
    """
    lane = tl.arange(0, BR * W)
    row = pid * BR + lane // W
    place = lane % W
    live = row < total
    sample = (row // rows).to(tl.int64)
    row = row % rows
    if A > 0:
        live = live & (place < A)
        destination = row.to(tl.int64)
        at = destination * A + place
    else:
        destination = tl.load(table + row, mask=live, other=0).to(tl.int64)
        at = tl.load(table + rows + row, mask=live, other=0).to(tl.int64) + place
        stop = tl.load(table + 2 * rows + row, mask=live, other=0)
        place += tl.load(table + 3 * rows + row, mask=live, other=0).to(tl.int32)
        live = live & (at < stop)
    return sample, destination, at, place, live


@triton.jit
def load_rows(x, row, live, c0, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns ``c0 ...`` of some rows of x, zero outside.  # shape: (rows, BLOCK)"""
    column = c0 + tl.arange(0, BLOCK)
    mask = live[:, None] & (column < WIDTH)[None, :] if WIDTH % BLOCK else live[:, None]
    return tl.load(x + (row[:, None] * WIDTH + column[None, :]), mask=mask, other=0)


@triton.jit
def store_rows(x, row, live, c0, value, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The reverse of `load_rows`, in x's precision."""
    column = c0 + tl.arange(0, BLOCK)
    mask = live[:, None] & (column < WIDTH)[None, :]
    tl.store(x + (row[:, None] * WIDTH + column[None, :]), value.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_block(at, mask, WHOLE: tl.constexpr):
    """A block of a matrix, zero outside."""
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=mask, other=0)


@triton.jit
def larger(x, y):
    """The larger of two; NaN wins, as in torch."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def finished(product, live, PREC: tl.constexpr):
    """A product, zero where not ``live``: its use makes a pipelined loop wait for it.

    The matrix units read computed operands from registers while they run. If a loop only accumulates, Triton 3.6 starts
    the next iteration meanwhile, which writes new operands into the same registers.
    """
    if PREC == "tf32x3":  # three products, which wait for each other
        return product
    return tl.where(live[:, None], product, 0.0)


@triton.jit
def hidden(
    dst, src, dst_row, src_row, live, n0, N: tl.constexpr, BN: tl.constexpr, RELU: tl.constexpr,
    HAS_DST: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """h = σ(dst + src) for one block of columns, in the precision of the products."""
    h = load_rows(src, src_row, live, n0, N, BN)
    if HAS_DST:
        h += load_rows(dst, dst_row, live, n0, N, BN)
    if RELU:
        h = larger(h, tl.zeros_like(h))
    return h.to(CT)


@triton.jit
def upstream(grad, arg, row, place, live, m0, M: tl.constexpr, BM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr):
    """The gradient at each message: its destination's; for a maximum, zero unless this edge attained it."""
    g = load_rows(grad, row, live, m0, M, BM)
    if MAX:
        won = load_rows(arg, row, live, m0, M, BM)
        g = tl.where(won == place.to(arg.dtype.element_ty), g, tl.zeros_like(g))
    return g.to(CT)


@triton.jit
def load_factors(
    dst, src, grad, arg, dst_row, src_row, live, n0, m0, N: tl.constexpr, M: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    """What a product g hᵀ is made of, as stored: src, dst, the gradient and the winning places."""
    h = load_rows(src, src_row, live, n0, N, BN)
    b = load_rows(dst, dst_row, live, n0, N, BN) if HAS_DST else h
    g = load_rows(grad, dst_row, live, m0, M, BM)
    won = load_rows(arg, dst_row, live, m0, M, BM) if MAX else g
    return h, b, g, won


@triton.jit
def finish_factors(h, b, g, won, place, RELU: tl.constexpr, HAS_DST: tl.constexpr, MAX: tl.constexpr):
    """h and g of a product g hᵀ, from `load_factors`."""
    if HAS_DST:
        h += b
    if RELU:
        h = larger(h, tl.zeros_like(h))
    if MAX:
        g = tl.where(won == place.to(won.dtype), g, tl.zeros_like(g))
    return h, g


@triton.jit
def reduce_rows(x, live, W: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr, MAX: tl.constexpr):
    """(BR * W, BM) to (BR, BM): the maximum and the first place in the row that attains it; or the sum, and 0."""
    if MAX:
        x = tl.reshape(tl.where(live[:, None], x, float("-inf")), (BR, W, BM))
        best = tl.reduce(x, 1, larger)
        place = tl.arange(0, W)[None, :, None]
        first = tl.min(tl.where(x == best[:, None, :], place, W - 1), 1)
    else:
        best = tl.sum(tl.reshape(tl.where(live[:, None], x, 0.0), (BR, W, BM)), 1)
        first = tl.zeros((BR, BM), tl.int32)
    return best, first
