"""A scan of any size cut into overlapping square tiles, on disk.

Three passes over the file (measure, count, sort) put the points, cell by cell, into temporary mapped files; a cell is
half a tile wide and a tile is two by two cells, so every point lies in four tiles and is voted on four times, or in two
or one of a choice of them. Memory holds one chunk of the file and one tile; mapped pages are given back as they go.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import CHUNK, Cloud, CloudReader

# Tiles between two times that mapped pages are given back.
_TILES_HELD = 64
# Which corners of tiles are used for so many votes: every cell is covered by exactly that many.
_CHOICES: dict[int, Callable[[int, int], bool]] = {
    4: lambda i, j: True,
    2: lambda i, j: (i + j) % 2 == 0,
    1: lambda i, j: i % 2 == 0 and j % 2 == 0,
}

OnChunk = Callable[[str, int, int], None]  # what is being done, points done, points in all


@dataclass(frozen=True, eq=False)
class Tile:
    """The points of one tile: where they stand in the store, and their coordinates from the scan's origin."""

    slots: NDArray[np.int64]  # shape: (P,)
    xyz: NDArray[np.float32]  # shape: (P, 3), x and y from the tile's middle, z from the scan's origin
    extra: NDArray[np.float32]  # shape: (P, F), further features


class TileStore:
    """The sorted points of one scan; use it in a ``with`` block, which removes the temporary files.

    Args:
        reader: The opened scan.
        size: Side of a tile, in the scan's units.
        extra: Gives further features (n, F) of a chunk, e.g. colours; None for none.
        extra_width: F.
        points: How many points a tile should hold; in a scan sparser than that tiles are wider, up to ``grow`` times.
        grow: 1 for tiles of ``size`` always.
        folder: Where temporary files go; by default the system's.
        report: Told how far each pass is.
    """

    def __init__(
        self,
        reader: CloudReader,
        size: float,
        extra: Callable[[Cloud], NDArray[np.float32]] | None = None,
        extra_width: int = 0,
        points: int = 0,
        grow: float = 1.0,
        folder: str | Path | None = None,
        report: OnChunk | None = None,
    ) -> None:
        if not size > 0:
            raise ValueError(f"Expected a positive tile size (got {size})")
        self.reader, self.half = reader, size / 2
        self._extra, self._report = extra, report
        self._maps: list[NDArray[Any]] = []
        self._folder = tempfile.TemporaryDirectory(dir=folder, prefix="fgnn-tiles-")
        try:
            self._build(extra_width, points, grow)
        except BaseException:
            self.close()
            raise

    def _build(self, extra_width: int, points: int, grow: float) -> None:
        low, high, self.count, self.valid = self._measure()
        self.origin = np.floor(low) if self.valid else np.zeros(3)
        self._divide(high)
        if grow > 1 and self.valid:
            usual = 4 * float(np.median(np.diff(self.begin)))  # points of a tile: four cells
            wider = min(grow, float(np.sqrt(points / usual)))
            if wider > 1:
                self.half *= wider
                self._divide(high)
        self.xyz: NDArray[np.float32] = self._map("xyz", np.float32, (self.valid, 3))
        self.extra: NDArray[np.float32] = self._map("extra", np.float32, (self.valid, extra_width))
        self.place: NDArray[np.int64] = self._map("place", np.int64, (self.valid,))  # slot -> point of the file
        self._scatter()

    def _divide(self, high: NDArray[np.float64]) -> None:
        spans = (
            np.floor((high - self.origin)[:2] / self.half).astype(np.int64) + 1 if self.valid else np.ones(2, np.int64)
        )
        self.shape: tuple[int, int] = (int(spans[0]), int(spans[1]))
        # A scan with one stray point far away must not ask for a table of empty cells: only those met are kept.
        self.cells, self.begin = self._count_cells()

    def __enter__(self) -> TileStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        self._maps.clear()
        for name in ("xyz", "extra", "place"):
            if hasattr(self, name):
                delattr(self, name)
        self._folder.cleanup()

    def new_map(self, name: str, dtype: Any, width: int) -> NDArray[Any]:
        """A zeroed array (points, width) on disk beside the store, for what is gathered about its slots."""
        return self._map(name, dtype, (self.valid, width))

    def __len__(self) -> int:
        """How many tiles there are."""
        return len(self._corners())

    def release(self) -> None:
        """Give back the memory of mapped pages, which would grow with the scan; the system's cache keeps the data."""
        for array in self._maps:
            held: Any = array
            held._mmap.madvise(mmap.MADV_DONTNEED)

    def tiles(self, votes: int = 4) -> Iterator[Tile]:
        """Tiles that hold a point, each two by two cells.

        Args:
            votes: How many of them every point lies in: 4 for all tiles, 2 for every other one as on a chess board,
                1 for tiles side by side.
        """
        keep = _CHOICES.get(votes)
        if keep is None:
            raise ValueError(f"Expected 1, 2 or 4 votes (got {votes})")
        for number, (i, j) in enumerate(corner for corner in self._corners() if keep(*corner)):
            if number % _TILES_HELD == 0:
                self.release()
            slots = np.concatenate([self._slots(i + di, j + dj) for di in (0, 1) for dj in (0, 1)])
            middle = np.array([(i + 1) * self.half, (j + 1) * self.half, 0.0], dtype=np.float32)
            yield Tile(slots, np.asarray(self.xyz[slots]) - middle, np.asarray(self.extra[slots]))

    def slot_of(self) -> NDArray[np.int64]:
        """For every point of the file its slot, -1 for points without finite coordinates; on disk as well."""
        slots: NDArray[np.int64] = self._map("slot_of", np.int64, (self.count,), fill=-1)
        for at in range(0, self.valid, CHUNK):
            part = np.asarray(self.place[at : at + CHUNK])
            slots[part] = np.arange(at, at + len(part))
            self.release()
        return slots

    # ---- inner --------------------------------------------------------------------------------------------

    def _measure(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
        low, high, count, valid = np.full(3, np.inf), np.full(3, -np.inf), 0, 0
        for part in self.reader.chunks():
            kept = part.xyz[part.valid]
            if len(kept):
                low, high = np.minimum(low, kept.min(0)), np.maximum(high, kept.max(0))
            count, valid = count + len(part), valid + len(kept)
            self._tell("measuring", count)
        return low, high, count, valid

    def _keys(self, xyz: NDArray[np.float64]) -> NDArray[np.int64]:
        cell = np.floor((xyz[:, :2] - self.origin[:2]) / self.half).astype(np.int64)
        return np.asarray(cell[:, 0] * self.shape[1] + cell[:, 1])

    def _count_cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        keys, numbers = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for part in self.reader.chunks():
            fresh, met = np.unique(self._keys(part.xyz[part.valid]), return_counts=True)
            merged, where = np.unique(np.concatenate([keys, fresh]), return_inverse=True)
            numbers = np.bincount(where, weights=np.concatenate([numbers, met]), minlength=len(merged)).astype(np.int64)
            keys = merged
        return keys, np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)

    def _scatter(self) -> None:
        free = self.begin[:-1].copy()
        done = 0
        for part in self.reader.chunks():
            inside = np.nonzero(part.valid)[0]
            cell = np.searchsorted(self.cells, self._keys(part.xyz[inside]))
            order = np.argsort(cell, kind="stable")
            cell, inside = cell[order], inside[order]
            met, first, numbers = np.unique(cell, return_index=True, return_counts=True)
            slots = np.arange(len(cell)) - np.repeat(first, numbers) + np.repeat(free[met], numbers)
            free[met] += numbers
            self.xyz[slots] = (part.xyz[inside] - self.origin).astype(np.float32)
            self.place[slots] = inside + done
            if self._extra is not None:
                self.extra[slots] = self._extra(part)[inside]
            done += len(part)
            self.release()
            self._tell("sorting", done)

    def _slots(self, i: int, j: int) -> NDArray[np.int64]:
        if not 0 <= i < self.shape[0] or not 0 <= j < self.shape[1]:
            return np.zeros(0, np.int64)
        key = i * self.shape[1] + j
        at = int(np.searchsorted(self.cells, key))
        if at == len(self.cells) or self.cells[at] != key:
            return np.zeros(0, np.int64)
        return np.arange(self.begin[at], self.begin[at + 1])

    def _corners(self) -> list[tuple[int, int]]:
        cells = np.stack(np.divmod(self.cells, self.shape[1]), axis=1)
        around = [cells - np.array([di, dj]) for di in (0, 1) for dj in (0, 1)]
        return [(int(i), int(j)) for i, j in np.unique(np.concatenate(around), axis=0)] if len(cells) else []

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...], fill: int = 0) -> NDArray[Any]:
        if 0 in shape:
            return np.zeros(shape, dtype)
        array = np.memmap(Path(self._folder.name) / name, dtype=dtype, mode="w+", shape=shape)
        if fill:
            array[:] = fill
        self._maps.append(array)
        return array

    def _tell(self, what: str, done: int) -> None:
        if self._report is not None:
            self._report(what, done, self.reader.header.count)
