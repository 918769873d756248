"""Iterations of `sweeps.flooding_step` for log-ratios of binary variables under pairs and counts, in one kernel.

Models are independent, so a program takes a block of models through all iterations of a launch. Each iteration sums the
beliefs, then updates the messages of all factors, with a barrier after each half.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _blend(messages, at, old, sent, rate, there, change):
    """Write the damped messages; returns the largest undamped change so far."""
    moved = tl.where(there, sent - old, 0.0)
    tl.store(messages + at, old + rate[None, :] * moved, mask=there)
    return tl.maximum(change, tl.max(tl.abs(moved), 0))


@triton.jit
def _clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def flooding_kernel(
    messages, beliefs, unary, deltas, models, active, converged_out, done, sign, shift, low, high, least_ones,
    most_ones, pair_row, ones_row, belief_of, incident, settings, B, WHOLE, V, PAIRS, COUNTS, ITERATIONS, steps,
    DEG: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OWN: tl.constexpr,
    PAIR_WIDE: tl.constexpr, BOUND_WIDE: tl.constexpr, FLOOR: tl.constexpr,
):  # fmt: skip
    """``steps`` iterations of the active models: messages (Q, B), deltas (T, all models), the rest (B,).

    ``settings`` holds the share of an update that is taken, the tolerance, and the largest message of a count of ones.
    ``PAIR_WIDE`` and ``BOUND_WIDE``: whether potentials have a column for each model, or one that all share.
    """
    kind = messages.dtype.element_ty
    cols = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = cols < B
    model = tl.load(models + cols, mask=live, other=0)
    is_active = tl.load(active + cols, mask=live, other=0).to(tl.int32)
    converged = tl.load(converged_out + cols, mask=live, other=0).to(tl.int32)
    count = tl.load(done + cols, mask=live, other=0)
    rate_of_all = tl.load(settings)
    tolerance = tl.load(settings + 1)
    limit = tl.load(settings + 2)
    place = tl.arange(0, SIZE)
    for _ in range(steps):
        if tl.max(is_active, 0) > 0:
            edge = tl.arange(0, DEG)
            for v in range(V):
                row = tl.load(incident + v * DEG + edge)
                there = (row >= 0)[:, None] & live[None, :]
                incoming = tl.load(messages + row.to(tl.int64)[:, None] * B + cols[None, :], mask=there, other=0.0)
                own = cols + tl.cast(v, tl.int64) * B
                tl.store(beliefs + own, tl.load(unary + own, mask=live, other=0.0) + tl.sum(incoming, 0), mask=live)
            tl.debug_barrier()
            rate = is_active.to(kind) * rate_of_all
            change = tl.zeros((BLOCK,), dtype=kind)
            for c0 in range(0, PAIRS, ROWS):
                c = c0 + tl.arange(0, ROWS)
                have = c < PAIRS
                there = have[:, None] & live[None, :]
                row_a = tl.load(pair_row + 2 * c, mask=have, other=0)
                row_b = tl.load(pair_row + 2 * c + 1, mask=have, other=0)
                at_a = row_a.to(tl.int64)[:, None] * B + cols[None, :]
                at_b = row_b.to(tl.int64)[:, None] * B + cols[None, :]
                from_a = tl.load(belief_of + row_a, mask=have, other=0).to(tl.int64)[:, None] * B + cols[None, :]
                from_b = tl.load(belief_of + row_b, mask=have, other=0).to(tl.int64)[:, None] * B + cols[None, :]
                old_a = tl.load(messages + at_a, mask=there, other=0.0)
                old_b = tl.load(messages + at_b, mask=there, other=0.0)
                nu_a = tl.load(beliefs + from_a, mask=there, other=0.0)
                nu_b = tl.load(beliefs + from_b, mask=there, other=0.0)
                if not OWN:
                    nu_a -= old_a
                    nu_b -= old_b
                if PAIR_WIDE:
                    at = c.to(tl.int64)[:, None] * B + cols[None, :]
                    step = tl.cast(PAIRS, tl.int64) * B
                else:
                    at = c.to(tl.int64)[:, None] + cols[None, :] * 0
                    step = tl.cast(PAIRS, tl.int64)
                g = tl.load(sign + at, mask=there, other=0.0)
                to_a = tl.load(shift + at, mask=there, other=0.0) + g * nu_b
                to_b = tl.load(shift + step + at, mask=there, other=0.0) + g * nu_a
                to_a = _clamp(to_a, tl.load(low + at, mask=there, other=0.0), tl.load(high + at, mask=there, other=0.0))
                to_b = _clamp(
                    to_b,
                    tl.load(low + step + at, mask=there, other=0.0),
                    tl.load(high + step + at, mask=there, other=0.0),
                )
                change = _blend(messages, at_a, old_a, to_a, rate, there, change)
                change = _blend(messages, at_b, old_b, to_b, rate, there, change)
            for c in range(COUNTS):
                row = tl.load(ones_row + c * SIZE + place)
                have = row >= 0
                there = have[:, None] & live[None, :]
                at = row.to(tl.int64)[:, None] * B + cols[None, :]
                incoming = tl.load(belief_of + row, mask=have, other=0).to(tl.int64)[:, None] * B + cols[None, :]
                old = tl.load(messages + at, mask=there, other=0.0)
                d = tl.load(beliefs + incoming, mask=there, other=0.0)
                if not OWN:
                    d -= old
                d = tl.where(have[:, None], d, -float("inf"))
                size = tl.sum(have.to(tl.int32), 0)
                # the rank of each in descending order, the earlier first on ties
                rank = tl.zeros((SIZE, BLOCK), dtype=tl.int32)
                for i in tl.static_range(SIZE):
                    one = tl.max(tl.where((place == i)[:, None], d, -float("inf")), 0)[None, :]
                    rank += ((one > d) | ((one == d) & (place > i)[:, None])).to(tl.int32)
                bound = cols + tl.cast(c, tl.int64) * B if BOUND_WIDE else cols * 0 + c
                most = tl.load(most_ones + bound, mask=live, other=1)
                kth = tl.max(tl.where(rank == tl.minimum(most, size)[None, :] - 1, d, -float("inf")), 0)
                after = tl.max(tl.where((rank == most[None, :]) & have[:, None], d, -float("inf")), 0)
                sent = tl.where(d < kth[None, :], -_clamp(kth, 0.0, limit)[None, :], 0.0)
                sent = tl.minimum(sent, -_clamp(after, 0.0, limit)[None, :])
                if FLOOR:
                    least = tl.load(least_ones + bound, mask=live, other=0)
                    kth = tl.max(tl.where(rank == least[None, :] - 1, d, -float("inf")), 0)
                    kth = tl.where(least > 0, kth, float("inf"))
                    after = tl.max(tl.where(rank == least[None, :], d, -float("inf")), 0)
                    saved = tl.where(d >= kth[None, :], -_clamp(after, -limit, 0.0)[None, :], 0.0)
                    sent += tl.maximum(saved, -_clamp(kth, -limit, 0.0)[None, :])
                change = _blend(messages, at, old, sent, rate, there, change)
            tl.debug_barrier()
            tl.store(deltas + count * WHOLE + model, change, mask=live & (is_active > 0))
            moves = (change > tolerance).to(tl.int32)
            count += is_active
            converged = tl.where(is_active > 0, 1 - moves, converged)
            is_active = is_active * moves * (count < ITERATIONS).to(tl.int32)
    tl.store(active + cols, is_active.to(active.dtype.element_ty), mask=live)
    tl.store(converged_out + cols, converged.to(converged_out.dtype.element_ty), mask=live)
    tl.store(done + cols, count, mask=live)
