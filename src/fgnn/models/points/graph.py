"""Neighbourhoods of points as the edges of a factor graph, on a GPU without a word to the host.

The factor of point c joins c and its k nearest neighbours. All sizes are known beforehand, so the edges' order by
variable and the kernels' layout of them are made with fixed shapes: a training step can be recorded as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.graph import Incidence
from fgnn.points.knn import knn
from fgnn.runtime.triton_support import can_launch

# Points of one cloud up to which the GPU's kernel compares all with all.
_SMALL = 1 << 15
# Edges in a row of the kernels' layout: neighbourhoods of 17 and about 17 fill rows of four best.
_WIDTH = 4


@torch.no_grad()
def neighbours(xyz: Tensor, k: int) -> Tensor:
    """For each point itself, first, and its k nearest others.  # shape: (B, P, 3) -> (B, P, k + 1)"""
    clouds, points, _ = xyz.shape
    if points <= k:
        raise ValueError(f"Expected more than {k} points in a cloud (got {points})")
    if can_launch(xyz.device) and points <= _SMALL:
        from fgnn.points.knn_grid import by_tiles

        index, _ = by_tiles(xyz.detach().float().contiguous(), None, k, True)
        index = index.clamp(0, points - 1)  # not a number has no neighbours, and nobody asks whether there is one
    else:
        index, _ = knn(xyz, k, include_self=False)
    own = torch.arange(points, device=xyz.device).expand(clouds, points)
    return torch.cat([own[..., None], index], dim=2)


@torch.no_grad()
def cloud_edges(index: Tensor) -> Incidence:
    """The edges of all clouds as one graph, from `neighbours`: factor c over the points of its row."""
    clouds, points, arity = index.shape
    start = torch.arange(clouds, device=index.device)[:, None, None] * points
    nodes = clouds * points
    each = torch.arange(nodes + 1, device=index.device)
    edges = Incidence(
        factor=each[:-1, None].expand(nodes, arity).reshape(-1),
        variable=(index + start).reshape(-1),
        factor_ptr=each * arity,
        num_factors=nodes,
        num_variables=nodes,
        arity=arity,
    )
    # Each point is in its own factor: no node is without edges, and nobody needs to look.
    edges.__dict__["_has_empty_variable"] = False
    if can_launch(index.device):
        lay_out(edges, points)
    return edges


def lay_out(edges: Incidence, most: int) -> None:
    """Give edges their order by variable and the kernels' layout, all by shapes known beforehand.

    Args:
        most: No node has more edges than this.
    """
    from fgnn.nn.backends.triton.layout import keep_layout

    count = edges.num_variables
    sorted_to, order = torch.sort(edges.variable.to(torch.int32), stable=True)
    nodes = torch.arange(count + 1, device=order.device, dtype=torch.int32)
    edges.__dict__["var_edge"] = order
    edges.__dict__["var_ptr"] = torch.searchsorted(sorted_to, nodes)
    for side in ("factor", "variable"):
        keep_layout(edges, side, _WIDTH, most)
