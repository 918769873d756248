"""The iterations of `steps` and the restarts of `average` for binary variables, pairs and counts, in one kernel.

Models are independent, so a program takes a block of models through all iterations of a launch. Tiles are a few edges
by the models of the block. What one thread writes, another may read in the next half of an iteration, hence the
barriers.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clip(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _copy(target, source, COUNT, cols, mask, B, ROWS: tl.constexpr):
    """Copy ``COUNT`` rows for the models in ``mask``."""
    row = tl.arange(0, ROWS)
    for r0 in range(0, COUNT, ROWS):
        at = (r0 + row).to(tl.int64)[:, None] * B + cols[None, :]
        there = (r0 + row < COUNT)[:, None] & mask[None, :]
        tl.store(target + at, tl.load(source + at, mask=there, other=0.0), mask=there)


@triton.jit
def _newton(a, tau, low, high):
    """One Newton step for the thresholds of some counts, see `projections.project_counts`."""
    x = a - tau[:, None, :]
    inside = _clip(x)
    total = tl.sum(inside, 1)
    slope = tl.maximum(tl.sum((inside == x).to(a.dtype), 1), 1.0)
    goal = tl.maximum(tau + (total - high) / slope, 0.0) + tl.minimum(tau + (total - low) / slope, 0.0)
    return tau + tl.minimum(tl.maximum(goal - tau, -1.0), 1.0)


@triton.jit
def _factors(
    z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, count_edge, cols, live, B, PAIRS,
    COUNTS, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, SIGNED: tl.constexpr, PUSHED: tl.constexpr,
):  # fmt: skip
    """Update q and the thresholds of the counts from z, as `steps.factor_step`."""
    for c0 in range(0, PAIRS, ROWS):
        c = c0 + tl.arange(0, ROWS)
        there = (c < PAIRS)[:, None] & live[None, :]
        at = c.to(tl.int64)[:, None] * B + cols[None, :]
        at_a = tl.load(pair_edge + 2 * c, mask=c < PAIRS, other=0).to(tl.int64)[:, None] * B + cols[None, :]
        at_b = tl.load(pair_edge + 2 * c + 1, mask=c < PAIRS, other=0).to(tl.int64)[:, None] * B + cols[None, :]
        a = tl.load(z + at_a, mask=there, other=0.0)
        b = tl.load(z + at_b, mask=there, other=0.0)
        if PUSHED:
            a += tl.load(push + at_a, mask=there, other=0.0)
            b += tl.load(push + at_b, mask=there, other=0.0)
        flip = b
        if SIGNED:
            g = tl.load(sign + at, mask=there, other=1.0)
            flip = b * g
        share = tl.load(middle + at, mask=there, other=0.0) + 0.5 * (flip - a)
        share = tl.minimum(tl.maximum(share, 0.0), tl.load(weight + at, mask=there, other=0.0))
        tl.store(q + at_a, _clip(a + tl.load(first + at, mask=there, other=0.0) + share), mask=there)
        if SIGNED:
            share = share * g
        tl.store(q + at_b, _clip(b + tl.load(second + at, mask=there, other=0.0) - share), mask=there)
    place = tl.arange(0, SIZE)
    for c0 in range(0, COUNTS, AT_ONCE):
        c = c0 + tl.arange(0, AT_ONCE)
        have = c < COUNTS
        edge = tl.load(count_edge + c[:, None] * SIZE + place[None, :], mask=have[:, None], other=-1)  # -1: no edge
        there = (edge >= 0)[:, :, None] & live[None, None, :]
        at = edge.to(tl.int64)[:, :, None] * B + cols[None, None, :]
        a = tl.load(z + at, mask=there, other=-1e30)  # clips to 0, so it adds nothing to a sum
        if PUSHED:
            a += tl.load(push + at, mask=there, other=0.0)
        own = c.to(tl.int64)[:, None] * B + cols[None, :]
        mine = have[:, None] & live[None, :]
        start = tl.load(tau + own, mask=mine, other=0.0)
        lo = tl.load(low + own, mask=mine, other=0.0)
        hi = tl.load(high + own, mask=mine, other=0.0)
        once = _newton(a, start, lo, hi)
        twice = _newton(a, once, lo, hi)
        back = ((once - start) * (twice - once) < 0) & (tl.abs(twice - once) >= tl.abs(once - start))
        end = tl.where(back, (start + once) / 2, twice)
        tl.store(tau + own, end, mask=mine)
        tl.store(q + at, _clip(a - end[:, None, :]), mask=there)


@triton.jit
def _variables(
    z, q, p, total, unary, share, lower, upper, var_edge, cols, live, B, V, ALPHA: tl.constexpr,
    DEG: tl.constexpr, PUSHED: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """Update p, z and the running ``total`` from q, as `steps.variable_step`; returns the disagreement of p and q."""
    apart = tl.zeros((cols.shape[0],), dtype=z.dtype.element_ty)
    place = tl.arange(0, DEG)
    for v in range(V):
        edge = tl.load(var_edge + v * DEG + place)
        there = (edge >= 0)[:, None] & live[None, :]
        at = edge.to(tl.int64)[:, None] * B + cols[None, :]
        own = cols + tl.cast(v, tl.int64) * B
        was = tl.load(z + at, mask=there, other=0.0)
        q_now = tl.load(q + at, mask=there, other=0.0)
        x = tl.load(unary + own, mask=live, other=0.0) + tl.sum(2.0 * q_now - was, 0) * tl.load(share + v)
        if PUSHED:
            x = tl.maximum(x, tl.load(lower + own, mask=live, other=0.0))
            x = tl.minimum(x, tl.load(upper + own, mask=live, other=1.0))
        else:
            x = _clip(x)
        error = tl.where(there, x[None, :] - q_now, 0.0)
        apart += tl.sum(error * error, 0)
        now = was + ALPHA * error
        tl.store(z + at, now, mask=there)
        if not MEAN:
            tl.store(p + own, x, mask=live)
            tl.store(total + at, tl.load(total + at, mask=there, other=0.0) + now, mask=there)
    return apart


@triton.jit
def advance_kernel(
    z, q, p, tau, total, count, then, before, z2, q2, tau2, push, unary, share, lower, upper,
    first, second, weight, middle, sign, pair_edge, low, high, count_edge, var_edge,
    B, E, V, PAIRS, COUNTS, done, steps, blocks, CHECK: tl.constexpr, ALPHA: tl.constexpr, HALVED: tl.constexpr,
    LESS: tl.constexpr, LONG: tl.constexpr, DEG: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, SIGNED: tl.constexpr, PUSHED: tl.constexpr,
):  # fmt: skip
    """``blocks`` times: ``steps`` iterations, `average.Average.restart`, and q of the resulting z."""
    cols = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = cols < B
    n = tl.load(count + cols, mask=live, other=0.0)
    at_start = tl.load(then + cols, mask=live, other=0.0)
    at_check = tl.load(before + cols, mask=live, other=0.0)
    row = tl.arange(0, ROWS)
    for _ in range(blocks):
        now = tl.zeros((BLOCK,), dtype=z.dtype.element_ty)
        for _ in range(steps):
            _factors(
                z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, count_edge, cols, live,
                B, PAIRS, COUNTS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
            )  # fmt: skip
            tl.debug_barrier()
            now = _variables(
                z, q, p, total, unary, share, lower, upper, var_edge, cols, live, B, V, ALPHA, DEG, PUSHED, False
            )
            tl.debug_barrier()
        n += steps
        done += steps
        for e0 in range(0, E, ROWS):
            at = (e0 + row).to(tl.int64)[:, None] * B + cols[None, :]
            there = (e0 + row < E)[:, None] & live[None, :]
            tl.store(z2 + at, tl.load(total + at, mask=there, other=0.0) / n[None, :], mask=there)
        _copy(tau2, tau, COUNTS, cols, live, B, ROWS)
        tl.debug_barrier()
        _factors(
            z2, q2, tau2, push, first, second, weight, middle, sign, pair_edge, low, high, count_edge, cols, live,
            B, PAIRS, COUNTS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
        )  # fmt: skip
        tl.debug_barrier()
        mean = _variables(
            z2, q2, p, total, unary, share, lower, upper, var_edge, cols, live, B, V, ALPHA, DEG, PUSHED, True
        )
        tl.debug_barrier()
        best = tl.minimum(now, mean)
        due = (best <= HALVED * HALVED * at_start) | ((best <= LESS * LESS * at_start) & (best > at_check))
        enough = (LONG * tl.cast(done, tl.float64)).to(n.dtype)
        due = (due | (n >= enough)) & (n > CHECK)
        jump = due & (mean < now)
        at_start = tl.where(due | (at_start == float("inf")), best, at_start)
        at_check = tl.where(due, float("inf"), best)
        n = tl.where(due, 0.0, n)
        for e0 in range(0, E, ROWS):
            at = (e0 + row).to(tl.int64)[:, None] * B + cols[None, :]
            there = (e0 + row < E)[:, None] & (live & due)[None, :]
            tl.store(total + at, tl.zeros((ROWS, BLOCK), dtype=z.dtype.element_ty), mask=there)
        _copy(z, z2, E, cols, live & jump, B, ROWS)
        _copy(tau, tau2, COUNTS, cols, live & jump, B, ROWS)
        tl.debug_barrier()
        _factors(
            z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, count_edge, cols, live,
            B, PAIRS, COUNTS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
        )  # fmt: skip
        tl.debug_barrier()
    tl.store(count + cols, n, mask=live)
    tl.store(then + cols, at_start, mask=live)
    tl.store(before + cols, at_check, mask=live)
