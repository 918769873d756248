"""Building blocks of the point networks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgnn.nn.norm import NodeBatchNorm
from fgnn.nn.plain_modules import is_plain, linear_weights
from fgnn.points.knn_gpu import by_tiles
from fgnn.runtime.triton_support import can_launch

Activation = Literal["relu", "leaky", "elu", "none"]
_ACTIVATIONS: dict[str, type[nn.Module] | None] = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "elu": nn.ELU, "none": None}
# Limits of the k-NN kernel: points of a cloud, and neighbours.
_SMALL, _MOST = 1 << 15, 128


class Dense(nn.Module):
    """A linear layer on the last axis, batch norm and an activation: a 1×1 convolution over points.

    Args:
        activation: ``leaky`` has slope 0.2.
        norm: Whether to normalise over all axes but the last.
        norm_last: Normalise after the activation instead of before it.
        eps, momentum: Of the batch norm, as in torch (momentum 0.1 keeps 0.9 of the running value).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        activation: Activation = "relu",
        norm: bool = True,
        bias: bool = True,
        norm_last: bool = False,
        eps: float = 1e-3,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)
        self.norm = NodeBatchNorm(outputs) if norm else None
        if self.norm is not None:
            self.norm.norm.eps, self.norm.norm.momentum = eps, momentum
        kind = _ACTIVATIONS[activation]
        self.activation = None if kind is None else kind(0.2) if activation == "leaky" else kind()
        self.norm_last = norm_last

    def forward(self, x: Tensor) -> Tensor:
        weights = linear_weights(self.linear)
        if weights is not None and isinstance(self.norm, NodeBatchNorm) and not self.norm_last and self.norm.fused(x):
            # The fused norm also adds the bias and applies the ReLU.
            relu = self.activation is not None and is_plain(self.activation, nn.ReLU)
            x = self.norm(nn.functional.linear(x, weights[0]), weights[1], relu=relu)
            return x if relu or self.activation is None else self.activation(x)
        x = self.linear(x)
        for part in (self.activation, self.norm) if self.norm_last else (self.norm, self.activation):
            x = x if part is None else part(x)
        return x


def dense_stack(widths: list[int], **options: Any) -> nn.Sequential:
    """A sequence of `Dense` layers with these widths and the same options."""
    return nn.Sequential(*(Dense(a, b, **options) for a, b in pairwise(widths)))


def tile(vector: Tensor, points: int) -> Tensor:
    """One vector per cloud (B, C), repeated for each point (B, P, C)."""
    return vector[:, None].expand(-1, points, -1)


def turn(points: Tensor, matrix: Tensor) -> Tensor:
    """Points (B, P, 3) times a matrix for each cloud (B, 3, 3), in float32 also under autocast.

    Half precision would round away the differences between neighbours.
    """
    with torch.autocast(points.device.type, enabled=False):
        return (points.float()[..., None] * matrix.float()[:, None]).sum(2)


def has_kernel(x: Tensor, k: int) -> bool:
    """Whether the k-NN kernel can search these points (B, P, d)."""
    return x.shape[-1] == 3 and can_launch(x.device) and x.shape[1] <= _SMALL and k <= _MOST


def nearest_by_kernel(x: Tensor, k: int, queries: Tensor | None = None, exclude: bool = False) -> Tensor:
    """The k nearest points of each query, with ``exclude`` without the point itself; no host synchronisation."""
    targets = None if queries is None else queries.float().contiguous()
    index, _ = by_tiles(x.detach().float().contiguous(), targets, k, exclude)
    return index.clamp(0, x.shape[1] - 1)  # a NaN has no neighbours, and checking would synchronise


@torch.no_grad()
def nearest(x: Tensor, k: int, queries: Tensor | None = None) -> Tensor:
    """The k nearest points of each query (by default of each point, itself included), (B, Q, k).

    A matrix product and ``topk``, for clouds of a few thousand points and features of any width; on a GPU the k-NN
    kernel for positions. Distances are in float32 also under autocast, since neighbours differ by little.
    """
    k = min(k, x.shape[1])
    if has_kernel(x, k):
        return nearest_by_kernel(x, k, queries)
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        to = x if queries is None else queries.float()
        squares = x.square().sum(-1)
        distance = squares[:, None, :] - 2 * (to @ x.transpose(1, 2))  # the query's own square is constant along a row
        return distance.topk(k, dim=-1, largest=False).indices


def take(x: Tensor, index: Tensor) -> Tensor:
    """Features of the points at ``index``: (B, P, C) and (B, Q, k) to (B, Q, k, C)."""
    flat = index.flatten(1)[..., None].expand(-1, -1, x.shape[-1])
    return torch.gather(x, 1, flat).reshape(*index.shape, x.shape[-1])
