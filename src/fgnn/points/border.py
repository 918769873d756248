"""A scan together with the points of its neighbours near its border, so that tiles of a survey are labelled as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import CHUNK, Cloud, CloudReader, open_cloud

Box = tuple[NDArray[np.float64], NDArray[np.float64]]  # lowest and highest x and y


class WithBorder:
    """The points of a scan, then those of its neighbours that are at most ``width`` outside its extent.

    Args:
        reader: The scan.
        around: Files of the neighbours; those too far away are skipped.
        width: In the units of the scan.
    """

    def __init__(self, reader: CloudReader, around: Sequence[str | Path], width: float) -> None:
        self.header, self._reader, self._around, self._width = reader.header, reader, around, width

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        low, high = np.full(2, np.inf), np.full(2, -np.inf)
        for part in self._reader.chunks(size):
            xy = part.xyz[part.valid, :2]
            if len(xy):
                low, high = np.minimum(low, xy.min(0)), np.maximum(high, xy.max(0))
            yield part
        low, high = low - self._width, high + self._width
        for path in self._around:
            reader = open_cloud(path)
            box = stated_extent(reader)
            if box is not None and ((box[0] > high) | (box[1] < low)).any():
                continue
            for part in reader.chunks(size):
                inside = np.asarray(((part.xyz[:, :2] >= low) & (part.xyz[:, :2] <= high)).all(1))
                if inside.any():
                    yield part[inside]


def stated_extent(reader: CloudReader) -> Box | None:
    """The extent in x and y that the header of a LAS file states; None for other files."""
    header = reader.header.keep.get("las")
    return None if header is None else (np.array(header.mins[:2]), np.array(header.maxs[:2]))
