"""Label clouds with trained point networks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.models.from_card import load_into
from fgnn.models.points.config import PointConfig
from fgnn.models.points.network import PointNetwork
from fgnn.points import Cloud, Segmenter, segment_cloud
from fgnn.points.ground_fusion import GroundFusion
from fgnn.points.segment import UNLABELLED, Labelling
from fgnn.points.segment_pieces import Cut
from fgnn.points.tiles import OnChunk
from fgnn.schema import Between, Label, Length, parse
from fgnn.weights import Card, Weights, load_weights

SCAN, SHAPE = "scan: tile", "shape: unit sphere"
_OBJECT_VOTES = 4  # passes over an object, each with another random split into pieces
_OBJECT_POINTS = 2048  # points per piece
_EDGES = 1 << 23  # of a batch of pieces


@dataclass(frozen=True)
class PointCard:
    """What the card of a point network must say.

    Attributes:
        features: Features of a point, the first three its coordinates.
        classes: The names of the labels; 255 is kept for points without one.
        categories: The kinds of object, and ``parts`` the labels that each may have; none for scenes.
        inputs: How clouds become features.
        codes: ASPRS code of each class; none for weights with classes of their own.
        fusion: How a classical filter takes part in the decision on ground.
    """

    network: PointConfig
    features: Annotated[int, Between(3, 4096)]
    classes: Annotated[tuple[Label, ...], Length(UNLABELLED, 1)]
    categories: Annotated[tuple[Label, ...], Length(1000)] = ()
    parts: Annotated[
        tuple[Annotated[tuple[Annotated[int, Between(0, 254)], ...], Length(UNLABELLED, 1)], ...], Length(1000)
    ] = ()
    inputs: Label = ""
    codes: Annotated[tuple[Annotated[int, Between(0, 255)], ...], Length(UNLABELLED)] = ()
    fusion: GroundFusion | None = None

    def __post_init__(self) -> None:
        if self.fusion is not None and "ground" not in self.classes:
            raise ValueError(f"Expected a class ground for fusion (got {', '.join(self.classes)})")
        if self.codes and len(self.codes) != len(self.classes):
            raise ValueError(f"Expected codes of all {len(self.classes)} classes (got {len(self.codes)})")
        if len(self.parts) != len(self.categories) or max(map(max, self.parts), default=0) >= len(self.classes):
            raise ValueError(
                f"Expected the parts of each of {len(self.categories)} categories, below {len(self.classes)} "
                f"(got those of {len(self.parts)})"
            )


def load_point_network(weights: Weights, device: torch.device | str = "cpu") -> PointNetwork:
    """Build the network a card describes and load its tensors, in evaluation mode."""
    if weights.card.task != "points":
        what = f"Expected weights of a point network (got '{weights.name}', a {weights.card.task} network)"
        raise InputError(what, file=weights.card.file)
    card = weights.card.part(PointCard)
    return load_into(
        lambda: PointNetwork(card.network, card.features, len(card.classes), len(card.categories)), weights, device
    )


def scan_cut(card: Card) -> Cut:
    """Return how the network of a card wants scans to be cut."""
    data = card.get("data")
    scans = data.get("scans") if isinstance(data, Mapping) else None
    known = {f.name for f in fields(Cut)}
    values = {name: v for name, v in scans.items() if name in known} if isinstance(scans, Mapping) else scans
    cut = parse(Cut, values, file=card.file, place="data.scans")
    features = card.part(PointCard).features
    if cut.columns != features:
        what = f"Expected {cut.columns}, the columns that data.scans asks for (got {features})"
        raise InputError(what, file=card.file, place="features")
    return cut


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
    card = weights.card.part(PointCard)
    if card.inputs != SCAN:
        what = f"Expected weights trained on scans (got '{weights.name}', trained on: {card.inputs})"
        raise InputError(what, file=weights.card.file)
    cut = scan_cut(weights.card)
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
        predict, card.classes, **vars(cut),
        batch=usual_batch(where, cut.points * card.network.k) if batch is None else batch, votes=votes,
        threads=_threads() if on_gpu else 1, room=_pinned if on_gpu else None, codes=card.codes, fusion=card.fusion,
    )  # fmt: skip


def usual_batch(device: torch.device | str, edges: int = 1) -> int:
    """Pieces labelled at once: many on a GPU to fill each launch, few on a CPU to stay in its caches.

    Fewer if a piece has very many edges, which take memory.
    """
    usual = 64 if torch.device(device).type == "cuda" else 8
    return max(1, min(usual, _EDGES // edges))


def _pinned(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.asarray(torch.empty(shape, pin_memory=True).numpy())


def _threads() -> int:
    """Threads that compute features for a GPU: leave one core for the network and one for the votes, use at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores - 2))


def segment(
    cloud: Cloud,
    model: str | Path | Weights = "lidar-aerial",
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
        network = load_point_network(weights, device)
        return _segment_object(cloud, network, weights.card.part(PointCard), category, seed)
    raise InputError(f"Expected weights for scans or objects (got '{weights.name}')", file=weights.card.file)


def _segment_object(cloud: Cloud, network: PointNetwork, card: PointCard, category: str | None, seed: int) -> Labelling:
    """Label the parts of one object, only with the parts of its category."""
    kind = _category_index(card.categories, category)
    parts = list(card.parts[kind])
    valid = np.nonzero(cloud.valid)[0]
    label = np.full(len(cloud), UNLABELLED, np.uint8)
    confidence = np.zeros(len(cloud), np.float32)
    if len(valid):
        votes = _object_votes(cloud.local()[valid], network, kind, parts, seed)
        label[valid] = np.array(parts, np.uint8)[votes.argmax(1)]
        confidence[valid] = votes.max(1) / votes.sum(1)
    counts = {card.classes[part]: int((label == part).sum()) for part in parts}
    if len(valid) < len(cloud):
        counts["unlabelled"] = len(cloud) - len(valid)
    return Labelling(label, confidence, counts)


def _category_index(categories: Sequence[str], category: str | None) -> int:
    if category is not None and category in categories:
        return categories.index(category)
    close = get_close_matches((category or "")[:100], categories, n=1)
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
