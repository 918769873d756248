"""A scan of any size cut into overlapping square tiles, on disk.

The file is read once, to measure it; what tiles need of its points is laid aside, and from there it is counted and
sorted, cell by cell, into temporary mapped files. A cell is half a tile wide and a tile is two by two cells, so every
point lies in four tiles and is voted on four times, or in two or one of a choice of them. Memory holds one chunk of the
file and one tile; mapped pages are given back as they go.
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

from fgnn.points.cloud import Cloud, CloudReader

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


@dataclass(frozen=True)
class Spot:
    """Where a tile is: its points are two runs of slots, and coordinates are taken about its middle."""

    first: tuple[int, int]
    second: tuple[int, int]
    middle: tuple[float, float]

    def __len__(self) -> int:
        return self.first[1] - self.first[0] + self.second[1] - self.second[0]

    def slots(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slots of points by their number in the tile."""
        begin, end = self.first
        return np.where(points < end - begin, points + begin, points + (self.second[0] - (end - begin)))


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
        self._aside = _Aside(Path(self._folder.name) / "aside", extra_width)
        low, high, self.count, self.valid = self._measure()
        self.origin = np.floor(low) if self.valid else np.zeros(3)
        self._divide(high)
        if grow > 1 and self.valid:
            usual = 4 * float(np.median(np.diff(self.begin)))  # points of a tile: four cells
            wider = min(grow, float(np.sqrt(points / usual)))
            if wider > 1:
                self.half *= wider
                self._divide(high)
        self.xyz: NDArray[np.float32] = self.new_map("xyz", np.float32, (self.valid, 3))
        self.extra: NDArray[np.float32] = self.new_map("extra", np.float32, (self.valid, extra_width))
        self.place: NDArray[np.int64] = self.new_map("place", np.int64, (self.valid,))  # slot -> point of the file
        self._scatter()
        self._aside.remove()

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
        return map(self.load, self.spots(votes))

    def spots(self, votes: int = 4) -> Iterator[Spot]:
        """Where such tiles are, in the order of `tiles`; `load` reads the points of one, in any thread."""
        keep = _CHOICES.get(votes)
        if keep is None:
            raise ValueError(f"Expected 1, 2 or 4 votes (got {votes})")
        for number, (i, j) in enumerate(corner for corner in self._corners() if keep(*corner)):
            if number % _TILES_HELD == 0:
                self.release()
            middle = ((i + 1) * self.half, (j + 1) * self.half)
            yield Spot(self._run(i, j), self._run(i + 1, j), middle)

    def load(self, spot: Spot) -> Tile:
        """The points of a tile."""
        both = (slice(*spot.first), slice(*spot.second))
        xyz = np.concatenate([np.asarray(self.xyz)[run] for run in both])
        xyz -= np.array([*spot.middle, 0.0], dtype=np.float32)
        return Tile(spot.slots(np.arange(len(xyz))), xyz, np.concatenate([np.asarray(self.extra)[run] for run in both]))

    # ---- inner --------------------------------------------------------------------------------------------

    def _measure(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
        low, high, count, valid = np.full(3, np.inf), np.full(3, -np.inf), 0, 0
        for part in self.reader.chunks():
            inside = np.isfinite(part.xyz[:, 0]) & np.isfinite(part.xyz[:, 1]) & np.isfinite(part.xyz[:, 2])
            extra = None if self._extra is None else self._extra(part)
            if inside.all():  # as nearly always: nothing is copied
                kept, where = part.xyz, np.arange(count, count + len(part))
            else:
                where = np.flatnonzero(inside)
                kept, extra = part.xyz[where], None if extra is None else extra[where]
                where += count
            for axis in range(3 if len(kept) else 0):
                values = np.ascontiguousarray(kept[:, axis])  # extremes along rows of three are slow to find
                low[axis], high[axis] = min(low[axis], values.min()), max(high[axis], values.max())
            self._aside.add(kept, where, extra)
            count, valid = count + len(part), valid + len(kept)
            self._tell("measuring", count)
        return low, high, count, valid

    def _keys(self, xyz: NDArray[np.float64]) -> NDArray[np.int64]:
        i, j = (np.floor((xyz[:, a] - self.origin[a]) / self.half).astype(np.int64) for a in (0, 1))
        return np.asarray(i * self.shape[1] + j)

    def _count_cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        keys, numbers = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for xyz, _, _ in self._aside:
            fresh, met = _counted(self._keys(xyz))
            merged, where = np.unique(np.concatenate([keys, fresh]), return_inverse=True)
            numbers = np.bincount(where, weights=np.concatenate([numbers, met]), minlength=len(merged)).astype(np.int64)
            keys = merged
        return keys, np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)

    def _scatter(self) -> None:
        free = self.begin[:-1].copy()
        # numbers of two bytes are sorted by their digits, which takes a tenth of the time
        small = np.uint16 if len(self.cells) <= 1 << 16 else np.int64
        done = 0
        for xyz, where, extra in self._aside:
            cell = np.searchsorted(self.cells, self._keys(xyz)).astype(small)
            order = np.argsort(cell, kind="stable")
            met, numbers = _counted(cell.astype(np.int64))
            first = np.cumsum(numbers) - numbers
            slots = np.arange(len(cell)) + np.repeat(free[met] - first, numbers)
            free[met] += numbers
            self.xyz[slots] = (xyz - self.origin).astype(np.float32)[order]
            self.place[slots] = where[order]
            if self._extra is not None:
                self.extra[slots] = extra[order]
            done += len(cell)
            self.release()
            self._tell("sorting", done)

    def _run(self, i: int, j: int) -> tuple[int, int]:
        """Where the points of the cells (i, j) and (i, j + 1) begin and end, which are neighbours in the store."""
        if not 0 <= i < self.shape[0]:
            return 0, 0
        keys = (i * self.shape[1] + max(j, 0), i * self.shape[1] + min(j + 1, self.shape[1] - 1) + 1)
        first, last = np.searchsorted(self.cells, keys)
        return int(self.begin[first]), int(self.begin[last])

    def _corners(self) -> list[tuple[int, int]]:
        cells = np.stack(np.divmod(self.cells, self.shape[1]), axis=1)
        around = [cells - np.array([di, dj]) for di in (0, 1) for dj in (0, 1)]
        return [(int(i), int(j)) for i, j in np.unique(np.concatenate(around), axis=0)] if len(cells) else []

    def new_map(self, name: str, dtype: Any, shape: tuple[int, ...], fill: int = 0) -> NDArray[Any]:
        """A filled array on disk beside the store, removed with it."""
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


class _Aside:
    """Valid points laid aside in a plain file, chunk by chunk: a scan may be packed, and is not unpacked again."""

    def __init__(self, file: Path, width: int) -> None:
        self.file, self.width = file, width
        self.counts: list[int] = []
        file.touch()

    def add(self, xyz: NDArray[np.float64], where: NDArray[np.int64], extra: NDArray[np.float32] | None) -> None:
        with self.file.open("ab") as out:
            for array in (xyz, where) if extra is None else (xyz, where, extra):
                out.write(np.ascontiguousarray(array).data)
        self.counts.append(len(xyz))

    def __iter__(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float32]]]:
        """Coordinates (n, 3), places in the scan (n,) and further features (n, F) of each chunk."""
        with self.file.open("rb") as source:
            for count in self.counts:
                xyz = np.fromfile(source, np.float64, 3 * count).reshape(-1, 3)
                where = np.fromfile(source, np.int64, count)
                yield xyz, where, np.fromfile(source, np.float32, self.width * count).reshape(count, self.width)

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)


def _counted(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys in order, and how often each comes."""
    if not len(keys):
        return keys, keys
    low, high = int(keys.min()), int(keys.max())
    if high - low > 4 * len(keys):  # a stray point far away
        return np.unique(keys, return_counts=True)
    numbers = np.bincount(keys - low)
    met = np.flatnonzero(numbers)
    return met + low, numbers[met]
