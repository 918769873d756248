"""A scan of any size cut into overlapping square tiles, on disk.

The file is read once: its extent is measured and the valid points are spooled to a temporary file, from which they are
counted and sorted by cell into memory-mapped files. A tile is two by two cells, so every point lies in four tiles, or
in two or one of a regular subset of them. Memory holds one chunk of the file and one tile; mapped pages are released
along the way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import Cloud, CloudReader
from fgnn.points.spool import Spool, release_pages

# Mapped pages are released after tiles of this many points.
_RELEASE_AFTER = 1 << 20
# Points written anywhere in mapped files before their pages, in the worst case one each, are released.
_SCATTERED = 1 << 15
# Heights are stored relative to multiples of this, so that their rounding does not depend on the scan's extent.
_STOREY = 1024.0
# Votes -> which tile corners are used, so that exactly that many tiles cover every cell.
_CORNERS_USED: dict[int, Callable[[int, int], bool]] = {
    4: lambda i, j: True,
    2: lambda i, j: (i + j) % 2 == 0,
    1: lambda i, j: i % 2 == 0 and j % 2 == 0,
}

OnChunk = Callable[[str, int, int], None]  # stage, points done, total points


@dataclass(frozen=True, eq=False)
class Tile:
    """The points of one tile."""

    slots: NDArray[np.int64]  # shape: (P,), positions in the store
    xyz: NDArray[np.float32]  # shape: (P, 3), x and y relative to the tile's centre, z to the store's origin
    extra: NDArray[np.float32]  # shape: (P, F), extra features


@dataclass(frozen=True)
class Spot:
    """Where a tile is: two ranges of slots, two cells each, and its centre."""

    first: tuple[int, int]
    second: tuple[int, int]
    centre: tuple[float, float]
    corner: tuple[int, int] = (0, 0)  # its number along x and y on the lattice of all tiles
    middle: tuple[int, int] = (0, 0)  # the slots at which the second cell of each range begins

    def __len__(self) -> int:
        return self.first[1] - self.first[0] + self.second[1] - self.second[0]

    def slots(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slots of points given by their number in the tile."""
        begin, end = self.first
        return np.where(points < end - begin, points + begin, points + (self.second[0] - (end - begin)))


class TileStore:
    """The points of one scan sorted by cell; a context manager that removes its temporary files.

    Args:
        reader: The opened scan.
        size: Side of a tile, in the scan's units.
        extra: Computes extra features (n, F) of a chunk, e.g. colours.
        extra_width: F.
        points: Points a tile should hold; in sparser scans tiles widen, at most ``grow`` times.
        grow: 1 keeps tiles at ``size``.
        report: Called with the progress of each pass.
    """

    def __init__(
        self,
        reader: CloudReader,
        size: float,
        extra: Callable[[Cloud], NDArray[np.float32]] | None = None,
        extra_width: int = 0,
        points: int = 0,
        grow: float = 1.0,
        report: OnChunk | None = None,
    ) -> None:
        if not size > 0:
            raise ValueError(f"Expected a positive tile size (got {size})")
        self.reader, self.half = reader, size / 2  # a cell is half a tile wide
        self._extra, self._report = extra, report
        self._maps: list[NDArray[Any]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="fgnn-tiles-")
        try:
            self._build(extra_width, points, grow)
        except BaseException:
            self.close()
            raise

    def _build(self, extra_width: int, points: int, grow: float) -> None:
        self._spool = Spool(Path(self._folder.name) / "spool", extra_width)
        low, high, self.count, self.valid = self._measure()
        self._divide(low, high)
        if grow > 1 and self.valid:
            typical = 4 * float(np.median(np.diff(self.begin)))  # points in the four cells of a tile
            factor = min(grow, float(np.sqrt(points / typical)))
            if factor > 1:
                self.half *= factor
                self._divide(low, high)
        self.xyz: NDArray[np.float32] = self.new_map("xyz", np.float32, (self.valid, 3))
        self.extra: NDArray[np.float32] = self.new_map("extra", np.float32, (self.valid, extra_width))
        self.place: NDArray[np.int64] = self.new_map("place", np.int64, (self.valid,))  # slot -> point in the file
        self._scatter()
        self._spool.file.unlink()

    def _divide(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        # aligned with multiples of a cell, whatever the extent: then a point is in the same tile in every file
        steps = np.array([self.half, self.half, _STOREY])
        self.first_cell = np.floor(low / steps) if self.valid else np.zeros(3)
        self.origin = self.first_cell * steps
        spans = np.floor((high - self.origin)[:2] / self.half) + 1 if self.valid else np.ones(2)
        self.shape: tuple[int, int] = (int(spans[0]), int(spans[1]))
        # only occupied cells: one stray point far away must not cost a table of empty ones
        self.cells, self.begin = self._count_cells()

    def __enter__(self) -> TileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        self._maps.clear()
        for name in ("xyz", "extra", "place"):
            if hasattr(self, name):
                delattr(self, name)
        self._folder.cleanup()

    def release(self) -> None:
        """Release resident mapped pages, which would grow with the scan; the data stay in the page cache."""
        for array in self._maps:
            release_pages(array)

    def write(self, mapped: NDArray[Any], places: NDArray[np.int64], values: NDArray[Any]) -> None:
        """``mapped[places] = values``, in bounded memory wherever the places are."""
        for start in range(0, len(places), _SCATTERED):
            rows = slice(start, start + _SCATTERED)
            mapped[places[rows]] = values[rows]
            release_pages(mapped)

    def tiles(self, votes: int = 4) -> Iterator[Tile]:
        """The non-empty tiles.

        Args:
            votes: Tiles that contain each point: 4 for all tiles, 2 for a chessboard, 1 for tiles side by side.
        """
        return map(self.load, self.spots(votes))

    def spots(self, votes: int = 4) -> Iterator[Spot]:
        """Where these tiles are, in the same order; `load` reads one, in any thread."""
        used = _CORNERS_USED.get(votes)
        if used is None:
            raise ValueError(f"Expected 1, 2 or 4 votes (got {votes})")
        x, y = (int(n) for n in self.first_cell[:2])
        mapped = 0
        for i, j in ((i, j) for i, j in self._corners() if used(i + x, j + y)):
            if mapped >= _RELEASE_AFTER:
                self.release()
                mapped = 0
            centre = ((i + 1) * self.half, (j + 1) * self.half)
            (a, b, c), (d, e, f) = self._run(i, j), self._run(i + 1, j)
            yield Spot((a, c), (d, f), centre, (i + x, j + y), (b, e))
            mapped += c - a + f - d

    def load(self, spot: Spot) -> Tile:
        """The points of a tile."""
        ranges = (slice(*spot.first), slice(*spot.second))
        xyz, extra = (np.concatenate([np.asarray(array)[run] for run in ranges]) for array in (self.xyz, self.extra))
        # stored relative to their cells
        half, count = np.float32(self.half), spot.first[1] - spot.first[0]
        xyz[:count, 0] -= half
        xyz[: spot.middle[0] - spot.first[0], 1] -= half
        xyz[count : count + spot.middle[1] - spot.second[0], 1] -= half
        return Tile(spot.slots(np.arange(len(xyz))), xyz, extra)

    def blocks(self, inner: int, border: int, around: NDArray[np.bool_]) -> Iterator[tuple[Tile, NDArray[np.bool_]]]:
        """Squares of ``inner`` cells a side on a fixed lattice, with ``border`` cells around them.

        Args:
            around: Which points are read where they are in the border, by slot.

        Yields:
            The points, x and y relative to the centre of the square, and which of them are not of the border.
        """
        corner = self.first_cell[:2].astype(np.int64)
        occupied = np.stack(np.divmod(self.cells, self.shape[1]), axis=1) + corner
        for i, j in np.unique(occupied // inner, axis=0) * inner - corner:
            self.release()
            yield self._block(int(i), int(j), inner, border, around)

    def _block(
        self, i: int, j: int, inner: int, border: int, around: NDArray[np.bool_]
    ) -> tuple[Tile, NDArray[np.bool_]]:
        near = np.arange(-border, inner + border)  # cells along an axis, from the first inner one
        place, within = (near - inner / 2) * self.half, (near >= 0) & (near < inner)
        columns = np.clip(np.append(j + near, j + inner + border), 0, self.shape[1])
        slots, parts, chosen = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.float32)], [np.zeros(0, np.bool_)]
        for n in np.flatnonzero((i + near >= 0) & (i + near < self.shape[0])):
            edges = self.begin[np.searchsorted(self.cells, (i + near[n]) * self.shape[1] + columns)]
            run = slice(edges[0], edges[-1])
            own = np.repeat(within & within[n], np.diff(edges))
            keep = np.flatnonzero(np.asarray(around[run]) | own)
            xyz = np.asarray(self.xyz[run])[keep]
            # stored relative to their cells
            xyz[:, 0] += np.float32(place[n])
            xyz[:, 1] += np.repeat(place.astype(np.float32), np.diff(edges))[keep]
            parts.append(xyz)
            slots.append(keep + edges[0])
            chosen.append(own[keep])
        joined = np.concatenate(slots)
        extra = np.zeros((len(joined), 0), np.float32)
        return Tile(joined, np.concatenate(parts), extra), np.concatenate(chosen)

    def _measure(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
        low, high, count, valid = np.full(3, np.inf), np.full(3, -np.inf), 0, 0
        for part in self.reader.chunks():
            inside = np.isfinite(part.xyz[:, 0]) & np.isfinite(part.xyz[:, 1]) & np.isfinite(part.xyz[:, 2])
            extra = None if self._extra is None else self._extra(part)
            point = np.arange(count, count + len(part))
            xyz = part.xyz
            if not inside.all():  # rarely; otherwise nothing is copied
                xyz, point, extra = xyz[inside], point[inside], None if extra is None else extra[inside]
            for axis in range(3 if len(xyz) else 0):
                values = np.ascontiguousarray(xyz[:, axis])  # min and max along strided columns are slow
                low[axis], high[axis] = min(low[axis], values.min()), max(high[axis], values.max())
            self._spool.add(xyz, point, extra)
            count, valid = count + len(part), valid + len(xyz)
            self._progress("measuring", count)
        return low, high, count, valid

    def _keys(self, xyz: NDArray[np.float64]) -> NDArray[np.int64]:
        i, j = (np.floor((xyz[:, a] - self.origin[a]) / self.half).astype(np.int64) for a in (0, 1))
        return np.asarray(i * self.shape[1] + j)

    def _count_cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for xyz, _, _ in self._spool:
            part_keys, part_counts = _key_counts(self._keys(xyz))
            keys, merged = np.unique(np.concatenate([keys, part_keys]), return_inverse=True)
            counts = np.bincount(merged, weights=np.concatenate([counts, part_counts])).astype(np.int64)
        return keys, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def _scatter(self) -> None:
        free = self.begin[:-1].copy()
        # NumPy radix-sorts 16-bit integers, ten times faster
        small = np.uint16 if len(self.cells) <= 1 << 16 else np.int64
        done = 0
        for xyz, point, extra in self._spool:
            cell = np.searchsorted(self.cells, self._keys(xyz)).astype(small)
            order = np.argsort(cell, kind="stable")
            occupied, counts = _key_counts(cell.astype(np.int64))
            first = np.cumsum(counts) - counts
            slots = np.arange(len(cell)) + np.repeat(free[occupied] - first, counts)
            free[occupied] += counts
            local = xyz - self.origin
            # relative to the cell, so that neither a distant origin nor the scan's extent changes their rounding
            local[:, :2] -= np.floor(local[:, :2] / self.half) * self.half
            self.write(self.xyz, slots, local.astype(np.float32)[order])
            self.write(self.place, slots, point[order])
            if self._extra is not None:
                self.write(self.extra, slots, extra[order])
            done += len(cell)
            self._progress("sorting", done)

    def _run(self, i: int, j: int) -> tuple[int, int, int]:
        """Where the cells (i, j) and (i, j + 1), adjacent in the store, begin, and where the second ends."""
        if not 0 <= i < self.shape[0]:
            return 0, 0, 0
        columns = (min(max(j + n, 0), self.shape[1]) for n in range(3))
        first, second, last = np.searchsorted(self.cells, [i * self.shape[1] + column for column in columns])
        return int(self.begin[first]), int(self.begin[second]), int(self.begin[last])

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

    def _progress(self, stage: str, done: int) -> None:
        if self._report is not None:
            self._report(stage, done, self.reader.header.count)


def _key_counts(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys in ascending order, and how often each occurs."""
    if not len(keys):
        return keys, keys
    low, high = int(keys.min()), int(keys.max())
    if high - low > 4 * len(keys):  # a stray point far away
        return np.unique(keys, return_counts=True)
    counts = np.bincount(keys - low)
    occupied = np.flatnonzero(counts)
    return occupied + low, counts[occupied]
