"""Neighbourhoods of points as a factor graph, made without host synchronisation.

The factor of point c joins c and its k nearest neighbours. All sizes are known beforehand, so a training step that
builds the graph can be recorded as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.graph import FactorGraph, FactorGroup, Hints
from fgnn.points.knn import knn
from fgnn.runtime.triton_support import can_launch

# Points of one cloud up to which the GPU's kernel compares all with all.
_SMALL = 1 << 15
GROUP = "near"


@torch.no_grad()
def neighbours(xyz: Tensor, k: int) -> Tensor:
    """For each point itself, first, and its k nearest others.  # shape: (B, P, 3) -> (B, P, k + 1)"""
    clouds, points, _ = xyz.shape
    if points <= k:
        raise ValueError(f"Expected more than {k} points in a cloud (got {points})")
    if can_launch(xyz.device) and points <= _SMALL:
        from fgnn.points.knn_gpu import by_tiles

        index, _ = by_tiles(xyz.detach().float().contiguous(), None, k, True)
        index = index.clamp(0, points - 1)  # a NaN has no neighbours, and checking would synchronise
    else:
        index, _ = knn(xyz, k, include_self=False)
    own = torch.arange(points, device=xyz.device).expand(clouds, points)
    return torch.cat([own[..., None], index], dim=2)


@torch.no_grad()
def neighbour_graph(index: Tensor) -> FactorGraph:
    """All clouds as one graph, from `neighbours` (B, P, k + 1): factor c is over the points of its row.

    Every point is in its own factor, and in at most as many factors as its cloud has points: with these hints nothing
    is read back from the device.
    """
    clouds, points, arity = index.shape
    start = torch.arange(clouds, device=index.device)[:, None, None] * points
    ptr = torch.arange(clouds + 1, device=index.device) * points
    scopes = FactorGroup((index + start).reshape(clouds * points, arity))
    return FactorGraph(
        clouds * points,
        {GROUP: scopes},
        variable_ptr=ptr,
        factor_ptr={GROUP: ptr},
        graph_size=points,
        validate=False,
        hints={GROUP: Hints(max_degree=points, covers_all=True)},
    )
