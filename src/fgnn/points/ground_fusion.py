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
from fgnn.points.ground.raster import Raster, dilated, eroded
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
    xyz: NDArray[np.float32],
    ground: NDArray[np.bool_],
    wanted: NDArray[np.bool_],
    probabilities: NDArray[np.float32],
    classes: Sequence[str],
) -> NDArray[np.float32]:
    """Features of points that a network labelled.

    Args:
        xyz: The labelled points of a place and its surroundings, (P, 3).
        ground: Which of them the network takes for ground, (P,).
        wanted: Of which of them, (P,).
        probabilities: Of the classes for those, (Q, K).

    Returns:
        (Q, F): the logit of ground; the slope of the plane through the ground points around; what `smrf` allows
        subtracted from the distance to its surface, and whether it calls the point ground; distance and height over the
        plane; the probabilities of low vegetation and building; three products; arcsinh of the heights over the lowest
        point of the square metre and over two openings; 1.
    """
    names = list(classes)
    p = np.clip(probabilities[:, names.index("ground")], 1e-3, 1 - 1e-3)
    logit = np.clip(np.log(p / (1 - p)), -6, 6)
    height, slope = _over_plane(xyz, ground, wanted)
    distance = np.clip(np.abs(height), 0, 1)
    exact = xyz.astype(np.float64)
    raster = Raster.of(exact, 1.0, aligned=True).of_points(wanted)
    exact = exact[wanted]
    margin = smrf_margin(exact, raster)
    surfaces = [raster.filled, *(dilated(eroded(raster.filled, radius), radius) for radius in _WINDOWS)]
    above = (np.arcsinh(np.clip(exact[:, 2] - raster.at(surface), -1, 20)) for surface in surfaces)
    others = (
        probabilities[:, names.index(name)] if name in names else np.zeros(len(p))
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
    from fgnn.points.cells import over_planes, sort_into_cells

    (x, y, z), count = np.ascontiguousarray(xyz[wanted].T, np.float64), int(ground.sum())
    if count < 4:
        return np.zeros(len(x)), np.zeros(len(x))
    cells = sort_into_cells(*np.ascontiguousarray(xyz[ground].T, np.float64))
    own = np.where(ground, np.cumsum(ground) - 1, -1)[wanted]
    height, slope = over_planes(cells, x, y, z, own, min(_NEAREST + 1, count))
    return height, np.minimum(slope, 1)


def block_features(
    store: TileStore, votes: NDArray[np.float32], classes: Sequence[str], threads: int = 1
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Slots and features of the labelled points, block by block."""

    ground = list(classes).index("ground")
    labelled: NDArray[np.bool_] = store.new_map("by_network", np.bool_, (len(votes),))
    flat: NDArray[np.bool_] = store.new_map("flat", np.bool_, (len(votes),))
    for start in range(0, len(votes), _CHUNK):
        part = votes[start : start + _CHUNK]
        labelled[start : start + _CHUNK] = known = part.any(1)
        flat[start : start + _CHUNK] = known & (part.argmax(1) == ground)

    def features(block: tuple[Tile, NDArray[np.bool_]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        tile, inner = block
        known = np.asarray(labelled[tile.slots])
        slots, wanted = tile.slots[known], inner[known]
        if not wanted.any():
            return slots[:0], np.zeros((0, len(FEATURES)), np.float32)
        own = votes[slots[wanted]]
        p = own / own.sum(1, keepdims=True)
        return slots[wanted], fusion_features(tile.xyz[known], np.asarray(flat[slots]), wanted, p, classes)

    with ThreadPoolExecutor(threads, thread_name_prefix="fgnn-fusion") as pool:
        yield from in_order(pool, features, store.blocks(_INNER, _BORDER, labelled), threads)


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
