"""The passes of `chain` as kernels: one program takes a model through all steps, a table at a time in its registers.

Each table is read once in either direction, and loaded a step ahead of its use.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finite(x):
    """A reference to subtract: where it replaces -inf, every exponential of a difference is zero and not NaN."""
    return tl.where(x > -float("inf"), x, 0.0)


@triton.jit
def _place(order, t, N, K, ORDERED: tl.constexpr):
    """Where table t of the chain begins, or the nearest one there is."""
    row = tl.maximum(tl.minimum(t, N - 2), 0).to(tl.int64)
    if ORDERED:
        row = tl.load(order + row)
    return row * K * K


@triton.jit
def _normalised(x):
    """Probabilities in proportion to exp(x), and the log of their sum; 0 and -inf if all of x is -inf."""
    largest = _finite(tl.max(x, 0))
    p = tl.exp(x - largest)
    total = tl.sum(p, 0)
    return p / tl.where(total > 0, total, 1.0), largest + tl.log(total)


@triton.jit
def chain_forward(
    unary, values, order, messages, log_z, N, K,
    SHARED: tl.constexpr, ORDERED: tl.constexpr, KEEP: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """log Z of model b and, if KEEP, its forward messages (B, N, k); their largest entries are taken out."""
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, BK)
    live = state < K
    at = state[:, None] * K + state[None, :]
    there = live[:, None] & live[None, :]
    unary += b * N * K
    messages += b * N * K
    if not SHARED:
        values += b * (N - 1) * K * K
    alpha = tl.load(unary + state, mask=live, other=-float("inf")).to(KIND)
    scale = tl.zeros((), dtype=tl.float64)
    table = tl.load(values + _place(order, 0, N, K, ORDERED) + at, mask=there, other=-float("inf"))
    for t in range(N - 1):
        ahead = tl.load(values + _place(order, t + 1, N, K, ORDERED) + at, mask=there, other=-float("inf"))
        own = tl.load(unary + (t + 1) * K + state, mask=live, other=0.0).to(KIND)
        largest = _finite(tl.max(alpha, 0))
        alpha -= largest
        scale += largest.to(tl.float64)
        if KEEP:
            tl.store(messages + t * K + state, alpha, mask=live)
        joint = table.to(KIND) + alpha[:, None]
        top = _finite(tl.max(joint, 0))
        alpha = own + top + tl.log(tl.sum(tl.exp(joint - top[None, :]), 0))
        table = ahead
    if KEEP:
        tl.store(messages + (N - 1) * K + state, alpha, mask=live)
    _, norm = _normalised(alpha)
    tl.store(log_z + b, scale + norm.to(tl.float64))


@triton.jit
def chain_backward(
    unary, values, order, messages, weight, d_unary, d_values, right_of, norm_of, N, K,
    SHARED: tl.constexpr, ORDERED: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The gradient of model b. For shared tables what `chain_shared` needs: messages (B, N, k) and log-sums (B, N)."""
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, BK)
    live = state < K
    at = state[:, None] * K + state[None, :]
    there = live[:, None] & live[None, :]
    unary += b * N * K
    messages += b * N * K
    d_unary += b * N * K
    if SHARED:
        right_of += b * N * K
        norm_of += b * N
    else:
        values += b * (N - 1) * K * K
        d_values += b * (N - 1) * K * K
    w = tl.load(weight + b).to(KIND)
    table = tl.load(values + _place(order, N - 2, N, K, ORDERED) + at, mask=there, other=-float("inf"))
    last = tl.load(messages + (N - 1) * K + state, mask=live, other=-float("inf"))
    p, _ = _normalised(last)
    tl.store(d_unary + (N - 1) * K + state, w * p, mask=live)
    right = tl.load(unary + (N - 1) * K + state, mask=live, other=-float("inf")).to(KIND)
    for step in range(N - 1):
        t = N - 2 - step
        ahead = tl.load(values + _place(order, t - 1, N, K, ORDERED) + at, mask=there, other=-float("inf"))
        alpha = tl.load(messages + t * K + state, mask=live, other=-float("inf"))
        own = tl.load(unary + t * K + state, mask=live, other=0.0).to(KIND)
        joint = table.to(KIND) + right[None, :]
        top = _finite(tl.max(joint, 1))
        share = tl.exp(joint - top[:, None])
        total = tl.sum(share, 1)
        beta = top + tl.log(total)
        p, norm = _normalised(alpha + beta)
        tl.store(d_unary + t * K + state, w * p, mask=live)
        if SHARED:
            tl.store(right_of + t * K + state, right, mask=live)
            tl.store(norm_of + t, norm)
        else:
            share *= (w * p / tl.where(total > 0, total, 1.0))[:, None]
            tl.store(d_values + _place(order, t, N, K, ORDERED) + at, share, mask=there)
        right = own + beta - _finite(tl.max(beta, 0))
        table = ahead


@triton.jit
def chain_shared(
    values, order, messages, weight, right_of, norm_of, partial, B, N, K, each,
    ORDERED: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The gradient of table t, summed over ``each`` models; ``partial`` (parts, N - 1, k, k) has the sums."""
    t = tl.program_id(0)
    part = tl.program_id(1)
    state = tl.arange(0, BK)
    live = state < K
    at = state[:, None] * K + state[None, :]
    there = live[:, None] & live[None, :]
    table = tl.load(values + _place(order, t, N, K, ORDERED) + at, mask=there, other=-float("inf")).to(KIND)
    total = tl.zeros((BK, BK), dtype=KIND)
    for b in range(part * each, tl.minimum((part + 1) * each, B)):
        row = (tl.cast(b, tl.int64) * N + t) * K + state
        alpha = tl.load(messages + row, mask=live, other=-float("inf"))
        right = tl.load(right_of + row, mask=live, other=-float("inf"))
        norm = _finite(tl.load(norm_of + tl.cast(b, tl.int64) * N + t))
        total += tl.load(weight + b).to(KIND) * tl.exp(alpha[:, None] + table + right[None, :] - norm)
    partial += tl.cast(part, tl.int64) * (N - 1) * K * K
    tl.store(partial + _place(order, t, N, K, ORDERED) + at, total, mask=there)
