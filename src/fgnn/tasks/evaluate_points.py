"""A trained point network on a test set: shapes, rooms or held-out scans, by the protocol asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fgnn.data.s3dis import CLASSES, rooms
from fgnn.errors import InputError
from fgnn.models.points.network import PointNetwork
from fgnn.models.points.segmenter import load_point_network
from fgnn.points.metrics import scene_score
from fgnn.tasks.dataclass_io import parse
from fgnn.tasks.points import Loaded, evaluate_points, load_scans
from fgnn.tasks.recipe import Data, Recipe
from fgnn.tasks.room_scores import PROTOCOLS, labeller, score_rooms
from fgnn.tasks.shape_data import some_of_each, split_set, split_shapes
from fgnn.tasks.shape_scores import score_shapes
from fgnn.weights import load_weights

_VOTES = 10
# What each kind of data can be tested by; the first is the default.
SHAPE_PROTOCOLS = ("one-pass", "voted")
SCAN_PROTOCOLS = ("tiles",)
Metrics = dict[str, dict[str, float]]
_Known = TypeVar("_Known", bound=str)


def evaluate_point_weights(
    place: str | Path,
    *,
    data: str | None = None,
    protocol: str | None = None,
    count: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Metrics:
    """Metrics by the protocol's name, as fractions of one.

    Args:
        place: A run's folder, a weights file or a packaged name.
        data: Where the test data lies now; by default where the weights were trained from.
        protocol: ``one-pass`` or ``voted`` for shapes; ``pn-sampled``, ``all-points`` or ``voted`` for rooms; a
            person's own scans are tested on the tiles of the files held out.
        count: At most so many shapes, or rooms; all by default.
    """
    weights = load_weights(place)
    network = load_point_network(weights, device)
    known = parse(Data, weights.card["data"], file=place, place="data")
    trained_from = next(part.root for part in (known.shapes, known.rooms, known.scans) if part is not None)
    if data is None and not Path(trained_from).is_dir():
        raise InputError(
            f"Expected --data, the folder of the test data (trained from {trained_from!r}, not found here)"
        )
    if known.shapes is not None:
        root, points = data or known.shapes.root, known.shapes.points
        return _shapes(network, root, known.shapes.splits, points, protocol, count, seed)
    if known.rooms is not None:
        return _rooms(network, data or known.rooms.root, known.rooms.area, protocol, count, seed, say)
    return _scans(network, known, weights.card, data, protocol)


def _shapes(
    network: PointNetwork,
    root: str,
    splits: tuple[str, ...],
    points: int,
    protocol: str | None,
    count: int | None,
    seed: int,
) -> Metrics:
    chosen = _one_of(protocol, SHAPE_PROTOCOLS)
    shapes = split_shapes(root, "test")
    if count is not None and count < len(shapes):
        shapes = some_of_each(shapes, count)
    seen = [split_shapes(root, split) for split in splits] if count is None else []
    votes = _VOTES if chosen == "voted" else 1
    half = next(network.parameters()).is_cuda
    tables = score_shapes(network, shapes, split_set(shapes, points), seen, votes=votes, half=half, seed=seed)
    return {
        table.protocol: {
            "instance mIoU": table.instance, "category mIoU": table.class_average, "accuracy": table.accuracy,
            "shapes": float(table.shapes), **table.category,
        }
        for table in tables
    }  # fmt: skip


def _rooms(
    network: PointNetwork,
    root: str,
    area: int,
    protocol: str | None,
    count: int | None,
    seed: int,
    say: Callable[[str], None],
) -> Metrics:
    chosen = _one_of(protocol, PROTOCOLS)
    found = list(rooms(root, (area,)))[:count]
    counts = score_rooms(labeller(network), found, chosen, seed=seed, say=say)
    score = scene_score(counts)
    ious = {name: float(v) for name, v in zip(CLASSES, score.iou, strict=True) if v == v}
    return {chosen: {"mean IoU": score.mean_iou, "accuracy": score.accuracy, "rooms": float(len(found)), **ious}}


def _scans(network: PointNetwork, known: Data, card: Any, data: str | None, protocol: str | None) -> Metrics:
    chosen = _one_of(protocol, SCAN_PROTOCOLS)
    assert known.scans is not None
    recipe = parse(Recipe, card["recipe"], place="recipe")
    scans = known.scans if data is None else replace(known.scans, root=data)
    loaded: Loaded = load_scans(replace(recipe, data=replace(known, scans=scans)))
    found = evaluate_points(network.eval(), loaded.held_out, loaded)
    named = {"miou": "mean IoU", "accuracy": "accuracy"}
    told = {named.get(name, name.removeprefix("iou ")): v for name, v in found.items() if name not in _INNER}
    return {chosen: told}


_INNER = ("loss", "agreement")  # what the loop selects by


def _one_of(protocol: str | None, known: tuple[_Known, ...]) -> _Known:
    if protocol is None:
        return known[0]
    for name in known:
        if name == protocol:
            return name
    raise InputError(f"Expected a protocol among {', '.join(known)} for these weights (got {protocol!r})")
