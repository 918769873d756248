"""Batches of tile pieces for a network, prepared by threads while the network works on the previous batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fgnn.points.ahead import in_order
from fgnn.points.cloud import Cloud
from fgnn.points.echoes import ECHO_COLUMNS, RAW_COLUMNS, echo_features, raw_echoes
from fgnn.points.heights import Relief, height_columns
from fgnn.points.neighbourhood import AROUND_COLUMNS, SHAPE_COLUMNS, columns_around, neighbourhood_shape
from fgnn.points.thin import lowest_per_voxel
from fgnn.points.tiles import Spot, Tile, TileStore
from fgnn.schema import Between, Extent, Length

# Batches prepared ahead of the one being labelled.
_AHEAD = 2
# Sparse tiles become pieces shorter than P, by halving, but no shorter than this: the network needs neighbours.
_SHORTEST = 1024
# Pieces of thinned tiles have a multiple of this many rows: few distinct lengths, little padding.
_STEP = 256
# Networks are trained on tiles of at least this many points. Fewer have no surroundings to see, and padding them a
# hundredfold would make scattered points take a second each.
_FEW = 64
# Stray points less deep than this below their surroundings, in the scan's units, are left to the network.
_PIT = 2.0

# Shape -> array for the features of a batch
Allocate = Callable[[tuple[int, ...]], NDArray[np.float32]]


def check_thinning(side: float) -> None:
    """A rule: 0 for none, or the side of a voxel."""
    if side:
        Between(1e-3, 1e6)(side)


# What recipes and cards may ask for.
PiecePoints = Annotated[int, Between(32, 1 << 16)]
Windows = Annotated[Sequence[Extent], Length(64)]
Growth = Annotated[float, Between(1, 100)]
Thinning = Annotated[float, check_thinning]
Neighbours = Annotated[Sequence[Annotated[int, Between(3, 1024)]], Length(16)]


@dataclass(frozen=True)
class Cut:
    """How a scan becomes tiles, pieces and features; the fields are those of `fgnn.points.segment.Segmenter`."""

    size: Extent
    points: PiecePoints = 4096
    scale: Extent = 1.0
    colour: bool = False
    heights: Windows = ()
    slopes: Windows = ()
    grow: Growth = 1.0
    thin: Thinning = 0.0
    shapes: Neighbours = ()
    echoes: bool = False

    @classmethod
    def of(cls, settings: Any) -> Cut:
        """The cut that an object with all these fields describes."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})

    @property
    def width(self) -> int:
        """Values per point kept beside the coordinates: colour, then intensity and returns."""
        return 3 * self.colour + RAW_COLUMNS * self.echoes

    @property
    def echo_columns(self) -> slice:
        """The features from intensity and returns."""
        first = 3 + 3 * self.colour
        return slice(first, first + ECHO_COLUMNS * self.echoes)

    @property
    def columns(self) -> int:
        """Features per point."""
        around = SHAPE_COLUMNS * len(self.shapes) + AROUND_COLUMNS if self.shapes else 0
        echoes = ECHO_COLUMNS * self.echoes
        return 3 + 3 * self.colour + echoes + around + height_columns(self.heights, self.slopes)


def extra_values(cloud: Cloud, cut: Cut) -> NDArray[np.float32]:
    """What a tile keeps beside the coordinates.  # shape: (N, cut.width)"""
    parts = [colours(cloud)] if cut.colour else []
    parts += [raw_echoes(cloud)] if cut.echoes else []
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(cloud), 0), np.float32)


def colours(cloud: Cloud) -> NDArray[np.float32]:
    """The colours of a cloud, zeros if it has none.  # shape: (N, 3)"""
    rgb = cloud.rgb
    return rgb if rgb is not None else np.zeros((len(cloud), 3), np.float32)


@dataclass(frozen=True, eq=False)
class Batch:
    """Features of several pieces, and for each row of each piece the slot of its point, -1 for padding."""

    features: NDArray[np.float32]  # shape: (pieces, P, 3 + F)
    slots: list[NDArray[np.int64]]


@dataclass(eq=False)
class _PendingBatch:
    memory: NDArray[np.float32]  # shape: (size, P, 3 + F)
    buffer: NDArray[np.float32]  # shape: (pieces, rows, 3 + F), a view of it
    slots: list[Future[NDArray[np.int64]]] = field(default_factory=list)

    @classmethod
    def of(cls, memory: NDArray[np.float32], length: int) -> _PendingBatch:
        rows = memory.reshape(-1, memory.shape[2])
        pieces = len(rows) // length
        return cls(memory, rows[: pieces * length].reshape(pieces, length, -1))

    def finish(self) -> Batch:
        return Batch(self.buffer[: len(self.slots)], [job.result() for job in self.slots])


@dataclass(frozen=True, eq=False)
class Piece:
    """The points of a piece, by their number in the prepared tile, and which copy of the tile each row belongs to."""

    chosen: NDArray[np.int64]  # shape: (P,)
    copy: NDArray[np.int64]  # shape: (P,), 0 for the points themselves, else padding


@dataclass(frozen=True, eq=False)
class PreparedTile:
    """A tile, thinned where the cut asks for it: x and y relative to the tile's centre, z to its lowest point."""

    tile: Tile
    relief: Relief | None
    fixed: NDArray[np.float32]  # shape: (P, F'), the features between coordinates and heights

    @staticmethod
    def of(tile: Tile, cut: Cut) -> PreparedTile:
        """Thin the tile, lower its z so that its lowest point is at 0, and compute what needs all its points."""
        if cut.thin:
            keep, _ = lowest_per_voxel(tile.xyz, cut.thin)
            tile = Tile(tile.slots[keep], tile.xyz[keep], tile.extra[keep])
        tile.xyz[:, 2] -= np.ascontiguousarray(tile.xyz[:, 2]).min()
        parts = [tile.extra[:, : 3 * cut.colour]]
        parts += [echo_features(tile.extra[:, 3 * cut.colour : cut.width])] if cut.echoes else []
        if cut.shapes:
            parts += [neighbourhood_shape(tile.xyz, cut.shapes), columns_around(tile.xyz)]
        pits = _PIT if cut.thin else None
        relief = Relief.of(tile.xyz, cut.heights, cut.slopes, pits=pits) if cut.heights else None
        return PreparedTile(tile, relief, np.concatenate(parts, axis=1))

    def pieces(self, points: int, rng: np.random.Generator, most: int | None = None) -> Iterator[Piece]:
        """Random disjoint pieces of about equal length, each filled up to ``points`` rows with copies.

        Args:
            most: At most this many pieces.
        """
        order = rng.permutation(len(self.tile.slots))
        parts = -(-len(order) // points)
        for part in np.array_split(order, parts)[:most]:
            row = np.arange(points)
            # shuffled, so that every copy has its share of the first rows, of which networks make coarser levels
            rng.shuffle(row)
            yield Piece(part[row % len(part)], row // len(part))

    def features(self, piece: Piece, cut: Cut, out: NDArray[np.float32]) -> NDArray[np.int64]:
        """Write the features of a piece into ``out``; returns the slot of each row, -1 for padding.

        Padding repeats the points. Of a thinned tile the repeats are moved so far that no point has a neighbour among
        them; networks that read positions or pool over all points, which would notice, do not thin.
        """
        xyz = np.take(self.tile.xyz, piece.chosen, axis=0)
        np.divide(xyz, np.float32(cut.scale), out=out[:, :3])
        if cut.thin:
            out[:, 0] += piece.copy * np.float32(4 * cut.size / cut.scale)
        last = 3 + self.fixed.shape[1]
        np.take(self.fixed, piece.chosen, axis=0, out=out[:, 3:last])
        if self.relief is not None:
            self.relief.heights(xyz, out=out[:, last:])
        return np.where(piece.copy == 0, self.tile.slots[piece.chosen], -1)


def tile_features(tile: Tile, cut: Cut) -> NDArray[np.float32]:
    """The features of all points of a tile that is not thinned.  # shape: (P, 3 + F)"""
    out = np.empty((len(tile.slots), cut.columns), np.float32)
    everything = Piece(np.arange(len(out)), np.zeros(len(out), np.int64))
    PreparedTile.of(replace(tile, xyz=tile.xyz.copy()), cut).features(everything, cut, out)
    return out


def piece_length(count: int, points: int, step: int | None = None) -> int:
    """Rows of a piece of a tile with ``count`` points: P halved while they fit, no shorter than the shortest.

    Args:
        step: If given, the least multiple of it that holds an even share of the points, at most P.
    """
    shortest = _SHORTEST if count >= _FEW else _FEW
    if step is not None and points > max(step, shortest):
        share = -(-count // -(-max(count, 1) // points))  # of the fewest pieces
        return shortest if share <= shortest else min(points, -(-share // step) * step)
    while points % 2 == 0 and points // 2 >= max(count, shortest):
        points //= 2
    return points


def batches(
    store: TileStore, cut: Cut, size: int, votes: int, seed: int, threads: int = 1, allocate: Allocate | None = None
) -> Generator[Batch, None, None]:
    """Cut the tiles into pieces; yield ``size`` pieces of P points at a time, or as many more that are shorter.

    A batch is valid until the next one is requested: its memory is reused.

    Args:
        threads: Threads that compute features; their number does not change the result.
        allocate: Allocates the memory of a batch, e.g. pinned memory for a GPU.
    """

    def prepare(spot: Spot) -> tuple[Spot, PreparedTile]:
        return spot, PreparedTile.of(store.load(spot), cut)

    shape = (size, cut.points, cut.columns)
    free = deque(allocate(shape) if allocate is not None else np.empty(shape, np.float32) for _ in range(1 + _AHEAD))
    pending: deque[_PendingBatch] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fgnn-tiles")

    def room(length: int) -> Iterator[Batch]:
        """See that the last pending batch takes a piece of this length; yields the oldest where memory is needed."""
        if pending and pending[-1].buffer.shape[1] == length and len(pending[-1].slots) < len(pending[-1].buffer):
            return
        if not free:
            oldest = pending.popleft()
            yield oldest.finish()
            free.append(oldest.memory)
        pending.append(_PendingBatch.of(free.popleft(), length))

    try:
        for spot, tile in in_order(pool, prepare, store.spots(votes), threads + 1):
            length = piece_length(len(tile.tile.slots), cut.points, _STEP if cut.thin else None)
            for piece in tile.pieces(length, np.random.default_rng([seed, *(n % (1 << 32) for n in spot.corner)])):
                yield from room(length)
                last = pending[-1]
                last.slots.append(pool.submit(tile.features, piece, cut, last.buffer[len(last.slots)]))
        for batch in pending:
            yield batch.finish()
    finally:
        pool.shutdown(cancel_futures=True)
