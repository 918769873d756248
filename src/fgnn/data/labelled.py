"""Labelled point clouds of equal length as tensors: shapes, blocks of rooms, and pieces of scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.data.shapenet import Shapes
from fgnn.errors import InputError
from fgnn.files import read_text
from fgnn.points import Cloud, open_cloud
from fgnn.points.cloud import CloudReader, HeldCloud
from fgnn.points.segment_pieces import Cut, PreparedTile, extra_values
from fgnn.points.tiles import TileStore

# Label of points that losses and metrics ignore.
IGNORE = -1
# Labels are bytes, and 255 means unlabelled.
_MOST_CLASSES = 255
_MOST_BYTES = 4 << 20  # of a classes file


@dataclass(frozen=True, eq=False)
class PointSet:
    """S clouds of P points with F features, their labels, and the category of each (0 if there is only one)."""

    features: Tensor  # shape: (S, P, F), float32
    label: Tensor  # shape: (S, P), int16; IGNORE where unlabelled
    category: Tensor  # shape: (S,), int64

    @classmethod
    def of(cls, features: NDArray[Any], label: NDArray[Any], category: NDArray[Any] | None = None) -> PointSet:
        """The same from arrays; without categories all are 0."""
        kinds = np.zeros(len(features)) if category is None else category
        return cls(
            torch.from_numpy(features),
            torch.from_numpy(label.astype(np.int16, copy=False)),
            torch.from_numpy(kinds.astype(np.int64, copy=False)),
        )

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def to(self, device: torch.device | str) -> PointSet:
        """The same clouds on another device."""
        return PointSet(self.features.to(device), self.label.to(device), self.category.to(device))

    def select(self, which: Tensor) -> PointSet:
        """The clouds at these indices."""
        return PointSet(self.features[which], self.label[which], self.category[which])


def from_shapes(shapes: Shapes, points: int) -> PointSet:
    """Shapes of ``points`` points each, in their order if all have that many.

    Otherwise they are resampled: repeated if they have fewer, drawn without repeats if more.
    """
    stacked = shapes.stacked()
    if stacked is not None and stacked[0].shape[1] == points:
        return PointSet.of(np.ascontiguousarray(stacked[0]), stacked[1], shapes.category)
    rng = np.random.default_rng(0)
    xyz = np.empty((len(shapes), points, 3), np.float32)
    label = np.empty((len(shapes), points), np.int16)
    for s in range(len(shapes)):
        p, part, _ = shapes[s]
        order = rng.permutation(len(p))
        chosen = np.resize(order, points)  # repeats the whole order if it is too short
        xyz[s], label[s] = p[chosen], part[chosen]
    return PointSet.of(xyz, label, shapes.category)


@dataclass(frozen=True)
class Classes:
    """The classes of a network, and the values of the label field that stand for each.

    A classes file has one class per line: ``name`` (its value is its position, from 0) or ``name: value value …``.
    ``name | other name: value …`` says that such points belong to one of these classes. Values without a class are
    ignored in training and scoring.
    """

    names: tuple[str, ...]
    values: Mapping[int, int]  # value in the file -> class, or len(names) + position in `either`
    either: tuple[tuple[int, ...], ...] = ()  # classes of which a point has one, not known which

    @classmethod
    def read(cls, path: str | Path) -> Classes:
        file = Path(path)
        lines = [line.split("#")[0].strip() for line in read_text(file, _MOST_BYTES).splitlines()]
        whole = [(number, line) for number, line in enumerate(lines, start=1) if line]
        single = [(number, line) for number, line in whole if "|" not in line.partition(":")[0]]
        names: list[str] = []
        values: dict[int, int] = {}
        for number, line in single:
            name, own_values = _class_line(line, len(names), file, number)
            _assign(values, own_values, len(names), file, number)
            names.append(name)
        if not 2 <= len(names) <= _MOST_CLASSES or len(set(names)) != len(names):
            what = f"Expected two or more classes, at most {_MOST_CLASSES}, each named once (got {len(names)})"
            raise InputError(what, file=file)
        either: list[tuple[int, ...]] = []
        for number, line in whole:
            if (number, line) in single:
                continue
            name, own_values = _class_line(line, -1, file, number)
            parts = [part.strip() for part in name.split("|")]
            if not set(parts) <= set(names):
                missing = next(part for part in parts if part not in names)
                raise InputError(f"Expected a class of this file (got {missing!r})", file=file, place=f"line {number}")
            _assign(values, own_values, len(names) + len(either), file, number)
            either.append(tuple(sorted(names.index(part) for part in parts)))
        return cls(tuple(names), values, tuple(either))

    def of(self, raw: NDArray[np.generic]) -> NDArray[np.int16]:
        """The class of each value, IGNORE for values without one."""
        out = np.full(raw.shape, IGNORE, np.int16)
        for value, kind in self.values.items():
            out[raw == value] = kind
        return out

    def allowed(self) -> NDArray[np.bool_]:
        """Which classes each label may be: one for a class, several for `either`.  # shape: (labels, classes)"""
        table = np.zeros((len(self.names) + len(self.either), len(self.names)), np.bool_)
        table[np.arange(len(self.names)), np.arange(len(self.names))] = True
        for row, kinds in enumerate(self.either, start=len(self.names)):
            table[row, list(kinds)] = True
        return table


def _class_line(line: str, position: int, file: Path, number: int) -> tuple[str, list[int]]:
    """The name and the values of a line; by default its position."""
    name, _, rest = line.partition(":")
    try:
        values = [int(word) for word in rest.replace(",", " ").split()] or [position]
    except ValueError as error:
        raise InputError("Expected 'name' or 'name: value …'", file=file, place=f"line {number}") from error
    return name.strip(), values


def _assign(values: dict[int, int], own: Sequence[int], label: int, file: Path, number: int) -> None:
    for value in own:
        if value in values:
            raise InputError(f"Expected each value once (got {value} twice)", file=file, place=f"line {number}")
        values[value] = label


def scan_pieces(
    source: str | Path | Cloud,
    classes: Classes,
    field: str,
    cut: Cut,
    *,
    fewest: int = 64,
    most: int = 4,
    votes: int = 4,
    seed: int = 0,
) -> PointSet:
    """Pieces of a labelled scan, cut as `fgnn.points.segment` cuts a scan to label it.

    Args:
        source: A file or a cloud.
        field: The field that holds the labels.
        fewest: Tiles with fewer labelled points are skipped.
        most: Pieces taken from one tile.
        votes: Tiles that contain each point: 4, 2 or 1.
    """
    reader: CloudReader = HeldCloud(source) if isinstance(source, Cloud) else open_cloud(source)
    if field not in reader.header.fields:
        names = ", ".join(reader.header.fields) or "none"
        file = None if isinstance(source, Cloud) else source
        raise InputError(f"Expected a field {field!r} with labels (the scan has: {names})", file=file)

    def extra(cloud: Cloud) -> NDArray[np.float32]:
        """What the features need, then the class."""
        label = classes.of(cloud.fields[field]).astype(np.float32)[:, None]
        return np.concatenate([extra_values(cloud, cut), label], axis=1)

    rng = np.random.default_rng(seed)
    features = [np.zeros((0, cut.points, cut.columns), np.float32)]
    labels = [np.zeros((0, cut.points), np.int16)]
    width = cut.width + 1
    with TileStore(reader, cut.size, extra=extra, extra_width=width, points=cut.points, grow=cut.grow) as store:
        for tile in store.tiles(votes):
            if (tile.extra[:, -1] != IGNORE).sum() < fewest:
                continue
            prepared = PreparedTile.of(tile, cut)
            label = prepared.tile.extra[:, -1].astype(np.int16)
            for piece in prepared.pieces(cut.points, rng, most):
                out = np.empty((cut.points, cut.columns), np.float32)
                prepared.features(piece, cut, out)
                features.append(out[None])
                labels.append(np.where(piece.copy == 0, label[piece.chosen], IGNORE)[None].astype(np.int16))
    return PointSet.of(np.concatenate(features), np.concatenate(labels))


def concat_sets(parts: Sequence[PointSet]) -> PointSet:
    """Concatenate several sets."""
    return PointSet(
        torch.cat([p.features for p in parts]),
        torch.cat([p.label for p in parts]),
        torch.cat([p.category for p in parts]),
    )
