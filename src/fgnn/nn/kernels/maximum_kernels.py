"""Kernels of the larger of two: which one it was is kept as a byte, and sends the gradient back."""

# mypy: ignore-errors
# (the arguments are of Triton's language, which has no annotations for them)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def maximum_forward(a, b, out, second, count, SIZE: tl.constexpr):
    """out = b where it is larger, else a; second says where."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < count
    x = tl.load(a + at, mask=live, other=0.0)
    y = tl.load(b + at, mask=live, other=0.0)
    larger = y > x
    tl.store(out + at, tl.where(larger, y, x), mask=live)
    tl.store(second + at, larger.to(tl.int8), mask=live)


@triton.jit
def maximum_backward(grad, second, d_a, d_b, count, SIZE: tl.constexpr):
    """The gradient to the one that was taken, zero to the other."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < count
    g = tl.load(grad + at, mask=live, other=0.0)
    larger = tl.load(second + at, mask=live, other=0) != 0
    tl.store(d_a + at, tl.where(larger, 0.0, g), mask=live)
    tl.store(d_b + at, tl.where(larger, g, 0.0), mask=live)
