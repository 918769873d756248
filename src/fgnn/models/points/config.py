"""Configuration of a point network, as recipes and cards store it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fgnn.nn.aggregate import Aggregation
from fgnn.nn.notation import parse as parse_notation
from fgnn.schema import Between, Positive, check_fields

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
    k: Annotated[int, Between(1, 1024)] = 16
    bases: Annotated[int, Between(1, 1024)] = 16
    aggregate: Annotated[str, Aggregation.parse] = "max"
    notation: Annotated[str, parse_notation] | None = None
    relative: bool = False
    reach: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
