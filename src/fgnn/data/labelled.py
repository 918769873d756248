"""Labelled point clouds of one length as tensors: shapes, blocks of rooms, and pieces of scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.data.s3dis import BlockSet
from fgnn.data.shapenet import Shapes
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, CloudReader, HeldCloud, open_cloud
from fgnn.points.heights import height_columns
from fgnn.points.segment_pieces import tile_features
from fgnn.points.tiles import TileStore

# The target of points that have no label or one that is not trained on; losses and scores leave it out.
IGNORE = -1
# Labels are bytes, and 255 is the one of points without any.
_MOST_CLASSES = 255


@dataclass(frozen=True, eq=False)
class PointSet:
    """S clouds of P points with F features, their labels, and the category of each (0 where there is one only)."""

    features: Tensor  # shape: (S, P, F), float32
    label: Tensor  # shape: (S, P), int16; IGNORE where unlabelled
    category: Tensor  # shape: (S,), int64

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def to(self, device: torch.device | str) -> PointSet:
        """The same clouds elsewhere."""
        return PointSet(self.features.to(device), self.label.to(device), self.category.to(device))

    def select(self, which: Tensor) -> PointSet:
        """The clouds at these indices."""
        return PointSet(self.features[which], self.label[which], self.category[which])


def from_shapes(shapes: Shapes, points: int = 2048, seed: int = 0) -> PointSet:
    """Shapes brought to one length: fewer points are repeated, more are drawn without repeats."""
    rng = np.random.default_rng(seed)
    xyz = np.empty((len(shapes), points, 3), np.float32)
    label = np.empty((len(shapes), points), np.int16)
    for s in range(len(shapes)):
        p, part, _ = shapes[s]
        order = rng.permutation(len(p))
        chosen = np.resize(order, points)  # repeats the whole order where it is too short
        xyz[s], label[s] = p[chosen], part[chosen]
    return PointSet(torch.from_numpy(xyz), torch.from_numpy(label), torch.from_numpy(shapes.category.astype(np.int64)))


def from_blocks(blocks: BlockSet, which: NDArray[np.int64] | None = None) -> PointSet:
    """Blocks of the HDF5 release, all or some."""
    chosen = np.arange(len(blocks.features)) if which is None else which
    return PointSet(
        torch.from_numpy(blocks.features[chosen]),
        torch.from_numpy(blocks.label[chosen].astype(np.int16)),
        torch.zeros(len(chosen), dtype=torch.int64),
    )


@dataclass(frozen=True)
class Classes:
    """The classes a network tells apart, and which values of the label field stand for each.

    A classes file has one class a line: ``name`` (its value is the line's number, from 0) or ``name: value value …``.
    Values that no class names are left out of training and scoring.
    """

    names: tuple[str, ...]
    values: Mapping[int, int]  # value in the file -> class

    @classmethod
    def read(cls, path: str | Path) -> Classes:
        file = Path(path)
        try:
            lines = [line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise InputError("Expected a text file of classes", file=file) from error
        names: list[str] = []
        values: dict[int, int] = {}
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            name, _, rest = line.partition(":")
            try:
                told = [int(word) for word in rest.replace(",", " ").split()] or [len(names)]
            except ValueError as error:
                raise InputError("Expected 'name' or 'name: value …'", file=file, place=f"line {number}") from error
            for value in told:
                if value in values:
                    raise InputError(f"Expected each value once (got {value} twice)", file=file, place=f"line {number}")
                values[value] = len(names)
            names.append(name.strip())
        if not 2 <= len(names) <= _MOST_CLASSES or len(set(names)) != len(names):
            reason = f"Expected two or more classes, at most {_MOST_CLASSES}, each named once (got {len(names)})"
            raise InputError(reason, file=file)
        return cls(tuple(names), values)

    def of(self, raw: NDArray[np.generic]) -> NDArray[np.int16]:
        """The class of each value, IGNORE where none names it."""
        out = np.full(raw.shape, IGNORE, np.int16)
        for value, kind in self.values.items():
            out[raw == value] = kind
        return out


def scan_pieces(
    source: str | Path | Cloud,
    classes: Classes,
    field: str,
    *,
    size: float,
    points: int = 4096,
    scale: float = 1.0,
    colour: bool = False,
    heights: Sequence[float] = (),
    slopes: Sequence[float] = (),
    grow: float = 1.0,
    fewest: int = 64,
    most: int = 4,
    seed: int = 0,
) -> PointSet:
    """Pieces of a labelled scan, cut as `fgnn.points.segment` cuts a scan to label it.

    Args:
        source: A file, or a cloud.
        field: The field that holds the labels.
        size, points, scale, colour, heights, slopes, grow: As in `Segmenter`.
        fewest: Tiles with fewer labelled points are left out.
        most: Pieces taken of one tile.
    """
    reader: CloudReader = HeldCloud(source) if isinstance(source, Cloud) else open_cloud(source)
    if field not in reader.header.fields:
        told = ", ".join(reader.header.fields) or "none"
        name = None if isinstance(source, Cloud) else source
        raise InputError(f"Expected a field {field!r} with labels (the scan has: {told})", file=name)
    width = 1 + (3 if colour else 0)

    def extra(cloud: Cloud) -> NDArray[np.float32]:
        out = np.zeros((len(cloud), width), np.float32)
        out[:, 0] = classes.of(cloud.fields[field])
        rgb = cloud.rgb if colour else None
        if rgb is not None:
            out[:, 1:] = rgb
        return out

    rng = np.random.default_rng(seed)
    made, labels = [], []
    with TileStore(reader, size, extra=extra, extra_width=width, points=points, grow=grow) as store:
        for tile in store.tiles():
            target = tile.extra[:, 0].astype(np.int16)
            if (target != IGNORE).sum() < fewest:
                continue
            values = tile_features(replace(tile, extra=tile.extra[:, 1:]), scale, heights, slopes)
            order = rng.permutation(len(target))
            for at in range(0, min(len(order), most * points), points):
                chosen = order[at : at + points]
                if len(chosen) < points:
                    if at and len(chosen) < points // 4:
                        break  # a short rest would be mostly repeats
                    chosen = np.concatenate([chosen, rng.choice(chosen, points - len(chosen))])
                made.append(values[chosen])
                labels.append(target[chosen])
    if not made:
        nothing = torch.zeros(0, points, dtype=torch.int16)
        features = torch.zeros(0, points, 2 + width + height_columns(heights, slopes))
        return PointSet(features, nothing, torch.zeros(0, dtype=torch.int64))
    return PointSet(
        torch.from_numpy(np.stack(made)), torch.from_numpy(np.stack(labels)), torch.zeros(len(made), dtype=torch.int64)
    )


def concat_sets(parts: Sequence[PointSet]) -> PointSet:
    """Several sets as one."""
    return PointSet(
        torch.cat([p.features for p in parts]),
        torch.cat([p.label for p in parts]),
        torch.cat([p.category for p in parts]),
    )
