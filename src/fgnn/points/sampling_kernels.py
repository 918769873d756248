"""Farthest point sampling on the GPU: one program per cloud, which keeps all of its points in registers."""

# mypy: ignore-errors
# (Triton kernel arguments have no annotations)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def farthest(points, start, index, N, K, BP: tl.constexpr):
    """Choose K points of each cloud; points (B, 3, N), first choices (B,), the result (B, K)."""
    cloud = tl.program_id(0).to(tl.int64)
    points += cloud * 3 * N
    index += cloud * K
    p = tl.arange(0, BP)
    live = p < N
    x = tl.load(points + p, mask=live, other=0.0)
    y = tl.load(points + N + p, mask=live, other=0.0)
    z = tl.load(points + 2 * N + p, mask=live, other=0.0)
    # squared distance to the nearest point chosen so far; padding is never chosen
    distance = tl.where(live, float("inf"), -1.0)
    chosen = tl.load(start + cloud).to(tl.int32)
    for k in range(K):
        tl.store(index + k, chosen.to(tl.int64))
        dx = x - tl.load(points + chosen)
        dy = y - tl.load(points + N + chosen)
        dz = z - tl.load(points + 2 * N + chosen)
        distance = tl.minimum(distance, dx * dx + dy * dy + dz * dz)
        chosen = tl.argmax(distance, 0).to(tl.int32)
