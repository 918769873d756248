"""Errors of a ground filter on labelled scans: type I, type II and total, as in the ISPRS filter test."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fgnn.data.ground import GROUND, UNKNOWN
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points import Cloud, Segmenter, ground_score, segment_cloud
from fgnn.points.metrics import GroundScore
from fgnn.runtime.progress import Log

NAME = "lidar-ground"


def filter_errors(cloud: Cloud, segmenter: Segmenter) -> GroundScore:
    """Filter one labelled scan and count the errors, without points of unknown class."""
    predicted = segment_cloud(cloud, segmenter).label
    label = cloud.fields["classification"]
    known = (label != UNKNOWN) & cloud.valid
    return ground_score(label[known] == GROUND, predicted[known] == list(segmenter.classes).index("ground"))


def filter_samples(
    weights: str | Path, clouds: Mapping[str, Cloud], device: torch.device | str, log: Log, batch: int = 8
) -> dict[str, GroundScore]:
    """Filter each sample and return its errors."""
    segmenter = load_segmenter(weights, device, batch)
    scores = {}
    for name, cloud in clouds.items():
        start = time.perf_counter()
        scores[name] = filter_errors(cloud, segmenter)
        s, rate = scores[name], len(cloud) / (time.perf_counter() - start)
        log(
            f"{name}: type I {100 * s.type_1:.2f} %, type II {100 * s.type_2:.2f} %, total {100 * s.total:.2f} %, "
            f"IoU {100 * s.iou:.2f} %, {rate:,.0f} points/s"
        )
    return scores


def mean_total(scores: Mapping[str, GroundScore]) -> float:
    """Return the mean total error over samples, the summary of the filter test."""
    return float(np.mean([score.total for score in scores.values()]))
