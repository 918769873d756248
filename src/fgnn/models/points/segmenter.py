"""Trained point networks applied to a person's own cloud."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.models.points.config import PointConfig
from fgnn.models.points.network import PointNetwork
from fgnn.points.cloud import Cloud
from fgnn.points.segment import UNLABELLED, Labelling, Segmenter, segment_cloud
from fgnn.points.tiles import OnChunk
from fgnn.weights import Weights, load_weights

SCAN, SHAPE = "scan: tile", "shape: unit sphere"
_VOTES = 4  # passes over an object, each with its points cut anew


def load_point_network(weights: Weights, device: torch.device | str = "cpu") -> PointNetwork:
    """The network a card describes, with its tensors, ready to predict."""
    card = weights.card
    if card.get("task") != "points":
        raise InputError(f"Expected weights of a point network (got '{weights.name}', a {card.get('task')} network)")
    network = PointNetwork(
        PointConfig(**card["network"]), card["features"], len(card["classes"]), len(card["categories"])
    )
    try:
        network.load_state_dict(dict(weights.tensors))
    except RuntimeError as error:
        raise InputError(f"the tensors of '{weights.name}' do not fit its card") from error
    return network.to(device).eval()


def load_segmenter(
    model: str | Path, device: torch.device | str = "cpu", batch: int | None = None, votes: int = 4
) -> Segmenter:
    """What labels scans with packaged weights, a weights file or a run.

    Args:
        batch: Pieces labelled at once; by default `usual_batch`.
        votes: Tiles that label each point: 4, 2 or 1.
    """
    weights = load_weights(model)
    network = load_point_network(weights, device)
    card = weights.card
    if card.get("inputs") != SCAN:
        raise InputError(f"Expected weights trained on scans (got '{weights.name}', trained on: {card.get('inputs')})")
    cut: dict[str, Any] = card["data"]["scans"]

    where = torch.device(device)

    def predict(features: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores, _ = network(torch.from_numpy(features).to(where, non_blocking=True))
            return np.asarray(scores.float().softmax(-1).cpu().numpy())  # waits, so the features may be overwritten

    def predict_in_parts(features: NDArray[np.float32]) -> NDArray[np.float32]:
        """By halves where the device has too little memory for a batch."""
        try:
            return predict(features)
        except torch.OutOfMemoryError:
            if len(features) == 1:
                raise
        parts = np.array_split(features, 2)  # after the error is gone, which holds what was allocated
        return np.concatenate([predict_in_parts(part) for part in parts])

    def pinned(shape: tuple[int, ...]) -> NDArray[np.float32]:
        return np.asarray(torch.empty(shape, pin_memory=True).numpy())

    on_gpu = where.type == "cuda"
    return Segmenter(
        predict_in_parts, tuple(card["classes"]), size=cut["size"], points=cut["points"], scale=cut["scale"],
        colour=cut["colour"], heights=tuple(cut.get("heights", ())),
        slopes=tuple(cut.get("slopes", ())), grow=cut.get("grow", 1.0),
        batch=usual_batch(where) if batch is None else batch, votes=votes, threads=_threads() if on_gpu else 1,
        room=pinned if on_gpu else None,
    )  # fmt: skip


def usual_batch(device: torch.device | str) -> int:
    """Pieces labelled at once: a GPU wants many for each launch, a CPU few that stay in its caches."""
    return 64 if torch.device(device).type == "cuda" else 8


def _threads() -> int:
    """Threads that make features for a GPU: all cores but one for the network and one for the votes, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores - 2))


def segment(
    cloud: Cloud,
    model: str | Path = "lidar-ground",
    *,
    category: str | None = None,
    device: torch.device | str = "cpu",
    report: OnChunk | None = None,
    seed: int = 0,
) -> Labelling:
    """Label every point of a cloud.

    Args:
        cloud: The points; those without finite coordinates stay unlabelled (255).
        model: Packaged weights by name, a weights file or a run's folder.
        category: What the object is, for networks that tell the parts of an object.
        device: Where the network runs.
    """
    weights = load_weights(model)
    if weights.card.get("inputs") == SCAN:
        return segment_cloud(cloud, load_segmenter(model, device), report)
    if weights.card.get("inputs") == SHAPE:
        return _segment_object(cloud, load_point_network(weights, device), weights, category, seed)
    raise InputError(f"Expected weights for scans or objects (got '{weights.name}')")


def _segment_object(
    cloud: Cloud, network: PointNetwork, weights: Weights, category: str | None, seed: int
) -> Labelling:
    """Parts of one object: unit sphere, pieces of 2,048 points, several votes, parts of the category only."""
    categories = [str(name) for name in weights.card["categories"]]
    if category is None or category not in categories:
        close = get_close_matches(category or "", categories, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        given = "none" if category is None else f"{category!r}{hint}"
        raise InputError(f"Expected a category among {', '.join(categories)} (got {given})")
    kind = categories.index(category)
    own = [int(part) for part in weights.card["parts"][kind]]
    valid = np.nonzero(cloud.valid)[0]
    label = np.full(len(cloud), UNLABELLED, np.uint8)
    confidence = np.zeros(len(cloud), np.float32)
    if len(valid):
        xyz = cloud.local()[valid]
        xyz = xyz - xyz.mean(0)
        radius = float(np.sqrt((xyz**2).sum(1)).max())
        xyz = xyz / (radius if radius > 0 else 1.0)
        points, rng = 2048, np.random.default_rng(seed)
        votes = np.zeros((len(valid), len(own)), np.float32)
        device = next(network.parameters()).device
        for _ in range(_VOTES):
            order = rng.permutation(len(valid))
            for at in range(0, len(order), points):
                chosen = np.resize(order[at : at + points], points)
                features = torch.from_numpy(xyz[chosen]).to(device)[None]
                with torch.inference_mode():
                    scores, _ = network(features, torch.tensor([kind], device=device))
                share = scores[0, :, own].float().softmax(-1).cpu().numpy()
                real = len(order[at : at + points])
                votes[chosen[:real]] += share[:real]
        label[valid] = np.array(own, np.uint8)[votes.argmax(1)]
        confidence[valid] = votes.max(1) / votes.sum(1)
    names = [str(n) for n in weights.card["classes"]]
    counts = {names[p]: int((label == p).sum()) for p in own}
    if len(valid) < len(cloud):
        counts["unlabelled"] = len(cloud) - len(valid)
    return Labelling(label, confidence, counts)
