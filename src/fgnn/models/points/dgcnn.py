"""DGCNN: EdgeConv layers whose graph is recomputed in feature space at every layer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgnn.models.points.blocks import Dense, dense_stack, nearest, take, tile, turn

Variant = Literal["original", "torch"]
# Options of the dense layers: TensorFlow's batch norm has another eps than torch's.
_DENSE: dict[Variant, dict[str, Any]] = {
    "original": {"activation": "relu", "bias": True, "eps": 1e-3},
    "torch": {"activation": "leaky", "bias": False, "eps": 1e-5},
}


class EdgeConv(nn.Module):
    r"""EdgeConv: :math:`x'_i = \max_{j \in N(i)} h([x_i, x_j - x_i])` with h an MLP.

    Args:
        inputs: Features of a point.
        widths: Widths of h's layers.
        k: Neighbours, including the point itself.
        variant: As in `DGCNN`; ``torch`` also swaps the two halves of the edge feature.
    """

    def __init__(self, inputs: int, widths: list[int], k: int, variant: Variant = "original") -> None:
        super().__init__()
        self.k, self.swap = k, variant == "torch"
        self.edge = dense_stack([2 * inputs, *widths], **_DENSE[variant])

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """Features (B, P, inputs), and the features (B, P, d) in whose space to find neighbours."""
        edges = edge_features(x, nearest(graph, self.k), self.swap)
        new_x: Tensor = self.edge(edges).amax(2)
        return new_x


def edge_features(x: Tensor, neighbours: Tensor, swap: bool = False) -> Tensor:
    """[x_i, x_j − x_i] for every edge, (B, P, k, 2d); with ``swap``, the difference first."""
    there = take(x, neighbours)
    here = x[:, :, None].expand_as(there)
    return torch.cat([there - here, here] if swap else [here, there - here], -1)


class DGCNN(nn.Module):
    """DGCNN for semantic segmentation.

    Three EdgeConvs (64→64, 64→64, 64), their 192 features →1024, max over points, joined to the 192;
    →512→256→``classes``.

    Args:
        inputs: Features of a point.
        classes: Number of classes.
        k: Neighbours, including the point itself.
        graph_columns: The input columns in whose space the first graph is built; None: all.
        variant: ``original`` (ReLU, biases) or ``torch`` (leaky ReLU, no biases, more dropout, torch's
            batch norm), for weights trained by the published implementation in torch.

    Shapes:
        (B, P, inputs) to scores (B, P, classes).
    """

    def __init__(
        self,
        inputs: int = 9,
        classes: int = 13,
        k: int = 20,
        graph_columns: tuple[int, int] | None = (6, 9),
        variant: Variant = "original",
    ) -> None:
        super().__init__()
        dense = _DENSE[variant]
        self.graph_columns = slice(*graph_columns) if graph_columns is not None else slice(None)
        self.conv1 = EdgeConv(inputs, [64, 64], k, variant)
        self.conv2 = EdgeConv(64, [64, 64], k, variant)
        self.conv3 = EdgeConv(64, [64], k, variant)
        self.whole = Dense(192, 1024, **dense)
        self.head = dense_stack([1024 + 192, 512, 256], **dense)
        self.drop = nn.Dropout(0.3 if variant == "original" else 0.5)
        self.scores = Dense(256, classes, activation="none", norm=False, bias=dense["bias"])

    def forward(self, x: Tensor) -> Tensor:
        one = self.conv1(x, x[..., self.graph_columns])
        two = self.conv2(one, one)
        three = self.conv3(two, two)
        local = torch.cat([one, two, three], -1)
        whole = self.whole(local).amax(1)
        scores: Tensor = self.scores(self.drop(self.head(torch.cat([tile(whole, x.shape[1]), local], -1))))
        return scores


class DGCNNPart(nn.Module):
    """DGCNN for part segmentation, with an alignment computed from edges.

    Args:
        parts: Number of parts over all categories.
        categories: Object categories, given one-hot.
        k: Neighbours, including the point itself; the published weights in torch use 40.
        variant: As in `DGCNN`.

    Shapes:
        Points (B, P, 3) and category (B, categories) to scores (B, P, parts).
    """

    def __init__(self, parts: int = 50, categories: int = 16, k: int = 20, variant: Variant = "original") -> None:
        super().__init__()
        self.k, self.swap, dense = k, variant == "torch", _DENSE[variant]
        self.align_edge = dense_stack([6, 64, 128], **dense)
        self.align_local = Dense(128, 1024, **dense)
        self.align_whole = dense_stack([1024, 512, 256], **dense)
        self.align_matrix = nn.Linear(256, 9)
        nn.init.zeros_(self.align_matrix.weight)
        with torch.no_grad():
            self.align_matrix.bias.copy_(torch.eye(3).flatten())
        self.conv1 = EdgeConv(3, [64, 64], k, variant)
        self.conv2 = EdgeConv(64, [64, 64], k, variant)
        self.conv3 = EdgeConv(64, [64], k, variant)
        self.whole = Dense(192, 1024, **dense)
        self.category = Dense(categories, 64, **dense)
        first, second, third = dense_stack([1024 + 64 + 192, 256, 256, 128], **dense)
        drop = 0.4 if variant == "original" else 0.5
        self.head = nn.Sequential(first, nn.Dropout(drop), second, nn.Dropout(drop), third)
        self.scores = Dense(128, parts, activation="none", norm=False, bias=dense["bias"])

    def forward(self, points: Tensor, category: Tensor) -> Tensor:
        points = turn(points, self._alignment(points))
        one = self.conv1(points, points)
        two = self.conv2(one, one)
        three = self.conv3(two, two)
        local = torch.cat([one, two, three], -1)
        whole = torch.cat([self.whole(local).amax(1), self.category(category.to(local))], -1)
        scores: Tensor = self.scores(self.head(torch.cat([tile(whole, points.shape[1]), local], -1)))
        return scores

    def _alignment(self, points: Tensor) -> Tensor:
        edges = edge_features(points, nearest(points, self.k), self.swap)
        whole = self.align_local(self.align_edge(edges).amax(2)).amax(1)
        matrix: Tensor = self.align_matrix(self.align_whole(whole)).view(-1, 3, 3)
        return matrix
