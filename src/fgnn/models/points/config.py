"""Configuration of a point network, as recipes and cards store it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fgnn.nn.aggregate import Aggregation
from fgnn.nn.notation import parse as parse_notation
from fgnn.schema import Between, Extent, Length, check_fields

PointArchitecture = Literal["fgnn", "pointnet", "dgcnn", "pointcnn", "hierarchical", "pyramid"]
# Widths of the stages of a hierarchy.
Sizes = Annotated[tuple[Annotated[int, Between(1, 4096)], ...], Length(9)]


@dataclass(frozen=True)
class PointConfig:
    """A network on point clouds.

    Args:
        architecture: ``fgnn`` (section 4.2), ``hierarchical`` (FGNN layers on ever fewer points), ``pyramid`` (the same
            idea for pieces of scans, small and fast) or a baseline, ``pointnet``, ``dgcnn``, ``pointcnn``.
        k: Neighbours of a point: excluding itself for ``fgnn`` (the paper: 16) and ``hierarchical`` (15), including
            itself for ``dgcnn`` (20) and ``pyramid`` (12).
        bases: Bases of Q, for ``fgnn``, ``hierarchical`` and ``pyramid``.
        aggregate: ``max``, ``sum``, ``mean`` or ``softmax(γ)``, for ``fgnn``.
        notation: Another architecture than the paper's, in its notation, for ``fgnn``.
        reach: Unit of the differences between neighbours, for ``fgnn``, ``hierarchical`` and ``pyramid``; about their
            standard deviation.
        relative: Use coordinates only as differences between points, for ``fgnn``.
        samples, widths, inner, depths: The stages, for ``hierarchical``; see `fgnn.models.points.hierarchy.Stages`.
            ``widths`` also those of ``pyramid``.
        drop_path: Rate of stochastic depth in the last block, for ``hierarchical``.
    """

    architecture: PointArchitecture = "fgnn"
    k: Annotated[int, Between(1, 1024)] = 16
    bases: Annotated[int, Between(1, 1024)] = 16
    aggregate: Annotated[str, Aggregation.parse] = "max"
    notation: Annotated[str, parse_notation] | None = None
    relative: bool = False
    reach: Extent = 1.0
    samples: Annotated[tuple[Annotated[int, Between(1, 10**6)], ...], Length(8)] = (512, 192, 64)
    widths: Sizes = (96, 192, 320, 512)
    inner: Sizes = (32, 64, 128, 128)
    depths: Annotated[tuple[Annotated[int, Between(0, 64)], ...], Length(9)] = (1, 2, 2, 1)
    drop_path: Annotated[float, Between(0, 1, below=True)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
