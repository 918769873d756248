"""PointNet for segmentation, in both published forms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.models.points.blocks import Dense, dense_stack, tile, turn


class PointNet(nn.Module):
    """PointNet for semantic segmentation: per-point layers, a global maximum, then per-point layers on both.

    ``inputs``→64→64→64→128→1024, max over points, 256→128, tiled and joined to the 1024; →512→256→``classes``.

    Args:
        inputs: Features of a point.
        classes: Number of classes.
        dropout: Dropout rate of the last hidden layer.

    Shapes:
        (B, P, inputs) to scores (B, P, classes).
    """

    def __init__(self, inputs: int = 9, classes: int = 13, dropout: float = 0.3) -> None:
        super().__init__()
        self.local = dense_stack([inputs, 64, 64, 64, 128, 1024])
        self.whole = dense_stack([1024, 256, 128])
        self.head = dense_stack([1024 + 128, 512, 256])
        self.drop = nn.Dropout(dropout)
        self.scores = Dense(256, classes, activation="none", norm=False)

    def forward(self, x: Tensor) -> Tensor:
        local = self.local(x)  # shape: (B, P, 1024)
        whole = self.whole(local.amax(1))
        scores: Tensor = self.scores(self.drop(self.head(torch.cat([local, tile(whole, x.shape[1])], -1))))
        return scores


class Alignment(nn.Module):
    """A T-net: a matrix for each cloud, initialised to the identity.

    Args:
        size: The matrix is size × size.
        local: Widths of the per-point layers before the maximum.
        whole: Widths of the layers after it.
    """

    def __init__(self, size: int, local: list[int], whole: list[int]) -> None:
        super().__init__()
        self.size = size
        self.local = dense_stack([size, *local])
        self.whole = dense_stack([local[-1], *whole])
        self.matrix = nn.Linear(whole[-1], size * size)
        nn.init.zeros_(self.matrix.weight)
        with torch.no_grad():
            self.matrix.bias.copy_(torch.eye(size).flatten())

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, size) to (B, size, size)."""
        matrix: Tensor = self.matrix(self.whole(self.local(x).amax(1)))
        return matrix.view(-1, self.size, self.size)


class PointNetPart(nn.Module):
    """PointNet for part segmentation: two T-nets, and a head that reads the features of every layer.

    Args:
        parts: Number of parts over all categories.
        categories: Object categories, given one-hot.

    Shapes:
        Points (B, P, 3) and category (B, categories) to scores (B, P, parts) and the 128 × 128 alignment, whose
        distance from orthogonality is part of the loss (`orthogonality`).
    """

    def __init__(self, parts: int = 50, categories: int = 16) -> None:
        super().__init__()
        self.align_points = Alignment(3, [64, 128, 1024], [128, 128])
        self.layer1, self.layer2, self.layer3 = Dense(3, 64), Dense(64, 128), Dense(128, 128)
        self.align_features = Alignment(128, [256, 1024], [512, 256])
        self.layer4, self.layer5 = Dense(128, 512), Dense(512, 2048)
        joined = 2048 + categories + 64 + 128 + 128 + 512 + 2048
        self.head = nn.Sequential(
            Dense(joined, 256), nn.Dropout(0.2), Dense(256, 256), nn.Dropout(0.2), Dense(256, 128)
        )
        self.scores = Dense(128, parts, activation="none", norm=False)

    def forward(self, points: Tensor, category: Tensor) -> tuple[Tensor, Tensor]:
        one = self.layer1(turn(points, self.align_points(points)))
        two = self.layer2(one)
        three = self.layer3(two)
        transform = self.align_features(three)
        four = self.layer4(three @ transform)
        five = self.layer5(four)
        whole = torch.cat([five.amax(1), category.to(five)], -1)
        joined = torch.cat([tile(whole, points.shape[1]), one, two, three, four, five], -1)
        return self.scores(self.head(joined)), transform


def orthogonality(transform: Tensor) -> Tensor:
    """½‖TTᵀ − I‖², summed over the batch."""
    eye = torch.eye(transform.shape[-1], device=transform.device, dtype=transform.dtype)
    return 0.5 * (transform @ transform.transpose(1, 2) - eye).square().sum()
