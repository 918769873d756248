"""The parts of a hierarchical point FGNN: blocks of a stage, and the ways down to the next and up again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph
from fgnn.models.points.blocks import Dense, nearest, take
from fgnn.models.points.fgnn import GROUP, neighbour_graph
from fgnn.nn import FGNNLayer, VariableToFactor, make_edge_matrix
from fgnn.nn.message import Message
from fgnn.nn.norm import NodeBatchNorm

# Widest hidden layer of the blocks' pointwise part.
_WIDEST = 384
EPS = 1e-5


class Dropped(nn.Module):
    """Stochastic depth: drop a residual branch for whole clouds, with probability ``rate``, and scale up the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"Expected a rate in [0, 1) (got {rate})")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:  # shape: (B, P, d)
        if not self.training or not self.rate:
            return x
        keep = 1 - self.rate
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"{self.rate:.3f}"


@dataclass(frozen=True, eq=False)
class Level:
    """The factor graph of one stage: factor c is over point c and its nearest neighbours.

    Attributes:
        xyz: (B, P, 3).
        index: (B, P, k + 1), the point itself first.
        unit: Unit of the edge features, about the distance between neighbours.
    """

    xyz: Tensor
    index: Tensor
    unit: float

    @cached_property
    def graph(self) -> FactorGraph:
        """One graph for all clouds, which all layers of the stage share."""
        return neighbour_graph(self.index)

    @cached_property
    def t(self) -> Tensor:
        """Edge features of the graph.  # shape: (B · P, k + 1, 3)"""
        return self.edges(self.xyz, self.index)

    def edges(self, centres: Tensor, index: Tensor) -> Tensor:
        """Edge features :math:`t_{ci}`, centre minus point.  # shape: (B · Q, k + 1, 3)"""
        return ((centres[:, :, None] - take(self.xyz, index)) / self.unit).flatten(0, 1)


class Mixing(nn.Module):
    r"""One FGNN layer (Alg. 1, sequential) over the neighbourhoods of a stage.

    .. math::
        \tilde g_c = \max_{i: (c,i)} \mathcal{Q}(t_{ci}) \mathcal{M}([f_c, f_i]), \qquad
        \tilde f_i = \max_{c: (c,i)} \mathcal{Q}(t_{ci}) \mathcal{M}([\tilde g_c, f_i])

    A factor begins with the features of its point; nothing of it remains after the layer.
    """

    def __init__(self, inputs: int, outputs: int, bases: int) -> None:
        super().__init__()
        self.layer = FGNNLayer(
            inputs, {GROUP: inputs}, {GROUP: 3}, outputs,
            norm="batch", activation="relu", variables_only=True, q_options={"bases": bases},
        )  # fmt: skip

    def forward(self, f: Tensor, level: Level) -> Tensor:  # shape: (B, P, inputs) -> (B, P, outputs)
        rows = f.flatten(0, 1)
        new_f, _ = self.layer(level.graph, rows, {GROUP: rows}, {GROUP: level.t})
        mixed: Tensor = new_f.view(*f.shape[:2], -1)
        return mixed


class Block(nn.Module):
    """``Res[FC(b) - FGNN(b) - FC(d)] - Res[FC(h) - FC(d)]``; the last FC of each has no ReLU."""

    def __init__(self, width: int, inner: int, bases: int, drop: float) -> None:
        super().__init__()
        hidden = min(2 * width, _WIDEST)
        self.first, self.mixing = Dense(width, inner, eps=EPS), Mixing(inner, inner, bases)
        self.last = Dense(inner, width, activation="none", eps=EPS)
        self.pointwise = nn.Sequential(Dense(width, hidden, eps=EPS), Dense(hidden, width, activation="none", eps=EPS))
        self.drop = Dropped(drop)
        self.notation = f"Res[FC({inner}) - FGNN({inner}) - FC({width})] - Res[FC({hidden}) - FC({width})]"

    def forward(self, f: Tensor, level: Level) -> Tensor:  # shape: (B, P, width), kept
        f = f + self.drop(self.last(self.mixing(self.first(f), level)))
        out: Tensor = f + self.drop(self.pointwise(f))
        return out


class Down(nn.Module):
    """From a stage to the next: the factors of the sampled points read their variables, and become the next's points.

    A point's own features reach it through a linear layer beside them.
    """

    def __init__(self, width: int, inner: int, out: int, bases: int) -> None:
        super().__init__()
        message, matrix = Message(width, width, inner), make_edge_matrix("basis", 3, inner, inner, bases=bases)
        self.to_factors = VariableToFactor(message, matrix, norm="batch", activation="relu")
        self.own, self.read = nn.Linear(width, out), nn.Linear(inner, out, bias=False)
        self.norm = NodeBatchNorm(out)

    def forward(self, f: Tensor, level: Level, chosen: Tensor) -> Tensor:
        """Features of the chosen points (B, Q).  # shape: (B, P, width) -> (B, Q, out)"""
        index = take(level.index, chosen[..., None])[:, :, 0]  # shape: (B, Q, k + 1)
        own, centres = (take(x, chosen[..., None])[:, :, 0] for x in (f, level.xyz))
        graph = neighbour_graph(index, f.shape[1])
        t = level.edges(centres, index)
        g = self.to_factors(graph.incidence(GROUP), f.flatten(0, 1), own.flatten(0, 1), t)
        joined = self.own(own) + self.read(g).view(*own.shape[:2], -1)
        new_f: Tensor = self.norm(joined, relu=True)
        return new_f


class Up(nn.Module):
    """From a stage to the finer one: interpolate, add the finer stage's own features, normalise, ReLU."""

    def __init__(self, width: int, out: int, pointwise: bool) -> None:
        super().__init__()
        self.own = nn.Linear(width, out)
        self.norm = NodeBatchNorm(out)
        self.pointwise = (
            nn.Sequential(Dense(out, out, eps=EPS), Dense(out, out, activation="none", eps=EPS)) if pointwise else None
        )

    def forward(self, y: Tensor, f: Tensor, weights: Tensor, more: Tensor | None = None) -> Tensor:
        """Features y (B, Q, out) of the coarse stage and f (B, P, width) of this one to (B, P, out)."""
        total = weights @ y + self.own(f)
        y = self.norm(total if more is None else total + more[:, None], relu=True)
        return y if self.pointwise is None else y + self.pointwise(y)


@torch.no_grad()
def interpolation(fine: Tensor, coarse: Tensor, dtype: torch.dtype = torch.float32, k: int = 3) -> Tensor:
    """Weights of the k nearest coarse points, by inverse squared distance, each row summing to 1.

    A dense matrix: products with it, and their gradients, are far faster on a GPU than gathers and scattered sums.

    # shapes: (B, P, 3), (B, Q, 3) -> (B, P, Q)
    """
    index = nearest(coarse, k, fine)
    distance = (fine[:, :, None] - take(coarse, index)).square().sum(3)
    weights = 1 / (distance + 1e-8)
    weights = weights / weights.sum(2, keepdim=True)
    dense = weights.new_zeros(*fine.shape[:2], coarse.shape[1], dtype=dtype)
    return dense.scatter_(2, index, weights.to(dtype))
