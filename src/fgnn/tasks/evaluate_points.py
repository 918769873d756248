"""Evaluate a point network on shapes, rooms or held-out scans, by a chosen protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fgnn.data.s3dis import CLASSES, rooms
from fgnn.errors import InputError
from fgnn.models import PointNetwork
from fgnn.models.points.segmenter import load_point_network
from fgnn.points import scene_score
from fgnn.runtime.progress import Log
from fgnn.tasks.data_settings import RoomData, ShapeData
from fgnn.tasks.points import evaluate_points, load_scans
from fgnn.tasks.recipe import Recipe, TrainedBy, TrainedOn
from fgnn.tasks.room_scores import PROTOCOLS, labeller, score_rooms
from fgnn.tasks.shapes import draw_shapes, score_shapes, split_shapes
from fgnn.tasks.variation import Variation, variation_of
from fgnn.weights import load_weights

_VOTES = 10
# Protocols by kind of data; the first is the default.
SHAPE_PROTOCOLS = ("one-pass", "voted")
SCAN_PROTOCOLS = ("tiles",)
Metrics = dict[str, dict[str, float]]
_Name = TypeVar("_Name", bound=str)


def evaluate_point_weights(
    place: str | Path,
    *,
    data: str | None = None,
    protocol: str | None = None,
    count: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    log: Log = lambda text: None,
) -> Metrics:
    """Return metrics by protocol, as fractions of one.

    Args:
        place: The folder of a run, a weights file or a packaged name.
        data: The folder of the test data; by default that of training.
        protocol: ``one-pass`` or ``voted`` for shapes; ``pn-sampled``, ``all-points`` or ``voted`` for rooms. Scans
            are tested on the tiles of the held-out files.
        count: At most this many shapes, drawn at random by ``seed``, or the first rooms; all by default.
    """
    weights = load_weights(place)
    network = load_point_network(weights, device)
    trained = weights.card.part(TrainedOn).data
    part = trained.shapes or trained.rooms or trained.scans
    if part is None:
        raise InputError("Expected shapes, rooms or scans", file=weights.card.file, place="data")
    if data is None and not Path(part.root).is_dir():
        raise InputError(f"Expected --data, the folder of the test data (trained from {part.root!r}, not found here)")
    if data is not None:
        part = replace(part, root=data)
    if isinstance(part, ShapeData):
        return _shapes(network, part, protocol, count, seed, variation_of(weights.card))
    if isinstance(part, RoomData):
        return _rooms(network, part, protocol, count, seed, log)
    recipe = weights.card.part(TrainedBy).recipe
    return _scans(network, replace(recipe, data=replace(trained, scans=part)), protocol)


def _shapes(
    network: PointNetwork, data: ShapeData, protocol: str | None, count: int | None, seed: int, variation: Variation
) -> Metrics:
    chosen = _one_of(protocol, SHAPE_PROTOCOLS)
    shapes = split_shapes(data.root, "test")
    total = len(shapes)
    shapes = draw_shapes(shapes, total if count is None else count, seed)
    drawn = "" if len(shapes) == total else f", {len(shapes):,} of {total:,} shapes"
    trained_on = [split_shapes(data.root, split) for split in data.splits] if count is None else []
    votes = _VOTES if chosen == "voted" else 1
    half = next(network.parameters()).is_cuda
    how: dict[str, Any] = {"votes": votes, "variation": variation, "half": half, "seed": seed}
    tables = score_shapes(network, shapes, data.points, trained_on, **how)
    return {
        table.protocol + drawn: {
            "instance mIoU": table.instance, "category mIoU": table.class_average, "accuracy": table.accuracy,
            "shapes": float(table.shapes), **table.category,
        }
        for table in tables
    }  # fmt: skip


def _rooms(
    network: PointNetwork, data: RoomData, protocol: str | None, count: int | None, seed: int, log: Log
) -> Metrics:
    chosen = _one_of(protocol, PROTOCOLS)
    tested = list(rooms(data.root, (data.area,)))[:count]
    counts = score_rooms(labeller(network), tested, chosen, seed=seed, log=log)
    score = scene_score(counts)
    ious = {name: float(v) for name, v in zip(CLASSES, score.iou, strict=True) if v == v}
    return {chosen: {"mean IoU": score.mean_iou, "accuracy": score.accuracy, "rooms": float(len(tested)), **ious}}


def _scans(network: PointNetwork, recipe: Recipe, protocol: str | None) -> Metrics:
    chosen = _one_of(protocol, SCAN_PROTOCOLS)
    loaded = load_scans(recipe)
    metrics = evaluate_points(network.eval(), loaded.held_out, loaded)
    del metrics["loss"]
    return {chosen: {"mean IoU": metrics.pop("miou"), **{k.removeprefix("iou "): v for k, v in metrics.items()}}}


def _one_of(protocol: str | None, names: tuple[_Name, ...]) -> _Name:
    if protocol is None:
        return names[0]
    for name in names:
        if name == protocol:
            return name
    raise InputError(f"Expected a protocol among {', '.join(names)} for these weights (got {protocol!r})")
