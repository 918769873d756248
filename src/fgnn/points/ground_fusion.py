"""Decide on ground by a network and a classical filter together.

A network is precise but misses ground in places unlike those it was trained on; a morphological filter takes low
objects for ground but is the same everywhere. A linear rule weighs both, with the terrain around the point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ahead import in_order
from fgnn.points.ground.raster import Raster, dilated, eroded, fill
from fgnn.points.ground.smrf import smrf_margin
from fgnn.points.ground_surface import Tolerance
from fgnn.points.spread import with_ground
from fgnn.points.tiles import Tile, TileStore
from fgnn.schema import Between, Length

# What the rule weighs; see `fusion_features`.
FEATURES = (
    "logit", "slope", "margin", "smrf", "distance", "height", "low vegetation", "building", "logit on slopes",
    "logit in smrf", "distance on slopes", "above lowest", "above 5 m", "above 20 m", "one",
)  # fmt: skip
# Half the width of the openings that heights are measured from, in metres.
_WINDOWS = (5, 20)
# Cells of a block and of its border: the filter needs surroundings several times as wide as its largest window.
_INNER, _BORDER = 4, 2
_NEAREST = 12  # ground points that a plane is fitted to
_SOFTEN = 0.25  # added to squared distances, m²
_RIDGE = 0.05
_CHUNK = 1 << 15

Weight = Annotated[float, Between(-1e6, 1e6)]


@dataclass(frozen=True)
class GroundFusion:
    r"""A point that a network labelled is ground if :math:`w \cdot x > 0`, for its features x.

    Args:
        weights: w, for each of `FEATURES`.
        tolerance: Distance to the triangulated ground within which other points are ground.
    """

    weights: Annotated[tuple[Weight, ...], Length(len(FEATURES), len(FEATURES))]
    tolerance: Tolerance = field(default_factory=Tolerance)


def fusion_features(
    xyz: NDArray[np.float32], probabilities: NDArray[np.float32], classes: Sequence[str], wanted: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Features of points that a network labelled.

    Args:
        xyz: The points of a place and its surroundings, (P, 3).
        probabilities: Of the classes, (P, K).
        wanted: Of which of these points, (P,).

    Returns:
        (Q, F): the logit of ground; the slope of the plane through the ground points around; what `smrf` allows
        subtracted from the distance to its surface, and whether it calls the point ground; distance and height over the
        plane; the probabilities of low vegetation and building; three products; arcsinh of the heights over the lowest
        point of the square metre and over two openings; 1.
    """
    names = list(classes)
    ground = names.index("ground")
    p = np.clip(probabilities[wanted, ground], 1e-3, 1 - 1e-3)
    logit = np.clip(np.log(p / (1 - p)), -6, 6)
    height, slope = _over_plane(xyz, probabilities.argmax(1) == ground, wanted)
    distance = np.clip(np.abs(height), 0, 1)
    exact = xyz.astype(np.float64)
    raster = Raster.of(exact, 1.0, aligned=True)
    margin = smrf_margin(exact, raster)[wanted]
    lowest = fill(raster.lowest, np.isinf(raster.lowest))
    surfaces = [lowest, *(dilated(eroded(lowest, radius), radius) for radius in _WINDOWS)]
    above = (np.arcsinh(np.clip((exact[:, 2] - raster.at(surface))[wanted], -1, 20)) for surface in surfaces)
    others = (
        probabilities[wanted, names.index(name)] if name in names else np.zeros(len(p))
        for name in ("low vegetation", "building")
    )
    columns = (
        logit, slope, np.clip(margin, -2, 2), margin <= 0, distance, np.clip(height, -1, 1), *others, logit * slope,
        logit * (margin <= 0), distance * slope, *above, np.ones(len(p)),
    )  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)


def _over_plane(
    xyz: NDArray[np.float32], ground: NDArray[np.bool_], wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Height over the plane through the nearest ground points without the point itself, and the slope, at most 1."""
    from scipy.spatial import cKDTree

    points, index = xyz[wanted].astype(np.float64), np.flatnonzero(wanted)
    height, slope = np.zeros(len(points)), np.zeros(len(points))
    base, number = xyz[ground].astype(np.float64), np.flatnonzero(ground)
    if len(base) < 4:
        return height, slope
    tree, k = cKDTree(base[:, :2]), min(_NEAREST + 1, len(base))
    for start in range(0, len(points), _CHUNK):
        rows = slice(start, start + _CHUNK)
        distance, near = tree.query(points[rows, :2], k=k)
        weight = np.where(number[near] == index[rows, None], 0.0, 1 / (distance**2 + _SOFTEN))
        height[rows], slope[rows] = _plane(base[near] - points[rows, None], weight / weight.sum(1, keepdims=True))
    return height, np.minimum(slope, 1)


def _plane(offset: NDArray[np.float64], weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Height of the origin over planes fitted to weighted points, and their slopes.  # shape: (Q, k, 3), (Q, k)"""
    mean = np.einsum("qk,qki->qi", weight, offset)
    centred = offset - mean[:, None]
    cov = np.einsum("qk,qki,qkj->qij", weight, centred, centred)
    # a ridge keeps planes through points on a line from tilting
    ridge = _RIDGE * (cov[:, 0, 0] + cov[:, 1, 1]) + 1e-3
    xx, xy, yy = cov[:, 0, 0] + ridge, cov[:, 0, 1], cov[:, 1, 1] + ridge
    determinant = xx * yy - xy**2
    dx = (yy * cov[:, 0, 2] - xy * cov[:, 1, 2]) / determinant
    dy = (xx * cov[:, 1, 2] - xy * cov[:, 0, 2]) / determinant
    return dx * mean[:, 0] + dy * mean[:, 1] - mean[:, 2], np.hypot(dx, dy)


def block_features(
    store: TileStore, votes: NDArray[np.float32], classes: Sequence[str], threads: int = 1
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Slots and features of the labelled points, block by block."""

    def features(block: tuple[Tile, NDArray[np.bool_]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        tile, inner = block
        own = np.asarray(votes[tile.slots])
        known = own.any(1)
        wanted = inner[known]
        if not wanted.any():
            return tile.slots[:0], np.zeros((0, len(FEATURES)), np.float32)
        p = own[known] / own[known].sum(1, keepdims=True)
        return tile.slots[known][wanted], fusion_features(tile.xyz[known], p, classes, wanted)

    with ThreadPoolExecutor(threads, thread_name_prefix="fgnn-fusion") as pool:
        yield from in_order(pool, features, store.blocks(_INNER, _BORDER), threads)


def fuse(
    store: TileStore,
    votes: NDArray[np.float32],
    classes: Sequence[str],
    fusion: GroundFusion,
    threads: int = 1,
) -> None:
    """Apply the rule to the points that the network labelled, in place.

    Args:
        store: The scan, in metres.
        votes: Class probabilities summed over tiles, (slots, K); zeros for points without a label.
        threads: Blocks of the scan treated at once.
    """
    ground = list(classes).index("ground")
    decided: NDArray[np.int8] = store.new_map("decided", np.int8, (len(votes),))
    weights = np.array(fusion.weights, np.float32)
    for slots, x in block_features(store, votes, classes, threads):
        decided[slots] = np.where(x @ weights > 0, 1, -1)
    for start in range(0, len(votes), _CHUNK):  # only now: blocks read the network's votes around them
        rows = slice(start, start + _CHUNK)
        votes[rows] = with_ground(votes[rows], decided[rows] > 0, decided[rows] < 0, ground)
