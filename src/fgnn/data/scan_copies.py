"""Augmented copies of a labelled scan: the same scene over other terrain, at another density and orientation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.data.labelled import Classes, PointSet, concat_sets, scan_pieces
from fgnn.points import Cloud, read_cloud
from fgnn.points.segment_pieces import Cut

# With fewer versions, starting processes takes longer than the work.
_WORTH_PROCESSES = 16


def rolling(xy: NDArray[np.float64], rng: np.random.Generator, steepness: float) -> NDArray[np.float64]:
    """Heights of a smooth surface, a slope and three long waves, not much steeper than ``steepness``."""
    height = xy @ (steepness * rng.normal(0, 0.5, 2))
    for _ in range(3):
        length, angle, phase = rng.uniform(40, 250), *rng.uniform(0, 2 * np.pi, 2)
        wave = np.array([np.cos(angle), np.sin(angle)]) * 2 * np.pi / length
        height = height + 0.4 * steepness * length / (2 * np.pi) * np.sin(xy @ wave + phase)
    return np.asarray(height)


def altered(
    cloud: Cloud, field: str, rng: np.random.Generator, stray: int | None = None, sparsest: float | None = None
) -> Cloud:
    """A scan rotated, mirrored, stretched, laid over a rolling surface and thinned by up to two thirds.

    Args:
        field: The field that holds the labels.
        stray: If given, a few points are moved far up or down and get this label.
        sparsest: If given, thin down to as few points per square unit instead, evenly on a logarithmic scale, over
            steeper ground.
    """
    xyz = cloud.xyz - np.median(cloud.xyz, axis=0)
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    xyz[:, :2] = xyz[:, :2] @ turn.T * rng.uniform(0.85, 1.15) * np.array([1.0, rng.choice([-1.0, 1.0])])
    xyz[:, 2] *= rng.uniform(0.8, 1.2)
    if rng.random() < 0.5:
        xyz[:, 2] += rolling(xyz[:, :2], rng, rng.uniform(0, 0.3 if sparsest is None else 0.5))
    share = rng.uniform(0.33, 1.0)
    if sparsest is not None:
        share = min(1.0, sparsest / density(xyz)) ** rng.random()
    keep = rng.random(len(xyz)) < rng.choice([1.0, share])
    fields = dict(cloud.fields)
    if stray is not None:
        moved = rng.random(len(xyz)) < 10 ** rng.uniform(-4.5, -2.5)
        count = int(moved.sum())
        xyz[moved, 2] += rng.choice([-1, -1, 1], count) * rng.uniform(3, 40, count)
        fields[field] = np.where(moved, stray, fields[field]).astype(fields[field].dtype)
    return Cloud(xyz, fields)[keep]


def density(xyz: NDArray[np.float64], cell: float = 4.0) -> float:
    """Points per square unit, over the cells that have any."""
    cells = np.unique(np.floor(xyz[:, :2] / cell).astype(np.int64), axis=0)
    return len(xyz) / (len(cells) * cell**2) if len(xyz) else 1.0


def scan_versions(
    files: Sequence[str | Path],
    classes: Classes,
    field: str,
    cut: Cut,
    copies: int = 0,
    stray: int | None = None,
    seed: int = 0,
    sparsest: float | None = None,
) -> list[PointSet]:
    """The pieces of each scan and of ``copies`` altered versions of it; many are made in parallel."""
    jobs = [
        Version(str(f), classes, field, cut, copy, stray, seed, sparsest) for f in files for copy in range(copies + 1)
    ]
    sets = make_versions(jobs)
    return [concat_sets(sets[k : k + copies + 1]) for k in range(0, len(sets), copies + 1)]


@dataclass(frozen=True)
class Version:
    """One version of a scan to cut: ``copy`` 0 is the scan itself; the rest as in `scan_pieces` and `altered`."""

    file: str
    classes: Classes
    field: str
    cut: Cut
    copy: int = 0
    stray: int | None = None
    seed: int = 0
    sparsest: float | None = None
    votes: int = 4


def make_versions(jobs: Sequence[Version]) -> list[PointSet]:
    """The pieces of each version, in processes if there are many."""
    workers = min(os.cpu_count() or 1, len(jobs))
    if len(jobs) < _WORTH_PROCESSES or workers < 2:
        versions = [_version(job) for job in jobs]
    else:
        # spawn: CUDA and OpenMP do not survive a fork
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            versions = list(pool.map(_version, jobs, chunksize=1))
    return [PointSet.of(features, label) for features, label in versions]


def _version(job: Version) -> tuple[NDArray[Any], NDArray[Any]]:
    """One version of one scan as arrays, which can be sent between processes."""
    source: str | Cloud = job.file
    if job.copy:
        rng = np.random.default_rng([job.seed, job.copy, *Path(job.file).name.encode()])
        source = altered(read_cloud(job.file), job.field, rng, job.stray, job.sparsest)
    pieces = scan_pieces(source, job.classes, job.field, job.cut, votes=job.votes, seed=job.seed + job.copy)
    return pieces.features.numpy(), pieces.label.numpy()
