"""Label clouds with trained point networks."""

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
from fgnn.points import Cloud, Segmenter, segment_cloud
from fgnn.points.segment import UNLABELLED, Labelling
from fgnn.points.tiles import OnChunk
from fgnn.weights import Weights, load_weights

SCAN, SHAPE = "scan: tile", "shape: unit sphere"
_OBJECT_VOTES = 4  # passes over an object, each with another random split into pieces
_OBJECT_POINTS = 2048  # points per piece


def load_point_network(weights: Weights, device: torch.device | str = "cpu") -> PointNetwork:
    """Build the network a card describes and load its tensors, in evaluation mode."""
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
    model: str | Path | Weights, device: torch.device | str = "cpu", batch: int | None = None, votes: int = 4
) -> Segmenter:
    """A segmenter for scans.

    Args:
        model: Packaged weights by name, a weights file, a run's folder, or loaded weights.
        batch: Pieces labelled at once; by default `usual_batch`.
        votes: Tiles that label each point: 4, 2 or 1.
    """
    weights = model if isinstance(model, Weights) else load_weights(model)
    network = load_point_network(weights, device)
    card = weights.card
    if card.get("inputs") != SCAN:
        raise InputError(f"Expected weights trained on scans (got '{weights.name}', trained on: {card.get('inputs')})")
    data: dict[str, Any] = card["data"]["scans"]
    cut = {name: data[name] for name in ("heights", "slopes", "grow") if name in data}
    where = torch.device(device)

    def predict(features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Class probabilities; splits the batch in half if the device runs out of memory."""
        try:
            with torch.inference_mode():
                scores, _ = network(torch.from_numpy(features).to(where, non_blocking=True))
                return np.asarray(scores.float().softmax(-1).cpu().numpy())  # synchronises: features may be reused
        except torch.OutOfMemoryError:
            if len(features) == 1:
                raise
        halves = np.array_split(features, 2)  # outside the handler: the error keeps its allocations alive
        return np.concatenate([predict(half) for half in halves])

    on_gpu = where.type == "cuda"
    return Segmenter(
        predict, tuple(card["classes"]), size=data["size"], points=data["points"], scale=data["scale"],
        colour=data["colour"], **cut,
        batch=usual_batch(where) if batch is None else batch, votes=votes, threads=_threads() if on_gpu else 1,
        room=_pinned if on_gpu else None,
    )  # fmt: skip


def usual_batch(device: torch.device | str) -> int:
    """Pieces labelled at once: many on a GPU to fill each launch, few on a CPU to stay in its caches."""
    return 64 if torch.device(device).type == "cuda" else 8


def _pinned(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.asarray(torch.empty(shape, pin_memory=True).numpy())


def _threads() -> int:
    """Threads that compute features for a GPU: leave one core for the network and one for the votes, use at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores - 2))


def segment(
    cloud: Cloud,
    model: str | Path | Weights = "lidar-ground",
    *,
    category: str | None = None,
    device: torch.device | str = "cpu",
    report: OnChunk | None = None,
    seed: int = 0,
) -> Labelling:
    """Label every point of a cloud.

    Args:
        cloud: The points; those without finite coordinates stay unlabelled (255).
        model: Packaged weights by name, a weights file, a run's folder, or loaded weights.
        category: What the object is, for networks that label the parts of an object.
        device: Where the network runs.
    """
    weights = model if isinstance(model, Weights) else load_weights(model)
    if weights.card.get("inputs") == SCAN:
        return segment_cloud(cloud, load_segmenter(weights, device), report)
    if weights.card.get("inputs") == SHAPE:
        return _segment_object(cloud, load_point_network(weights, device), weights, category, seed)
    raise InputError(f"Expected weights for scans or objects (got '{weights.name}')")


def _segment_object(
    cloud: Cloud, network: PointNetwork, weights: Weights, category: str | None, seed: int
) -> Labelling:
    """Label the parts of one object, only with the parts of its category."""
    kind = _category_index(weights, category)
    parts = [int(part) for part in weights.card["parts"][kind]]
    valid = np.nonzero(cloud.valid)[0]
    label = np.full(len(cloud), UNLABELLED, np.uint8)
    confidence = np.zeros(len(cloud), np.float32)
    if len(valid):
        votes = _object_votes(cloud.local()[valid], network, kind, parts, seed)
        label[valid] = np.array(parts, np.uint8)[votes.argmax(1)]
        confidence[valid] = votes.max(1) / votes.sum(1)
    names = [str(name) for name in weights.card["classes"]]
    counts = {names[part]: int((label == part).sum()) for part in parts}
    if len(valid) < len(cloud):
        counts["unlabelled"] = len(cloud) - len(valid)
    return Labelling(label, confidence, counts)


def _category_index(weights: Weights, category: str | None) -> int:
    categories = [str(name) for name in weights.card["categories"]]
    if category is not None and category in categories:
        return categories.index(category)
    close = get_close_matches(category or "", categories, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    got = "none" if category is None else f"{category!r}{hint}"
    raise InputError(f"Expected a category among {', '.join(categories)} (got {got})")


def _object_votes(
    xyz: NDArray[np.float32], network: PointNetwork, kind: int, parts: list[int], seed: int
) -> NDArray[np.float32]:
    """Probabilities of an object's parts, summed over random splits into pieces.  # shape: (N, parts)"""
    xyz = xyz - xyz.mean(0)
    radius = float(np.sqrt((xyz**2).sum(1)).max())
    xyz = xyz / (radius if radius > 0 else 1.0)  # in the unit sphere
    rng, device = np.random.default_rng(seed), next(network.parameters()).device
    votes = np.zeros((len(xyz), len(parts)), np.float32)
    for _ in range(_OBJECT_VOTES):
        order = rng.permutation(len(xyz))
        for start in range(0, len(order), _OBJECT_POINTS):
            piece = order[start : start + _OBJECT_POINTS]
            features = torch.from_numpy(xyz[np.resize(piece, _OBJECT_POINTS)]).to(device)[None]  # padded with repeats
            with torch.inference_mode():
                scores, _ = network(features, torch.tensor([kind], device=device))
            probabilities = scores[0, :, parts].float().softmax(-1).cpu().numpy()
            votes[piece] += probabilities[: len(piece)]
    return votes
