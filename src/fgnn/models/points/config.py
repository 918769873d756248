"""Configuration of a point network, as recipes and cards store it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PointArchitecture = Literal["fgnn", "pointnet", "dgcnn", "pointcnn"]


@dataclass(frozen=True)
class PointConfig:
    """A network on point clouds.

    Args:
        architecture: ``fgnn`` (section 4.2) or a baseline, ``pointnet``, ``dgcnn``, ``pointcnn``.
        k: Neighbours of a point: excluding itself for ``fgnn`` (the paper: 16), including itself for ``dgcnn`` (20).
        bases: Bases of Q, for ``fgnn``.
        aggregate: ``max``, ``sum``, ``mean`` or ``softmax(γ)``, for ``fgnn``.
        notation: Another architecture than the paper's, in its notation, for ``fgnn``.
        reach: Unit of the differences between neighbours, for ``fgnn``; about their standard deviation.
        relative: Use coordinates only as differences between points, for ``fgnn``.
    """

    architecture: PointArchitecture = "fgnn"
    k: int = 16
    bases: int = 16
    aggregate: str = "max"
    notation: str | None = None
    relative: bool = False
    reach: float = 1.0
