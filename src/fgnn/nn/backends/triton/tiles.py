"""What all kernels of a tile of edges share: where its edges are, h, the gradient at a message, the first maximum."""

# mypy: ignore-errors
# (the arguments are of Triton's language, which has no annotations for them)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def edge_tile(pid, table, rows, total, A: tl.constexpr, W: tl.constexpr, BR: tl.constexpr):
    """The edges of rows ``pid * BR ...``, W places a row: sample, destination, list position, place, which are real.

    Uniform arity (A > 0): row r is destination r with A edges. Else ``table`` (4, rows) says for each row its
    destination, where it starts and stops in the list of edges, and how many edges of its destination come before.
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
def edge_ids(edge, at, live, HAS_EDGE: tl.constexpr):
    """The number of the edge at each list position."""
    if HAS_EDGE:
        return tl.load(edge + at, mask=live, other=0).to(tl.int64)
    return at


@triton.jit
def hidden(
    dst, src, dst_row, src_row, live, n0, N: tl.constexpr, BN: tl.constexpr, RELU: tl.constexpr,
    HAS_DST: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """h = σ(dst + src) for one block of columns, in the dtype products are taken in."""
    column = n0 + tl.arange(0, BN)
    mask = live[:, None] & (column < N)[None, :] if N % BN else live[:, None]
    h = tl.load(src + src_row[:, None] * N + column[None, :], mask=mask, other=0)
    if HAS_DST:
        h += tl.load(dst + dst_row[:, None] * N + column[None, :], mask=mask, other=0)
    if RELU:
        h = tl.maximum(h, tl.zeros_like(h), propagate_nan=tl.PropagateNan.ALL)
    return h.to(CT)


@triton.jit
def load_block(at, mask, WHOLE: tl.constexpr):
    """A block of a matrix, zero outside."""
    if WHOLE:
        return tl.load(at)
    return tl.load(at, mask=mask, other=0)


@triton.jit
def upstream(grad, arg, row, place, live, m0, M: tl.constexpr, BM: tl.constexpr, MAX: tl.constexpr, CT: tl.constexpr):
    """The gradient at each message: its destination's, and for a maximum only where this edge attained it."""
    column = m0 + tl.arange(0, BM)
    mask = live[:, None] & (column < M)[None, :] if M % BM else live[:, None]
    at = row[:, None] * M + column[None, :]
    g = tl.load(grad + at, mask=mask, other=0)
    if MAX:
        mine = tl.load(arg + at, mask=mask, other=0) == place.to(arg.dtype.element_ty)
        g = tl.where(mine, g, tl.zeros_like(g))
    return g.to(CT)


@triton.jit
def larger(x, y):
    """The larger of two; NaN above all, as in torch."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


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
