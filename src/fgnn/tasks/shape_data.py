"""ShapeNet-Part as tensors to train and test on: read once in a process, whichever networks ask for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fgnn.data.labelled import PointSet, concat_sets, from_shapes
from fgnn.data.shapenet import CATEGORIES, NUM_PARTS, PARTS, Shapes, load_shapenet_part


def part_names() -> tuple[str, ...]:
    """A name for each of the 50 parts, by category."""
    names = tuple(f"{CATEGORIES[c]} {p - own[0]}" for c, own in enumerate(PARTS) for p in own)
    assert len(names) == NUM_PARTS
    return names


@lru_cache(maxsize=4)
def split_shapes(root: str, split: str) -> Shapes:
    """One split, unit sphere as it is published or brought to it."""
    shapes = load_shapenet_part(root, split)
    farthest = np.sqrt((shapes.xyz**2).sum(1)).max() if len(shapes.xyz) else 1.0
    # text releases come at half the size and off their centroid, the others as networks expect them
    return shapes if 0.9 < farthest < 1.01 and shapes.stacked() is not None else shapes.normalised()


def split_set(shapes: Shapes, points: int) -> PointSet:
    """Shapes of one length as tensors, in the order of their points where they have that length already."""
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
    """What to train on and what to hold out; all files are decoded side by side."""
    wanted = (*splits, held_out)
    with ThreadPoolExecutor(len(wanted)) as pool:
        found = list(pool.map(lambda split: split_shapes(str(root), split), wanted))
    sets = [split_set(shapes, points) for shapes in found]
    return concat_sets(sets[:-1]), sets[-1]


def some_of_each(shapes: Shapes, count: int) -> Shapes:
    """About ``count`` shapes, spread evenly over each category's."""
    chosen = []
    for kind in range(len(CATEGORIES)):
        own = np.flatnonzero(shapes.category == kind)
        take = min(len(own), max(1, round(count / len(CATEGORIES))))
        chosen.append(own[np.linspace(0, len(own) - 1, take).astype(int)] if len(own) else own)
    return shapes.select(np.sort(np.concatenate(chosen)))
