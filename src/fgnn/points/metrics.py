"""Metrics of point labels: pooled IoU for scenes, part IoU for shapes, errors of ground filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def confusion(target: NDArray[np.integer], predicted: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Counts (classes, classes): row = true class, column = predicted; points with a negative target are ignored."""
    truth, guess = np.asarray(target).reshape(-1), np.asarray(predicted).reshape(-1)
    if truth.shape != guess.shape:
        raise ValueError(f"Expected as many predictions as targets, {truth.size} (got {guess.size})")
    labelled = truth >= 0
    truth, guess = truth[labelled].astype(np.int64), guess[labelled].astype(np.int64)
    if truth.size and (max(truth.max(), guess.max()) >= classes or guess.min() < 0):
        raise ValueError(f"Expected classes below {classes} (got {int(max(truth.max(), guess.max()))})")
    return np.bincount(truth * classes + guess, minlength=classes * classes).reshape(classes, classes)


@dataclass(frozen=True, eq=False)
class SceneScore:
    """Scores of counts pooled over all rooms and folds.

    ``iou`` is NaN for a class that neither occurs nor is predicted; ``mean_iou`` ignores such classes, and
    ``mean_class_accuracy`` those that do not occur.
    """

    accuracy: float
    mean_iou: float
    mean_class_accuracy: float
    iou: NDArray[np.float64]  # shape: (classes,)


def scene_score(counts: NDArray[np.int64]) -> SceneScore:
    """OA = ΣTP/Σpoints, IoU_c = TP_c/(GT_c + P_c − TP_c), mIoU their mean, mAcc the mean of TP_c/GT_c."""
    hits = np.diag(counts).astype(np.float64)
    truth, guess = counts.sum(1).astype(np.float64), counts.sum(0).astype(np.float64)
    union = truth + guess - hits
    iou = np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)
    recall = np.divide(hits, truth, out=np.full(len(hits), np.nan), where=truth > 0)
    total = counts.sum()
    return SceneScore(
        accuracy=float(hits.sum() / total) if total else float("nan"),
        mean_iou=_mean(iou),
        mean_class_accuracy=_mean(recall),
        iou=iou,
    )


@dataclass(frozen=True)
class GroundScore:
    """Errors of a ground filter, as defined by the ISPRS test.

    ``type_1`` is the share of ground points rejected, ``type_2`` the share of other points accepted as ground,
    ``total`` the share of points with a wrong label; ``iou`` is the IoU of ground, ``kappa`` Cohen's kappa.
    """

    type_1: float
    type_2: float
    total: float
    iou: float
    kappa: float
    points: int


def ground_score(ground: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> GroundScore:
    """Score predicted ground points against the true ones."""
    a, b = int((ground & predicted).sum()), int((ground & ~predicted).sum())
    c, d = int((~ground & predicted).sum()), int((~ground & ~predicted).sum())
    points = a + b + c + d
    chance = ((a + b) * (a + c) + (c + d) * (b + d)) / points**2 if points else 0.0
    return GroundScore(
        type_1=_share(b, a + b),
        type_2=_share(c, c + d),
        total=_share(b + c, points),
        iou=_share(a, a + b + c),
        kappa=(_share(a + d, points) - chance) / (1 - chance) if chance < 1 else float("nan"),
        points=points,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def part_ious(target: NDArray[np.integer], predicted: NDArray[np.integer], parts: Sequence[int]) -> NDArray[np.float64]:
    """IoU of each part of a category on one shape; 1 for a part that neither occurs nor is predicted."""
    ious = np.ones(len(parts))
    for slot, part in enumerate(parts):
        truth, guess = target == part, predicted == part
        union = int((truth | guess).sum())
        if union:
            ious[slot] = int((truth & guess).sum()) / union
    return ious


@dataclass(frozen=True, eq=False)
class ShapeScore:
    """Part IoU: ``instance`` is the mean over shapes, ``class_average`` the mean over categories."""

    instance: float
    class_average: float
    accuracy: float
    category: dict[str, float]
    shapes: dict[str, int]


def shape_score(
    results: Iterable[tuple[int, NDArray[np.integer], NDArray[np.integer]]],
    categories: Sequence[str],
    parts: Sequence[Sequence[int]],
) -> ShapeScore:
    """Score shapes given as (category, target, predicted); a shape's IoU is the mean over the parts of its category."""
    per_category: list[list[float]] = [[] for _ in categories]
    right = points = 0
    for category, target, predicted in results:
        per_category[category].append(float(part_ious(target, predicted, parts[category]).mean()))
        right += int((target == predicted).sum())
        points += target.size
    everything = [iou for ious in per_category for iou in ious]
    means = {name: float(np.mean(ious)) for name, ious in zip(categories, per_category, strict=True) if ious}
    return ShapeScore(
        instance=float(np.mean(everything)) if everything else float("nan"),
        class_average=float(np.mean(list(means.values()))) if means else float("nan"),
        accuracy=right / points if points else float("nan"),
        category=means,
        shapes={name: len(ious) for name, ious in zip(categories, per_category, strict=True)},
    )


def _mean(values: NDArray[np.float64]) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else float("nan")
