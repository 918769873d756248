"""Farthest-point sampling: points that cover a cloud evenly."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.runtime.triton_support import can_launch, power_of_two

# Largest cloud whose points fit in the registers of one program.
_MOST = 1 << 13


@torch.no_grad()
def farthest(points: Tensor, count: int) -> Tensor:
    """Return ``count`` of the points (B, P, 3), each the farthest from those before it, the first point first."""
    if count >= points.shape[1]:
        return points
    kernel = can_launch(points.device) and points.shape[1] <= _MOST
    chosen = by_kernel(points, count) if kernel else by_loop(points, count)
    return torch.gather(points, 1, chosen[..., None].expand(-1, -1, 3))


def by_loop(points: Tensor, count: int) -> Tensor:
    """Return the indices of the sample, one point at a time.  # shape: (B, count)"""
    batch = torch.arange(len(points), device=points.device)
    chosen = torch.zeros(len(points), count, dtype=torch.int64, device=points.device)
    distance = torch.full(points.shape[:2], torch.inf, device=points.device, dtype=points.dtype)
    for n in range(1, count):
        last = points[batch, chosen[:, n - 1]]
        distance = torch.minimum(distance, (points - last[:, None]).square().sum(-1))
        chosen[:, n] = distance.argmax(1)
    return chosen


def by_kernel(points: Tensor, count: int) -> Tensor:
    """Return the same indices in one launch: the loop is hundreds of steps of a few microseconds each."""
    from fgnn.models.points.farthest_kernel import farthest_points

    batch, total, _ = points.shape
    chosen = torch.empty(batch, count, dtype=torch.int32, device=points.device)
    # no fused multiply-add: near ties must fall as in the loop
    options = {"BP": power_of_two(total), "num_warps": 8, "enable_fp_fusion": False}
    farthest_points[(batch,)](points.float().contiguous(), chosen, total, count, **options)
    return chosen.long()
