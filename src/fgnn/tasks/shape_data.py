"""ShapeNet-Part as tensors, read once per process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fgnn.data.labelled import PointSet, concat_sets, from_shapes
from fgnn.data.shapenet import CATEGORIES, NUM_PARTS, PARTS, Shapes, load_shapenet_part


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


def split_set(shapes: Shapes, points: int) -> PointSet:
    """Return shapes of ``points`` points each as tensors; the order of the points stays if they have that many."""
    stacked = shapes.stacked()
    if stacked is None or stacked[0].shape[1] != points:
        return from_shapes(shapes, points)
    xyz, label = stacked
    return PointSet(
        torch.from_numpy(np.ascontiguousarray(xyz)),
        torch.from_numpy(label.astype(np.int16)),
        torch.from_numpy(shapes.category.astype(np.int64)),
    )


def load_shapes(root: str | Path, splits: tuple[str, ...], held_out: str, points: int) -> tuple[PointSet, PointSet]:
    """Return the training and the held-out shapes; files are decoded in parallel."""
    names = (*splits, held_out)
    with ThreadPoolExecutor(len(names)) as pool:
        loaded = list(pool.map(lambda split: split_shapes(str(root), split), names))
    sets = [split_set(shapes, points) for shapes in loaded]
    return concat_sets(sets[:-1]), sets[-1]


def some_of_each(shapes: Shapes, count: int) -> Shapes:
    """Return about ``count`` shapes, the same number of each category, evenly spaced."""
    chosen = []
    for kind in range(len(CATEGORIES)):
        members = np.flatnonzero(shapes.category == kind)
        take = min(len(members), max(1, round(count / len(CATEGORIES))))
        chosen.append(members[np.linspace(0, len(members) - 1, take).astype(int)] if len(members) else members)
    return shapes.select(np.sort(np.concatenate(chosen)))
