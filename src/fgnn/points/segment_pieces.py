"""Batches of tile pieces for a network, prepared by threads while the network works on the previous batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fgnn.points.cloud import Cloud
from fgnn.points.heights import Relief, height_columns
from fgnn.points.tiles import Spot, Tile, TileStore

# Batches prepared ahead of the one being labelled.
_AHEAD = 2

# Shape -> array for the features of a batch
Allocate = Callable[[tuple[int, ...]], NDArray[np.float32]]


@dataclass(frozen=True)
class Cut:
    """How a scan becomes tiles, pieces and features; the fields are those of `fgnn.points.segment.Segmenter`."""

    size: float
    points: int = 4096
    scale: float = 1.0
    colour: bool = False
    heights: Sequence[float] = ()
    slopes: Sequence[float] = ()
    grow: float = 1.0

    @property
    def width(self) -> int:
        """Extra features per point: the colour."""
        return 3 if self.colour else 0

    @property
    def columns(self) -> int:
        """Features per point."""
        return 3 + self.width + height_columns(self.heights, self.slopes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Features of several pieces, and for each piece the slots of its points without the padding."""

    features: NDArray[np.float32]  # shape: (pieces, P, 3 + F)
    slots: list[NDArray[np.int64]]


@dataclass(eq=False)
class _PendingBatch:
    buffer: NDArray[np.float32]
    slots: list[Future[NDArray[np.int64]]] = field(default_factory=list)

    def finish(self) -> Batch:
        return Batch(self.buffer[: len(self.slots)], [job.result() for job in self.slots])


@dataclass(frozen=True, eq=False)
class PreparedTile:
    """A tile and its relief: x and y are relative to the tile's centre, z to its lowest point."""

    tile: Tile
    relief: Relief | None

    @staticmethod
    def of(tile: Tile, cut: Cut) -> PreparedTile:
        """Lower the tile's z in place so that its lowest point is at 0."""
        tile.xyz[:, 2] -= np.ascontiguousarray(tile.xyz[:, 2]).min()
        return PreparedTile(tile, Relief.of(tile.xyz, cut.heights, cut.slopes) if cut.heights else None)

    def features(self, chosen: NDArray[np.int64], cut: Cut, out: NDArray[np.float32]) -> None:
        """Write coordinates over ``scale``, extra features and heights of the chosen points into ``out``."""
        xyz = np.take(self.tile.xyz, chosen, axis=0)
        np.divide(xyz, np.float32(cut.scale), out=out[:, :3])
        if cut.width:
            out[:, 3 : 3 + cut.width] = np.take(self.tile.extra, chosen, axis=0)
        if self.relief is not None:
            self.relief.heights(xyz, out=out[:, 3 + cut.width :])


def tile_features(tile: Tile, cut: Cut) -> NDArray[np.float32]:
    """The features of all points of a tile.  # shape: (P, 3 + F)"""
    out = np.empty((len(tile.slots), cut.columns), np.float32)
    PreparedTile.of(replace(tile, xyz=tile.xyz.copy()), cut).features(np.arange(len(out)), cut, out)
    return out


def colours(cloud: Cloud) -> NDArray[np.float32]:
    """The colours of a cloud, zeros if it has none.  # shape: (N, 3)"""
    rgb = cloud.rgb
    return rgb if rgb is not None else np.zeros((len(cloud), 3), np.float32)


def batches(
    store: TileStore, cut: Cut, size: int, votes: int, seed: int, threads: int = 1, allocate: Allocate | None = None
) -> Generator[Batch, None, None]:
    """Shuffle each tile, cut it into pieces of P points, pad the last with repeats; yield ``size`` pieces at a time.

    A batch is valid until the next one is requested: its memory is reused.

    Args:
        threads: Threads that compute features; their number does not change the result.
        allocate: Allocates the memory of a batch, e.g. pinned memory for a GPU.
    """

    def prepare(spot: Spot) -> PreparedTile:
        return PreparedTile.of(store.load(spot), cut)

    rng = np.random.default_rng(seed)
    shape = (size, cut.points, cut.columns)
    free = deque(allocate(shape) if allocate is not None else np.empty(shape, np.float32) for _ in range(1 + _AHEAD))
    pending: deque[_PendingBatch] = deque([_PendingBatch(free.popleft())])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fgnn-tiles")
    try:
        for spot in store.spots(votes):
            order = rng.permutation(len(spot))  # drawn here, in tile order, so that threads do not change the numbers
            prepared = pool.submit(prepare, spot)
            for start in range(0, len(order), cut.points):
                if len(pending[-1].slots) == size:
                    if not free:
                        oldest = pending.popleft()
                        yield oldest.finish()
                        free.append(oldest.buffer)
                    pending.append(_PendingBatch(free.popleft()))
                last, chosen = pending[-1], order[start : start + cut.points]
                missing = cut.points - len(chosen)
                padding = rng.choice(len(chosen), missing) if missing else chosen[:0]
                out = last.buffer[len(last.slots)]
                last.slots.append(pool.submit(_fill, prepared, spot, chosen, padding, cut, out))
        for batch in pending:
            if batch.slots:
                yield batch.finish()
    finally:
        pool.shutdown(cancel_futures=True)


def _fill(
    prepared: Future[PreparedTile], spot: Spot, chosen: NDArray[np.int64], padding: NDArray[np.int64], cut: Cut,
    out: NDArray[np.float32],
) -> NDArray[np.int64]:  # fmt: skip
    """Write the features of a piece; returns the slots of its points."""
    # threads take jobs in submission order, so the tile is ready or in progress: waiting cannot deadlock
    prepared.result().features(chosen, cut, out[: len(chosen)])
    if len(padding):
        out[len(chosen) :] = out[padding]
    return spot.slots(chosen)
