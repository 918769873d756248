"""Farthest-point sampling on a GPU: one program samples one cloud, whose points stay in registers."""

# mypy: ignore-errors
# (Triton kernel arguments have no annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def farthest_points(points, chosen, P, COUNT, BP: tl.constexpr):
    """Write the indices (B, COUNT) of points (B, P, 3), each the farthest from those before it; ties to the first."""
    cloud = tl.program_id(0).to(tl.int64)
    points += cloud * P * 3
    chosen += cloud * COUNT
    p = tl.arange(0, BP)
    here = p < P
    x = tl.load(points + 3 * p, mask=here, other=0.0)
    y = tl.load(points + 3 * p + 1, mask=here, other=0.0)
    z = tl.load(points + 3 * p + 2, mask=here, other=0.0)
    distance = tl.where(here, float("inf"), -1.0)
    last = 0
    for n in range(COUNT):
        tl.store(chosen + n, last)
        dx = x - tl.load(points + 3 * last)
        dy = y - tl.load(points + 3 * last + 1)
        dz = z - tl.load(points + 3 * last + 2)
        distance = tl.minimum(distance, dx * dx + dy * dy + dz * dz)
        last = tl.argmax(distance, 0)
