"""A pyramid of factor graphs over a scan: points, groups of points, and groups of groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup, Hints, Incidence
from fgnn.models.points.blocks import Dense, has_kernel, nearest_by_kernel
from fgnn.nn import FGNNLayer, Message, VariableToFactor, make_edge_matrix
from fgnn.points import knn

GROUP = "near"
# Differences between neighbours beyond this many units are cut off: stray points are far from everything.
_FARTHEST = 8.0


class PyramidFGNN(nn.Module):
    r"""Scores for every point of a piece of a scan, at several levels.

    Level l has the first :math:`P / 4^l` points, a random sample where rows are in random order. A factor of level
    l + 1 joins a point and its k nearest of level l, and reads them by the first half of Alg. 1,

    .. math:: g_c = \max_{i: (c,i)} \mathcal{Q}(t_{ci} \mid \Phi)\, \mathcal{M}([f_c, f_i] \mid \Theta).

    Within a level, residual blocks of whole FGNN layers exchange messages between points and the factors over their
    neighbours (only the first half on level 0, to save time). On the way back a point takes the mean of its three
    nearest points of the level above, weighted by inverse distance. Coordinates enter through
    :math:`t_{ci} = x_c - x_i` only, in units that double with each level.

    Args:
        inputs: Features of a point; the first three are its coordinates.
        classes: Number of classes.
        widths: Width of each level.
        k: Neighbours of a point, itself included.
        bases: Bases of Q.
        reach: Unit of :math:`t_{ci}` on level 0.

    Shapes:
        (B, P, inputs) to (B, P, classes).
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        widths: Sequence[int] = (32, 64, 128, 128),
        k: int = 12,
        bases: int = 8,
        reach: float = 0.3,
    ) -> None:
        super().__init__()
        if inputs < 4 or len(widths) < 2:
            raise ValueError(f"Expected features beside coordinates and two levels (got {inputs}, {list(widths)})")
        self.inputs, self.classes, self.k, self.reach = inputs, classes, k, reach
        self.stem = Dense(inputs - 3, widths[0])
        self.blocks = nn.ModuleList(_Block(width, bases, both=level > 0) for level, width in enumerate(widths))
        self.down = nn.ModuleList(_half(a, b, bases) for a, b in pairwise(widths))
        self.up = nn.ModuleList(Dense(a + b, a) for a, b in pairwise(widths))
        self.head = nn.Sequential(Dense(widths[0] + inputs - 3, 64), Dense(64, 64), nn.Linear(64, classes))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.inputs:
            raise ValueError(f"Expected points of shape (B, P, {self.inputs}) (got {tuple(x.shape)})")
        levels = len(self.blocks)
        sizes = [max(x.shape[1] >> (2 * level), min(x.shape[1], self.k)) for level in range(levels)]
        xyz, features = x[..., :3].float(), x[..., 3:]
        f, kept = self.stem(features), []
        for level, size in enumerate(sizes):
            own = xyz[:, :size]
            if level:
                group = _Neighbours.of(xyz[:, : sizes[level - 1]], own, self.k, self.reach * 2 ** (level - 1))
                kept.append(f)
                f = group.read(self.down[level - 1], f, f[:, :size])
            f = self.blocks[level](_Neighbours.of(own, own, self.k, self.reach * 2**level), f)
        for level in reversed(range(levels - 1)):
            fine, coarse = xyz[:, : sizes[level]], xyz[:, : sizes[level + 1]]
            f = self.up[level](torch.cat([kept.pop(), _interpolated(coarse, fine, f)], dim=2))
        scores: Tensor = self.head(torch.cat([f, features], dim=2))
        return scores


def _half(inputs: int, outputs: int, bases: int) -> VariableToFactor:
    message = Message(inputs, inputs, outputs)
    matrix = make_edge_matrix("basis", 3, outputs, outputs, bases=bases, hidden=(16,))
    return VariableToFactor(message, matrix, bias=True, norm="batch", activation="relu")


class _Block(nn.Module):
    """A residual block: f + FC(FGNN(FC(f))) with half the width inside."""

    def __init__(self, width: int, bases: int, both: bool) -> None:
        super().__init__()
        inner = width // 2
        self.first, self.last = Dense(width, inner), Dense(inner, width, activation="none")
        self.layer: nn.Module = (
            FGNNLayer(
                inner, {GROUP: inner}, {GROUP: 3}, inner, bias=True, norm="batch", activation="relu",
                q_options={"bases": bases, "hidden": (16,)}, variables_only=True,
            )
            if both
            else _half(inner, inner, bases)
        )  # fmt: skip

    def forward(self, near: _Neighbours, f: Tensor) -> Tensor:
        inner = self.first(f)
        new = (
            near.exchange(self.layer, inner)
            if isinstance(self.layer, FGNNLayer)
            else near.read(self.layer, inner, inner)
        )
        return torch.relu(f + self.last(new))


class _Neighbours:
    """Factors over the k nearest points: their graph, and differences of coordinates as edge features."""

    def __init__(self, graph: FactorGraph, t: Tensor) -> None:
        self.graph, self.t = graph, t

    @classmethod
    @torch.no_grad()
    def of(cls, points: Tensor, centres: Tensor, k: int, unit: float) -> _Neighbours:
        """A factor for each centre (B, C, 3), over its nearest points (B, P, 3)."""
        index = nearest_points(points, centres, k)
        clouds, count, k = index.shape
        near = points.gather(1, index.reshape(clouds, -1, 1).expand(-1, -1, 3)).view(clouds, count, k, 3)
        t = ((centres[:, :, None] - near) / unit).clamp(-_FARTHEST, _FARTHEST)
        start = torch.arange(clouds, device=points.device)[:, None, None] * points.shape[1]
        scopes = FactorGroup((index + start).reshape(clouds * count, k))
        same = centres is points or centres.shape == points.shape
        # with hints nothing is read back from the device
        hints = {GROUP: Hints(max_degree=count, covers_all=same)}
        graph = FactorGraph(clouds * points.shape[1], {GROUP: scopes}, validate=False, hints=hints)
        return cls(graph, t.flatten(0, 1))

    @property
    def incidence(self) -> Incidence:
        return self.graph.incidence(GROUP)

    def read(self, half: nn.Module, f: Tensor, g: Tensor) -> Tensor:
        """New features of the centres, from f (B, P, d) and their own g (B, C, d)."""
        new: Tensor = half(self.incidence, f.flatten(0, 1), g.flatten(0, 1), self.t)
        return new.view(*g.shape[:2], -1)

    def exchange(self, layer: nn.Module, f: Tensor) -> Tensor:
        """New features of the points by a whole layer; the centres are the points.  # shape: (B, P, d)"""
        rows = f.flatten(0, 1)
        new: Tensor = layer(self.graph, rows, {GROUP: rows}, {GROUP: self.t})[0]
        return new.view(*f.shape[:2], -1)


@torch.no_grad()
def nearest_points(points: Tensor, centres: Tensor, k: int) -> Tensor:
    """The k points nearest to each centre.  # shape: (B, P, 3), (B, C, 3) -> (B, C, k)"""
    k = min(k, points.shape[1])
    if has_kernel(points, k):
        return nearest_by_kernel(points, k, centres)
    return knn(points, k, centres)[0]


def _interpolated(coarse: Tensor, fine: Tensor, f: Tensor) -> Tensor:
    """Mean of the three nearest coarse points, by inverse squared distance.  # shape: (B, C, d) -> (B, P, d)"""
    index = nearest_points(coarse, fine, 3)
    flat = index.flatten(1)[..., None]
    near = coarse.gather(1, flat.expand(-1, -1, 3)).view(*index.shape, 3)
    weight = 1 / ((near - fine[:, :, None]).square().sum(-1) + 1e-4)
    weight = (weight / weight.sum(-1, keepdim=True)).to(f.dtype)
    values = f.gather(1, flat.expand(-1, -1, f.shape[2])).view(*index.shape, -1)
    return (values * weight[..., None]).sum(2)
