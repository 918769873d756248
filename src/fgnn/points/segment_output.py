"""What is written after a scan is labelled: its fields, heights above ground, a terrain model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import CHUNK, Cloud, CloudReader, check_storable, join_clouds, write_chunks
from fgnn.points.formats.geotiff import projection_tags, write_geotiff
from fgnn.points.terrain import above_ground, terrain
from fgnn.points.tiles import TileStore


@dataclass(frozen=True)
class Output:
    """What is written beside ``label`` and ``confidence``, for segmenters with a class ground.

    Args:
        classification: Replace the field ``classification`` by the codes of the classes, where they have any.
        above_ground: Add the field ``height_above_ground``.
        dtm: A GeoTIFF of the ground to write, with cells of side ``cell``.
        unit: Metres per unit of the scan's coordinates; the outputs are in the scan's units.
    """

    classification: bool = True
    above_ground: bool = False
    dtm: Path | None = None
    cell: float = 1.0
    unit: float = 1.0


@dataclass(frozen=True, eq=False)
class LabelFields:
    """The fields added to a scan, in the order of the file."""

    label: NDArray[np.uint8]
    confidence: NDArray[np.float32]
    codes: NDArray[np.uint8]  # shape: (K,), or empty
    above_ground: NDArray[np.float32] | None = None

    def added(self, part: Cloud, start: int) -> Cloud:
        """A chunk of the file that begins at point ``start``, with the fields."""
        rows = slice(start, start + len(part))
        label = np.array(self.label[rows])
        part = part.with_fields(label=label, confidence=np.array(self.confidence[rows]))
        if len(self.codes):
            code = np.append(self.codes, np.zeros(256 - len(self.codes), np.uint8))[label]
            part = part.with_fields(classification=code)
        if self.above_ground is not None:
            part = part.with_fields(height_above_ground=np.array(self.above_ground[rows]))
        return part


def ground_heights(
    reader: CloudReader, store: TileStore, is_ground: Callable[[NDArray[np.int64]], NDArray[np.bool_]], output: Output
) -> NDArray[np.float32] | None:
    """Write the terrain model if asked for; returns the heights above ground in the order of the file if asked for.

    Args:
        is_ground: Which points of the file are ground.
    """
    ground: NDArray[np.bool_] = store.new_map("ground", np.bool_, (store.valid,))
    for start in range(0, store.valid, CHUNK):
        ground[start : start + CHUNK] = is_ground(np.asarray(store.place[start : start + CHUNK]))
    if output.dtm is not None:
        model, unit = terrain(store, ground, output.cell * output.unit), output.unit
        tags = projection_tags(reader.header.keep)
        write_geotiff(output.dtm, model.heights / unit, model.west / unit, model.north / unit, output.cell, tags)
    if not output.above_ground:
        return None
    heights: NDArray[np.float32] = store.new_map("file_above_ground", np.float32, (store.count,))
    by_slot = above_ground(store, ground)
    if store.valid < store.count:
        heights[:] = np.nan
    for start in range(0, store.valid, CHUNK):
        part = slice(start, start + CHUNK)
        store.write(heights, np.asarray(store.place[part]), np.asarray(by_slot[part]) / output.unit)
        store.release()
    return heights


class CheckedReader:
    """A scan that is rejected while it is read, before it is labelled, if the output file cannot hold it."""

    def __init__(self, reader: CloudReader, blank: LabelFields, out: str | Path) -> None:
        self.header, self._reader, self._blank, self._out = reader.header, reader, blank, out
        self.count = 0  # points read so far

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        first: Cloud | None = None
        self.count = 0
        for part in self._reader.chunks(size):
            self.count += len(part)
            labelled = self._blank.added(part, 0)
            first = labelled if first is None else first
            check_storable(first, labelled, self._out)
            yield part


def write_labelled(
    reader: CloudReader, store: TileStore, count: int, fields: LabelFields, out: str | Path, keep: int
) -> Cloud | None:
    """Write the ``count`` points of the scan again with their labels.

    Returns:
        About ``keep`` of them, with the classification that the scan came with.
    """
    step = max(1, -(-count // keep)) if keep else 0
    sample: list[Cloud] = []

    def labelled() -> Iterator[Cloud]:
        start = 0
        for part in reader.chunks() if count else [reader.header.empty()]:
            labelled_part = fields.added(part, start)
            start += len(part)
            store.release()
            if step:
                given = {name: part.fields[name] for name in ("classification",) if name in part.fields}
                sample.append(labelled_part.with_fields(**given)[::step])
            yield labelled_part

    write_chunks(labelled(), out, count=count)
    return join_clouds(sample) if sample else None
