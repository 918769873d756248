"""PointCNN for segmentation: an encoder and a decoder of X-convolutions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fgnn.models.points.blocks import Dense, nearest, take
from fgnn.points.sampling import farthest_points


class XLayer(NamedTuple):
    """An encoder layer: K neighbours among the K·D nearest, P sampled points (None: all), C features."""

    neighbours: int
    dilation: int
    points: int | None
    features: int


class XBack(NamedTuple):
    """A decoder layer, from the points of encoder layer ``source`` to those of layer ``target``."""

    neighbours: int
    dilation: int
    source: int
    target: int


S3DIS_DOWN = [XLayer(8, 1, None, 256), XLayer(12, 2, 768, 512), XLayer(16, 2, 384, 768), XLayer(16, 4, 128, 1024)]
S3DIS_UP = [XBack(16, 4, 3, 3), XBack(16, 2, 3, 2), XBack(12, 2, 2, 1), XBack(8, 2, 1, 0)]
SHAPENET_DOWN = [XLayer(8, 1, None, 256), XLayer(12, 2, 768, 256), XLayer(16, 2, 384, 512), XLayer(16, 6, 128, 1024)]
SHAPENET_UP = [XBack(16, 6, 3, 2), XBack(12, 6, 2, 1), XBack(8, 6, 1, 0), XBack(8, 4, 0, 0)]


def _dense(inputs: int, outputs: int) -> Dense:
    return Dense(inputs, outputs, activation="elu", norm_last=True, bias=False, eps=1e-3, momentum=0.01)


class XConv(nn.Module):
    """An X-convolution: concatenate neighbours' features with lifted positions, weight and permute them by a K × K
    matrix computed from relative positions, then convolve.

    Args:
        inputs: Features of a point besides its position.
        lifted: Features computed from a relative position.
        outputs: Features of a point after the convolution.
        neighbours, dilation: As in `XLayer`.
        multiplier: Depth multiplier of the depthwise convolution.
    """

    def __init__(self, inputs: int, lifted: int, outputs: int, neighbours: int, dilation: int, multiplier: int) -> None:
        super().__init__()
        k = self.neighbours = neighbours
        self.dilation, self.multiplier = dilation, multiplier
        self.lift = nn.Sequential(_dense(3, lifted), _dense(lifted, lifted))
        self.x1 = _dense(3 * k, k * k)
        self.x2, self.x3 = (nn.Parameter(torch.empty(k, k, k)) for _ in range(2))  # by row: k weights to k outputs
        self.x2_norm, self.x3_norm = (nn.BatchNorm1d(k * k, eps=1e-3, momentum=0.01) for _ in range(2))
        self.depth = nn.Parameter(torch.empty(inputs + lifted, k, multiplier))
        self.point = _dense((inputs + lifted) * multiplier, outputs)
        for weight in (self.x2, self.x3, self.depth):
            nn.init.xavier_uniform_(weight)

    def forward(self, points: Tensor, features: Tensor | None, queries: Tensor) -> Tensor:
        """(B, P, 3), (B, P, inputs) and queries (B, Q, 3) to (B, Q, outputs)."""
        near = nearest(points, self.neighbours * self.dilation, queries)[..., :: self.dilation]  # shape: (B, Q, K)
        if near.shape[-1] < self.neighbours:
            raise ValueError(f"Expected at least {self.neighbours * self.dilation} points (got {points.shape[1]})")
        local = take(points, near) - queries[:, :, None]
        joined = self.lift(local)
        if features is not None:
            joined = torch.cat([joined, take(features, near)], -1)
        matrix = self._matrix(local)
        mixed = matrix @ joined  # shape: (B, Q, K, inputs + lifted)
        spread = torch.einsum("bqkc,ckm->bqcm", mixed, self.depth).flatten(2)
        out: Tensor = self.point(spread)
        return out

    def _matrix(self, local: Tensor) -> Tensor:
        k = self.neighbours
        x = self.x1(local.flatten(2)).unflatten(-1, (k, k))
        x = nn.functional.elu(torch.einsum("bqrk,rkm->bqrm", x, self.x2))
        x = self._norm(x, self.x2_norm)
        return self._norm(torch.einsum("bqrk,rkm->bqrm", x, self.x3), self.x3_norm)

    @staticmethod
    def _norm(x: Tensor, norm: nn.BatchNorm1d) -> Tensor:
        flat: Tensor = norm(x.reshape(-1, x.shape[-1] * x.shape[-2]))
        return flat.reshape(x.shape)


class PointCNN(nn.Module):
    """PointCNN for segmentation.

    Args:
        inputs: Features of a point besides its position.
        classes: Number of classes.
        down, up: The encoder's and the decoder's layers; the defaults are those for S3DIS.

    Shapes:
        Points (B, P, 3) and features (B, P, inputs) to scores (B, P, classes).
    """

    def __init__(
        self,
        inputs: int = 6,
        classes: int = 13,
        down: list[XLayer] | None = None,
        up: list[XBack] | None = None,
    ) -> None:
        super().__init__()
        self.down_layers, self.up_layers = down or S3DIS_DOWN, up or S3DIS_UP
        first = self.down_layers[0].features // (4 if inputs else 2)
        self.features = _dense(inputs, first) if inputs else None
        convs, before = [], first if inputs else 0
        for n, layer in enumerate(self.down_layers):
            lifted = layer.features // (4 if inputs else 2) if n == 0 else before // 4
            multiplier = 4 if n == 0 else -(-layer.features // before)
            convs.append(XConv(before, lifted, layer.features, layer.neighbours, layer.dilation, multiplier))
            before = layer.features
        self.down = nn.ModuleList(convs)
        ups, fuses = [], []
        for back in self.up_layers:
            width = self.down_layers[back.target].features
            lifted = self.down_layers[back.source].features // 4
            ups.append(XConv(before, lifted, width, back.neighbours, back.dilation, 1))
            fuses.append(_dense(2 * width, width))
            before = width
        self.up, self.fuse = nn.ModuleList(ups), nn.ModuleList(fuses)
        self.head = nn.Sequential(_dense(before, 256), _dense(256, 256), nn.Dropout(0.5))
        self.scores = nn.Linear(256, classes)

    def forward(self, points: Tensor, features: Tensor | None = None) -> Tensor:
        if (features is None) != (self.features is None):
            raise ValueError("Expected features exactly where the network was built with inputs > 0")
        levels: list[tuple[Tensor, Tensor]] = []
        at, x = points, None if self.features is None else self.features(features)
        farthest_first = False  # a prefix of points in that order is the smaller sample, without another search
        for layer, conv in zip(self.down_layers, self.down, strict=True):
            count = at.shape[1] if layer.points is None else min(layer.points, at.shape[1])
            queries = at[:, :count] if farthest_first else sample(at, count)
            farthest_first |= count < at.shape[1]
            x = conv(at, x, queries)
            at = queries
            levels.append((at, x))
        for back, conv, fuse in zip(self.up_layers, self.up, self.fuse, strict=True):
            queries, skip = levels[back.target]
            x = fuse(torch.cat([conv(levels[back.source][0], x, queries), skip], -1))
        scores: Tensor = self.scores(self.head(x))
        return scores


def sample(points: Tensor, count: int) -> Tensor:
    """At most ``count`` of the points (B, P, 3), by farthest point sampling from the first."""
    if count >= points.shape[1]:
        return points
    first = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    return take(points, farthest_points(points, count, first)[..., None])[:, :, 0]
