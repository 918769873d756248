"""The paper's point network: a factor for every point, over the point and its nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import build
from fgnn.points.knn import knn

# As printed in section 4.2; N is the number of classes.
PAPER_POINT_NETWORK = """
Input - FGNN(64) - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(256) - Res[FC(64) - FGNN(64) - FC(256)] - FC(512) -
Res[FC(64) - FGNN(64) - FC(512)] - FC(512) - GlobalPooling - FC(512) - Res[FC(64) - FGNN(64) - FC(512)] - FC(256) -
DR(0.5) - FC(256) - DR(0.5) - FC(128) - FC(N)
"""
GROUP = "near"


class PointFGNN(nn.Module):
    r"""Scores for every point of a cloud, section 4.2.

    Factor c joins point c and its k nearest neighbours; its feature is that point's, and the edge feature is
    :math:`t_{ci} = g_c[0:3] - f_i[0:3]`.

    Args:
        inputs: Features of a point; columns ``space`` of them are the coordinates.
        classes: Labels to tell apart.
        categories: Object categories given with each cloud and appended to its points one-hot; 0 for none.
        k: Neighbours of a point besides itself.
        space: The columns neighbours and edge features are taken from: 0 (x, y, z) or 6 (over the room's extent).
        notation: The architecture.
        bases, aggregate, norm: As in `fgnn.nn.build`. The authors' layers are normalised over the batch.

    Shapes:
        (B, P, inputs), and category (B,) where there are any, to (B, P, classes).
    """

    def __init__(
        self,
        inputs: int = 9,
        classes: int = 13,
        *,
        categories: int = 0,
        k: int = 16,
        space: int = 0,
        notation: str = PAPER_POINT_NETWORK,
        bases: int = 16,
        aggregate: str = "max",
        norm: str | None = "batch",
    ) -> None:
        super().__init__()
        if space + 3 > inputs:
            raise ValueError(f"Expected three coordinates from column {space} on (got {inputs} columns)")
        self.inputs, self.classes, self.categories, self.k, self.space = inputs, classes, categories, k, space
        width = inputs + categories
        self.network = build(
            notation,
            variable_in=width,
            factor_in={GROUP: width},
            edge_in={GROUP: 3},
            num_classes=classes,
            q="basis",
            aggregate=aggregate,
            schedule="parallel",  # Alg. 1 as printed, and what the MPNN form computes
            norm=norm,  # type: ignore[arg-type]
            q_options={"bases": bases},
        )

    def forward(self, x: Tensor, category: Tensor | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.inputs:
            raise ValueError(f"Expected points of shape (B, P, {self.inputs}) (got {tuple(x.shape)})")
        clouds, points, _ = x.shape
        xyz = x[..., self.space : self.space + 3]
        graph = neighbour_graph(xyz, self.k)
        features = x
        if self.categories:
            if category is None:
                raise ValueError(f"Expected a category below {self.categories} for each cloud (got none)")
            one_hot = functional.one_hot(category, self.categories).to(x.dtype)
            features = torch.cat([x, one_hot[:, None].expand(-1, points, -1)], dim=2)
        f = features.reshape(clouds * points, -1)
        flat = xyz.reshape(-1, 3)
        near = graph.groups[GROUP].scopes
        t = flat[:, None] - flat[near]  # shape: (B P, k + 1, 3), point minus neighbour
        scores: Tensor = self.network(graph, f, {GROUP: f}, {GROUP: t})
        return scores.reshape(clouds, points, self.classes)


@torch.no_grad()
def neighbour_graph(xyz: Tensor, k: int) -> FactorGraph:
    """One graph of all clouds (B, P, 3): factor c over point c, first, and its k nearest neighbours."""
    clouds, points, _ = xyz.shape
    if points <= k:
        raise ValueError(f"Expected more than {k} points in a cloud (got {points})")
    index, _ = knn(xyz, k + 1)
    start = torch.arange(clouds, device=xyz.device)[:, None, None] * points
    scopes = (index + start).reshape(clouds * points, k + 1)
    ptr = torch.arange(clouds + 1, device=xyz.device) * points
    return FactorGraph(
        clouds * points, {GROUP: FactorGroup(scopes)}, variable_ptr=ptr, factor_ptr={GROUP: ptr}, validate=False
    )
