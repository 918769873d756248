"""Farthest point sampling: a subset that covers a cloud evenly."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.runtime.kernel_launch import constants, launch
from fgnn.runtime.triton_support import can_launch, power_of_two

# Most points that one program keeps in registers.
_MOST = 1 << 13


@torch.no_grad()
def farthest_points(points: Tensor, count: int, start: Tensor | None = None) -> Tensor:
    """Choose points one by one, each the farthest from all those before it; ties go to the lower index.

    Every prefix of the result is itself such a sample, so one call serves all levels of a hierarchy. On a GPU there is
    no host synchronisation.

    Args:
        points: (B, N, 3), finite.
        count: Number of points to choose, at most N. If fewer are distinct, indices repeat.
        start: The first choice in each cloud, (B,); by default the point farthest from the centroid.

    Returns:
        Indices (B, count), int64.
    """
    clouds, total, _ = points.shape
    if not 1 <= count <= total:
        raise ValueError(f"Expected a count from 1 to {total}, the number of points (got {count})")
    points = points.detach().float()
    if start is None:
        start = (points - points.mean(1, keepdim=True)).square().sum(2).argmax(1)
    if can_launch(points.device) and total <= _MOST:
        return _by_kernel(points, count, start)
    distance = points.new_full((clouds, total), torch.inf)
    index = torch.empty(clouds, count, dtype=torch.int64, device=points.device)
    rows = torch.arange(clouds, device=points.device)
    chosen = start
    for k in range(count):
        index[:, k] = chosen
        dx, dy, dz = (points - points[rows, chosen][:, None]).unbind(2)
        distance = torch.minimum(distance, dx * dx + dy * dy + dz * dz)
        chosen = distance.argmax(1)
    return index


def _by_kernel(points: Tensor, count: int, start: Tensor) -> Tensor:
    from fgnn.points.sampling_kernels import farthest

    clouds, total, _ = points.shape
    index = torch.empty(clouds, count, dtype=torch.int64, device=points.device)
    # without fused multiply-add the choices equal the CPU's
    launch(
        farthest, (clouds,), [points.transpose(1, 2).contiguous(), start.contiguous(), index, total, count],
        constants(BP=power_of_two(total), num_warps=8, enable_fp_fusion=False),
    )  # fmt: skip
    return index
