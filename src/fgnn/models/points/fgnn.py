"""The paper's point network: a factor for every point, over the point and its nearest neighbours.

The sizes of the factor graph are known beforehand and it is built without host synchronisation, so a training step that
builds it can be recorded as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup, Hints
from fgnn.models.points.blocks import has_kernel, nearest_by_kernel
from fgnn.nn import build
from fgnn.nn.norm import Norm
from fgnn.nn.recorder import is_recording
from fgnn.nn.replays import replays
from fgnn.points import knn

GROUP = "near"

# As printed in section 4.2; N is the number of classes.
PAPER_POINT_NETWORK = """
Input - FGNN(64) - FC(128) - Res[FC(64) - FGNN(64) - FC(128)] - FC(256) - Res[FC(64) - FGNN(64) - FC(256)] - FC(512) -
Res[FC(64) - FGNN(64) - FC(512)] - FC(512) - GlobalPooling - FC(512) - Res[FC(64) - FGNN(64) - FC(512)] - FC(256) -
DR(0.5) - FC(256) - DR(0.5) - FC(128) - FC(N)
"""


class PointFGNN(nn.Module):
    r"""Scores for every point of a cloud, section 4.2.

    Factor c joins point c and its k nearest neighbours; its feature is that point's, and the edge feature is
    :math:`t_{ci} = g_c[0:3] - f_i[0:3]`.

    Args:
        inputs: Features of a point; columns ``space`` of them are the coordinates.
        classes: Number of classes.
        categories: Object categories, appended one-hot to the features of each cloud's points; 0 for none.
        k: Neighbours of a point, excluding itself.
        space: The columns neighbours and edge features are taken from: 0 (x, y, z) or 6 (over the room's extent).
        notation: The architecture.
        reach: Unit of :math:`t_{ci}`, about its standard deviation: Q's first layer is initialised for unit variance,
            and differences between neighbours are far smaller. The paper's is 1; another value only rescales the
            weights of that layer.
        relative: Leave coordinates out of the points' features; they enter through :math:`t_{ci}` only.
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
        norm: Norm = "batch",
        relative: bool = False,
        reach: float = 1.0,
    ) -> None:
        super().__init__()
        if space + 3 > inputs:
            raise ValueError(f"Expected three coordinates from column {space} on (got {inputs} columns)")
        self.inputs, self.classes, self.categories, self.k, self.space = inputs, classes, categories, k, space
        if relative and inputs + categories == 3:
            raise ValueError("Expected further features than the coordinates where they are left out (got none)")
        if not reach > 0:
            raise ValueError(f"Expected reach > 0 (got {reach})")
        self.relative, self.reach = relative, reach
        width = inputs + categories - (3 if relative else 0)
        self.network = build(
            notation,
            variable_in=width,
            factor_in={GROUP: width},
            edge_in={GROUP: 3},
            num_classes=classes,
            q="basis",
            aggregate=aggregate,
            schedule="parallel",  # Alg. 1 as printed; with a factor per point it is an MPNN, eq. (stack_mp_nn)
            norm=norm,
            q_options={"bases": bases},
        )

    @replays
    def forward(self, x: Tensor, category: Tensor | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.inputs:
            raise ValueError(f"Expected points of shape (B, P, {self.inputs}) (got {tuple(x.shape)})")
        clouds, points, _ = x.shape
        xyz = x[..., self.space : self.space + 3]
        features = x
        if self.categories:
            if category is None:
                raise ValueError(f"Expected a category below {self.categories} for each cloud (got none)")
            features = torch.cat(
                [x, one_hot(category, self.categories, x.dtype)[:, None].expand(-1, points, -1)], dim=2
            )
        if self.relative:
            features = torch.cat([features[..., : self.space], features[..., self.space + 3 :]], dim=2)
        f = features.reshape(clouds * points, -1)
        index = neighbours(xyz, self.k)
        near = xyz.gather(1, index.reshape(clouds, -1, 1).expand(-1, -1, 3)).view(clouds, points, -1, 3)
        t = xyz[:, :, None] - near  # shape: (B, P, k + 1, 3), point minus neighbour
        if self.reach != 1:
            t = t / self.reach
        scores: Tensor = self.network(neighbour_graph(index), f, {GROUP: f}, {GROUP: t.flatten(0, 1)})
        return scores.reshape(clouds, points, self.classes)


@torch.no_grad()
def neighbours(xyz: Tensor, k: int) -> Tensor:
    """For each point itself, first, and its k nearest others.  # shape: (B, P, 3) -> (B, P, k + 1)"""
    clouds, points, _ = xyz.shape
    if points <= k:
        raise ValueError(f"Expected more than {k} points in a cloud (got {points})")
    if has_kernel(xyz, k):
        index = nearest_by_kernel(xyz, k, exclude=True)
    elif is_recording():  # a search on the host would not be repeated
        raise RuntimeError(f"Expected points whose neighbours a kernel finds (got {tuple(xyz.shape)}, k {k})")
    else:
        index = knn(xyz, k, include_self=False)[0]
    own = torch.arange(points, device=xyz.device).expand(clouds, points)
    return torch.cat([own[..., None], index], dim=2)


@torch.no_grad()
def neighbour_graph(index: Tensor, points: int | None = None) -> FactorGraph:
    """All clouds as one graph, from rows of `neighbours` (B, C, k + 1): factor c is over the points of its row.

    By default there is a row for every point. Each point is then in its own factor, and in at most as many factors as
    its cloud has points: with these hints nothing is read back from the device. Otherwise ``points`` is P.
    """
    clouds, factors, arity = index.shape
    size = factors if points is None else points
    start = torch.arange(clouds, device=index.device)[:, None, None] * size
    scopes = FactorGroup((index + start).reshape(clouds * factors, arity))
    ptr = torch.arange(clouds + 1, device=index.device)
    return FactorGraph(
        clouds * size,
        {GROUP: scopes},
        variable_ptr=ptr * size,
        factor_ptr={GROUP: ptr * factors},
        graph_size=size,
        validate=False,
        hints={GROUP: Hints(max_degree=factors, covers_all=points is None)},
    )


def one_hot(category: Tensor, categories: int, dtype: torch.dtype) -> Tensor:
    """(B,) to (B, categories), by comparison, without host synchronisation."""
    return (category[:, None] == torch.arange(categories, device=category.device)).to(dtype)
