"""The iterations of `steps` and the restarts of `average` for binary variables, pairs and budgets, in one kernel.

A program has a block of models to itself and takes them through all iterations of a launch: a model needs nothing of
another. Tiles are a few edges by the models of the block; what one tile writes, another thread may read in the next, so
a barrier stands between the two halves of an iteration.
"""

# mypy: ignore-errors
# (the arguments are of Triton's language, which has no annotations for them)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clip(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _newton(a, tau, low, high):
    """One step towards the thresholds of some budgets: see `projections.project_budgets`."""
    x = a - tau[:, None, :]
    inside = _clip(x)
    total = tl.sum(inside, 1)
    slope = tl.maximum(tl.sum((inside == x).to(a.dtype), 1), 1.0)
    goal = tl.maximum(tau + (total - high) / slope, 0.0) + tl.minimum(tau + (total - low) / slope, 0.0)
    return tau + tl.minimum(tl.maximum(goal - tau, -1.0), 1.0)


@triton.jit
def _factors(
    z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, budget_edge, cols, live, B, PAIRS,
    BUDGETS, SIZE: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, SIGNED: tl.constexpr, PUSHED: tl.constexpr,
):  # fmt: skip
    """q from z, and the budgets' thresholds moved on: `steps.factor_step`."""
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
    for c0 in range(0, BUDGETS, AT_ONCE):
        c = c0 + tl.arange(0, AT_ONCE)
        have = c < BUDGETS
        edge = tl.load(budget_edge + c[:, None] * SIZE + place[None, :], mask=have[:, None], other=-1)  # -1: no edge
        there = (edge >= 0)[:, :, None] & live[None, None, :]
        at = edge.to(tl.int64)[:, :, None] * B + cols[None, None, :]
        a = tl.load(z + at, mask=there, other=-1e30)  # far below 0: adds nothing to a sum
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
    """p from q, z moved on and added to ``total``: `steps.variable_step`; gives how far p and q are apart."""
    apart = tl.zeros((cols.shape[0],), dtype=z.dtype.element_ty)
    place = tl.arange(0, DEG)
    for v in range(V):
        edge = tl.load(var_edge + v * DEG + place)
        there = (edge >= 0)[:, None] & live[None, :]
        at = edge.to(tl.int64)[:, None] * B + cols[None, :]
        own = cols + tl.cast(v, tl.int64) * B
        was = tl.load(z + at, mask=there, other=0.0)
        said = tl.load(q + at, mask=there, other=0.0)
        x = tl.load(unary + own, mask=live, other=0.0) + tl.sum(2.0 * said - was, 0) * tl.load(share + v)
        if PUSHED:
            x = tl.maximum(x, tl.load(lower + own, mask=live, other=0.0))
            x = tl.minimum(x, tl.load(upper + own, mask=live, other=1.0))
        else:
            x = _clip(x)
        error = tl.where(there, x[None, :] - said, 0.0)
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
    first, second, weight, middle, sign, pair_edge, low, high, budget_edge, var_edge,
    B, E, V, PAIRS, BUDGETS, done, steps, blocks, CHECK: tl.constexpr, ALPHA: tl.constexpr, HALVED: tl.constexpr,
    LESS: tl.constexpr, LONG: tl.constexpr, DEG: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, SIGNED: tl.constexpr, PUSHED: tl.constexpr,
):  # fmt: skip
    """``blocks`` times: ``steps`` iterations, then `average.Average.restart`, then q of where that left z."""
    cols = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = cols < B
    n = tl.load(count + cols, mask=live, other=0.0)
    at_start = tl.load(then + cols, mask=live, other=0.0)
    at_look = tl.load(before + cols, mask=live, other=0.0)
    row = tl.arange(0, ROWS)
    for _ in range(blocks):
        now = tl.zeros((BLOCK,), dtype=z.dtype.element_ty)
        for _ in range(steps):
            _factors(
                z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, budget_edge, cols, live,
                B, PAIRS, BUDGETS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
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
        for c0 in range(0, BUDGETS, ROWS):
            at = (c0 + row).to(tl.int64)[:, None] * B + cols[None, :]
            there = (c0 + row < BUDGETS)[:, None] & live[None, :]
            tl.store(tau2 + at, tl.load(tau + at, mask=there, other=0.0), mask=there)
        tl.debug_barrier()
        _factors(
            z2, q2, tau2, push, first, second, weight, middle, sign, pair_edge, low, high, budget_edge, cols, live,
            B, PAIRS, BUDGETS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
        )  # fmt: skip
        tl.debug_barrier()
        mean = _variables(
            z2, q2, p, total, unary, share, lower, upper, var_edge, cols, live, B, V, ALPHA, DEG, PUSHED, True
        )
        tl.debug_barrier()
        best = tl.minimum(now, mean)
        due = (best <= HALVED * HALVED * at_start) | ((best <= LESS * LESS * at_start) & (best > at_look))
        enough = (LONG * tl.cast(done, tl.float64)).to(n.dtype)
        due = (due | (n >= enough)) & (n > CHECK)
        jump = due & (mean < now)
        at_start = tl.where(due | (at_start == float("inf")), best, at_start)
        at_look = tl.where(due, float("inf"), best)
        n = tl.where(due, 0.0, n)
        for e0 in range(0, E, ROWS):
            at = (e0 + row).to(tl.int64)[:, None] * B + cols[None, :]
            there = (e0 + row < E)[:, None] & live[None, :]
            tl.store(z + at, tl.load(z2 + at, mask=there & jump[None, :], other=0.0), mask=there & jump[None, :])
            tl.store(total + at, tl.zeros((ROWS, BLOCK), dtype=z.dtype.element_ty), mask=there & due[None, :])
        for c0 in range(0, BUDGETS, ROWS):
            at = (c0 + row).to(tl.int64)[:, None] * B + cols[None, :]
            there = (c0 + row < BUDGETS)[:, None] & live[None, :] & jump[None, :]
            tl.store(tau + at, tl.load(tau2 + at, mask=there, other=0.0), mask=there)
        tl.debug_barrier()
        _factors(
            z, q, tau, push, first, second, weight, middle, sign, pair_edge, low, high, budget_edge, cols, live,
            B, PAIRS, BUDGETS, SIZE, AT_ONCE, ROWS, SIGNED, PUSHED,
        )  # fmt: skip
        tl.debug_barrier()
    tl.store(count + cols, n, mask=live)
    tl.store(then + cols, at_start, mask=live)
    tl.store(before + cols, at_look, mask=live)
