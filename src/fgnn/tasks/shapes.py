"""ShapeNet-Part as tensors, read once per process, and the scores of part segmentation.

Scores are of one pass or of votes, on the official test list and without shapes also trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fgnn.data import Shapes, load_shapenet_part
from fgnn.data.labelled import PointSet, concat_sets, from_shapes
from fgnn.data.shapenet import CATEGORIES, NUM_PARTS, PARTS
from fgnn.points import shape_score
from fgnn.tasks.variation import Variation, vary


def part_names() -> tuple[str, ...]:
    """Return a name for each of the 50 parts, by category."""
    names = tuple(f"{CATEGORIES[c]} {p - parts[0]}" for c, parts in enumerate(PARTS) for p in parts)
    assert len(names) == NUM_PARTS
    return names


@lru_cache(maxsize=4)
def split_shapes(root: str, split: str) -> Shapes:
    """Return one split, in the unit sphere."""
    shapes = load_shapenet_part(root, split)
    farthest = np.sqrt((shapes.xyz**2).sum(1)).max() if len(shapes.xyz) else 1.0
    # the text release is half the size and off centre; the others are as networks expect them
    return shapes if 0.9 < farthest < 1.01 and shapes.stacked() is not None else shapes.normalised()


def load_shapes(root: str | Path, splits: tuple[str, ...], held_out: str, points: int) -> tuple[PointSet, PointSet]:
    """Return the training and the held-out shapes; files are decoded in parallel."""
    names = (*splits, held_out)
    with ThreadPoolExecutor(len(names)) as pool:
        loaded = list(pool.map(lambda split: split_shapes(str(root), split), names))
    sets = [from_shapes(shapes, points) for shapes in loaded]
    return concat_sets(sets[:-1]), sets[-1]


def draw_shapes(shapes: Shapes, count: int, seed: int = 0) -> Shapes:
    """Return ``count`` shapes drawn without replacement, in their order; all of them if there are fewer.

    Every shape is drawn with the same probability, so that scores over the draw estimate those over the list. Rare
    categories may be missing.
    """
    if count >= len(shapes):
        return shapes
    return shapes.select(np.sort(np.random.default_rng(seed).choice(len(shapes), count, replace=False)))


def part_mask(parts: Sequence[Sequence[int]], classes: int, device: torch.device) -> Tensor:
    """Return 0 for the parts of a category and -inf for all others.  # shape: (categories, classes)"""
    mask = torch.full((len(parts), classes), -torch.inf, device=device)
    for category, members in enumerate(parts):
        mask[category, list(members)] = 0.0
    return mask


@torch.no_grad()
def label_shapes(
    network: nn.Module,
    clouds: PointSet,
    *,
    votes: int = 1,
    variation: Variation = Variation(),  # noqa: B008 (frozen)
    half: bool = False,
    batch: int = 32,
    seed: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the part of every point, among those of the shape's category and among all 50.  # shapes: (S, P)

    Args:
        votes: Passes whose probabilities are added: the shapes as they are, then varied as in training.
        variation: How they are varied; without jitter.
        half: Compute in bfloat16.
    """
    device = next(network.parameters()).device
    mask = part_mask(PARTS, NUM_PARTS, device)
    generator = torch.Generator().manual_seed(seed)
    network.eval()
    restricted, free = [], []
    for at in range(0, len(clouds), batch):
        part = clouds.select(torch.arange(at, min(at + batch, len(clouds)))).to(device)
        total: Tensor | float = 0.0
        for vote in range(votes):
            random = torch.rand(len(part), 7, generator=generator).to(device)
            features = vary(part.features, random, variation) if vote else part.features
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                scores = network(features, part.category)[0]
            total = total + scores.float().softmax(-1)
        assert isinstance(total, Tensor)
        free.append(total.argmax(2).cpu())
        restricted.append((total + mask[part.category][:, None]).argmax(2).cpu())
    return torch.cat(restricted).numpy(), torch.cat(free).numpy()


@dataclass(frozen=True)
class ShapeTable:
    """Scores of one network on one list of shapes by one protocol, as fractions of one."""

    protocol: str
    shapes: int
    instance: float
    class_average: float
    accuracy: float
    category: dict[str, float]


def score_shapes(
    network: nn.Module,
    shapes: Shapes,
    points: int,
    trained_on: Sequence[Shapes] = (),
    *,
    votes: int = 1,
    **options: Any,
) -> list[ShapeTable]:
    """Score a test list: one pass, the same without shapes that were trained on, all 50 parts, and voted.

    Args:
        shapes: The test list.
        points: Points of each shape that the network sees.
        trained_on: The training splits.
        votes: Passes of the voted protocol; 1 leaves it out.
        options: Those of `label_shapes`.
    """
    clouds = from_shapes(shapes, points)
    truth = clouds.label.numpy()
    kinds = clouds.category.tolist()
    names = np.concatenate([s.name for s in trained_on]) if trained_on else np.zeros(0, str)
    fresh = ~np.isin(shapes.name, names)

    def table(protocol: str, guess: NDArray[np.int64], which: NDArray[np.bool_]) -> ShapeTable:
        results = [(kinds[s], truth[s], guess[s]) for s in np.flatnonzero(which)]
        score = shape_score(results, CATEGORIES, PARTS)
        return ShapeTable(protocol, len(results), score.instance, score.class_average, score.accuracy, score.category)

    every = np.ones(len(shapes), bool)
    once, free = label_shapes(network, clouds, **options)
    tables = [table("one pass", once, every)]
    if fresh.any() and not fresh.all():
        tables.append(table("one pass, without shapes also trained on", once, fresh))
    tables.append(table("one pass, argmax over all parts", free, every))
    if votes > 1:
        voted, _ = label_shapes(network, clouds, votes=votes, **options)
        tables.append(table(f"voted, {votes} passes", voted, every))
    return tables
